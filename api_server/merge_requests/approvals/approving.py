"""Approving of merge requests, and taking that back, in the caller's transaction."""

from aiohttp import web

from api_server.accounts import user_queries
from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.approvals import queries
from api_server.merge_requests.changes import announce, check_head
from api_server.merge_requests.queries import MergeRequest
from api_server.state.database import Transaction
from api_server.web.auth import Caller
from api_server.web.errors import invalid, record_not_found, unauthorized
from api_server.web.routes import caller


async def approve(
    request: web.Request, transaction: Transaction, merge_request_id: int, seen_sha: str | None
) -> None:
    """Once for each user; a second time changes nothing. Raises 409 where the head is not what the caller has seen."""
    before = await merge_requests.lock(transaction, merge_request_id)
    check_head(before, seen_sha)
    _require_open(before)
    if await queries.approve(transaction, merge_request_id, caller(request).user_id):
        await announce(
            request.config_dict, transaction, caller(request).user_id, merge_request_id, "approved"
        )


async def unapprove(request: web.Request, transaction: Transaction, merge_request_id: int) -> None:
    """Raises 404 where the caller has not approved."""
    _require_open(await merge_requests.lock(transaction, merge_request_id))
    if not await queries.unapprove(transaction, merge_request_id, caller(request).user_id):
        raise record_not_found()
    await announce(request.config_dict, transaction, caller(request).user_id, merge_request_id, "unapproved")


async def reset(transaction: Transaction, merge_request_id: int, who: Caller) -> None:
    """Takes all approvals back, whatever has become of the merge request; nobody hears of it. Raises 401 for who is no
    bot of a project or group."""
    if not await user_queries.is_bot(transaction, who.user_id):
        raise unauthorized()
    await merge_requests.lock(transaction, merge_request_id)
    await queries.reset(transaction, merge_request_id)


def _require_open(before: MergeRequest) -> None:
    if before.state != "opened":
        raise invalid(["The merge request is not open"], status=422)
