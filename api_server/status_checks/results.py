"""Answers of status check services: recorded for the head that they are about, sent for again, timed out."""

import datetime

import attrs
from aiohttp import web

from api_server.merge_requests.changes import check_head
from api_server.merge_requests.merging.auto_merge import look_again
from api_server.merge_requests.queries import MergeRequest
from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Transaction
from api_server.status_checks import delivery_queries, result_queries
from api_server.status_checks.result_queries import NewAnswer
from api_server.status_checks.service_queries import Service
from api_server.web.errors import ApiError
from api_server.web.routes import author, caller


@attrs.frozen(kw_only=True)
class Response:
    """An answer as it was sent; `sha` is the head that it is about."""

    sha: str
    status: str
    description: str | None = None
    target_url: str | None = None


async def respond(
    request: web.Request,
    transaction: Transaction,
    check: Service,
    merge_request: MergeRequest,
    response: Response,
) -> int:
    """The new answer's id. Raises 409 where the head has moved on."""
    check_head(merge_request, response.sha)
    answer = await result_queries.respond(
        transaction,
        check_id=check.id,
        merge_request_id=merge_request.id,
        user_id=caller(request).user_id,
        **attrs.asdict(response),
    )
    await _record(transaction, author(request), answer)
    if response.status == "passed":
        await look_again(transaction, merge_request.id)
    return answer.id


async def retry(
    request: web.Request, transaction: Transaction, check: Service, merge_request: MergeRequest
) -> None:
    """Sends the merge request's state again; the result stays until it is answered. Raises 422 unless it is failed."""
    newest = await result_queries.lock_newest_response(
        transaction, check.id, merge_request.id, merge_request.head_sha
    )
    if newest is None or newest.status != "failed":
        raise ApiError(422, {"message": "External status check must be failed"})
    await result_queries.note_retry(transaction, newest.id)
    await delivery_queries.queue_state(transaction, check.id, merge_request.id, caller(request).user_id)


async def time_out(transaction: Transaction, seconds: int) -> None:
    """Fails the results that have said `pending` for longer than that."""
    before = transaction.now - datetime.timedelta(seconds=seconds)
    for failed in await result_queries.time_out(
        transaction, before, f"Not answered within {seconds} seconds"
    ):
        await _record(transaction, SYSTEM, failed)


async def _record(transaction: Transaction, who: Author, answer: NewAnswer) -> None:
    await audit_trail.record(
        transaction,
        "status_check_response_update",
        author=who,
        entity=Entity(type="Project", id=answer.project_id, path=answer.full_path),
        target_id=answer.merge_request_id,
        target_details=answer.title,
        message=f"Updated response for status check {answer.name} to {answer.status}",
        external_status_check_id=answer.check_id,
        external_status_check_name=answer.name,
        status=answer.status,
        sha=answer.sha,
        merge_request_id=answer.merge_request_id,
        merge_request_iid=answer.iid,
    )
