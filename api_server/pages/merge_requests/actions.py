"""What the buttons on the page of a merge request do, as the API does it."""

import attrs
from aiohttp import web

from api_server.merge_requests.approvals import handlers as approvals
from api_server.merge_requests.handlers import CHANGE
from api_server.merge_requests.merging import handlers as merging
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.merge_requests.merge_requests import OneMergeRequest
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.status_checks import delivery_handlers as deliveries
from api_server.status_checks import result_handlers as checks
from api_server.web.routes import Handler, Role, ask

pages = Pages()

_ONE = "/{project}/-/merge_requests/{iid}"


@attrs.frozen(kw_only=True)
class OfHead(OneMergeRequest):
    """`sha` is the head that the page showed: what has been pushed since is neither merged nor approved."""

    sha: str


@attrs.frozen(kw_only=True)
class Merge(OfHead):
    remove_source_branch: bool = False
    later: bool = False


@attrs.frozen(kw_only=True)
class OneCheck(OneMergeRequest):
    check_id: int


@attrs.frozen(kw_only=True)
class OneDelivery(OneCheck):
    delivery_id: int


@pages.post(f"{_ONE}/merge", access=CHANGE)
async def merge(request: web.Request, who: Visitor, wanted: Merge, found: Project) -> web.Response:
    """Now, or (`later`) when its pipeline has succeeded."""
    sent = {"should_remove_source_branch": wanted.remove_source_branch, "auto_merge": wanted.later}
    text = "It is merged when its pipeline has succeeded." if wanted.later else "It is merged."
    return await _do(request, who, found, wanted, merging.merge_merge_request, text, sha=wanted.sha, **sent)


@pages.post(f"{_ONE}/cancel_auto_merge", access=CHANGE)
async def cancel_auto_merge(
    request: web.Request, who: Visitor, wanted: OneMergeRequest, found: Project
) -> web.Response:
    return await _do(
        request, who, found, wanted, merging.cancel_auto_merge, "It is not merged by itself any more."
    )


@pages.post(f"{_ONE}/approve", access=CHANGE)
async def approve(request: web.Request, who: Visitor, wanted: OfHead, found: Project) -> web.Response:
    text = "You approve of it."
    return await _do(request, who, found, wanted, approvals.approve_merge_request, text, sha=wanted.sha)


@pages.post(f"{_ONE}/unapprove", access=CHANGE)
async def unapprove(
    request: web.Request, who: Visitor, wanted: OneMergeRequest, found: Project
) -> web.Response:
    text = "You do not approve of it any more."
    return await _do(request, who, found, wanted, approvals.unapprove_merge_request, text)


@pages.post(f"{_ONE}/retry_check", access=CHANGE)
async def retry_check(request: web.Request, who: Visitor, wanted: OneCheck, found: Project) -> web.Response:
    """The check is asked again."""
    sent = {"external_status_check_id": wanted.check_id}
    return await _do(request, who, found, wanted, checks.retry, "The check is asked again.", **sent)


@pages.post(f"{_ONE}/redeliver", access=project(Role.MAINTAINER, opens="repository"))
async def redeliver(request: web.Request, who: Visitor, wanted: OneDelivery, found: Project) -> web.Response:
    """The same message once more."""
    await ask(
        request,
        deliveries.redeliver,
        id=str(found.id),
        check_id=wanted.check_id,
        delivery_id=wanted.delivery_id,
    )
    return _back(request, who, found, wanted, "The message is sent again.")


async def _do(
    request: web.Request,
    who: Visitor,
    found: Project,
    wanted: OneMergeRequest,
    handler: Handler,
    text: str,
    **sent: object,
) -> web.Response:
    await ask(request, handler, id=str(found.id), merge_request_iid=wanted.iid, **sent)
    return _back(request, who, found, wanted, text)


def _back(
    request: web.Request, who: Visitor, found: Project, wanted: OneMergeRequest, text: str
) -> web.Response:
    return page.see_other(request, who, f"/{found.full_path}/-/merge_requests/{wanted.iid}", text)
