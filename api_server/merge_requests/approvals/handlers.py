"""`/merge_requests/:iid/approvals`, `/approval_state`, `/approve`, `/unapprove`, `/reset_approvals` (supporting
resource)."""

import attrs
from aiohttp import web

from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.approvals import approving, queries
from api_server.merge_requests.handlers import CHANGE, ONE, MergeRequestId
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_text, json_value
from api_server.web.routes import Role, Routes, caller

routes = Routes()


@attrs.frozen(kw_only=True)
class ApproveMergeRequest(MergeRequestId):
    sha: str | None = None


@routes.get(f"{ONE}/approvals", access=project(opens="repository"))
async def show_approvals(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    merge_request = await merge_requests.find(context.database(request), found.id, wanted.merge_request_iid)
    return await _approvals(request, merge_request.id, found.role)


@routes.get(f"{ONE}/approval_state", access=project(opens="repository"))
async def show_approval_state(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    """There are no approval rules, so that none is left to be satisfied."""
    await merge_requests.find(context.database(request), found.id, wanted.merge_request_iid)
    return json_value({"approval_rules_overwritten": False, "rules": []})


@routes.post(f"{ONE}/approve", access=CHANGE)
async def approve_merge_request(
    request: web.Request, wanted: ApproveMergeRequest, found: Project
) -> web.Response:
    """`sha` makes sure that what is approved is what the caller has seen."""
    merge_request = await merge_requests.find(context.database(request), found.id, wanted.merge_request_iid)
    async with context.database(request).transaction() as transaction:
        await approving.approve(request, transaction, merge_request.id, wanted.sha)
    return await _approvals(request, merge_request.id, found.role, status=201)


@routes.post(f"{ONE}/unapprove", access=CHANGE)
async def unapprove_merge_request(
    request: web.Request, wanted: MergeRequestId, found: Project
) -> web.Response:
    merge_request = await merge_requests.find(context.database(request), found.id, wanted.merge_request_iid)
    async with context.database(request).transaction() as transaction:
        await approving.unapprove(request, transaction, merge_request.id)
    return await _approvals(request, merge_request.id, found.role, status=201)


@routes.put(f"{ONE}/reset_approvals", access=CHANGE)
async def reset_approvals(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    """Takes everybody's approval back, for bots only: others get 401. The body is the status, as GitLab's is."""
    merge_request = await merge_requests.find(context.database(request), found.id, wanted.merge_request_iid)
    async with context.database(request).transaction() as transaction:
        await approving.reset(transaction, merge_request.id, caller(request))
    return json_value(202, status=202)


async def _approvals(
    request: web.Request, merge_request_id: int, role: int, status: int = 200
) -> web.Response:
    shown = await queries.show_approvals(
        context.database(request),
        merge_request_id,
        viewer_id=caller(request).user_id,
        viewer_may_approve=role >= Role.DEVELOPER,
    )
    return json_text(shown, status=status)
