"""`/<project>/-/merge_requests`: the list, and the page of one."""

from typing import Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.git.repositories import repositories
from api_server.merge_requests import contents, handlers, pipelines
from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.approvals import handlers as approvals
from api_server.merge_requests.lists import queries as lists
from api_server.merge_requests.lists.parameters import ListOfProject, filters_of
from api_server.merge_requests.notes import handlers as notes
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.merge_requests import queries, words
from api_server.pages.paging import pager
from api_server.pages.projects import differences
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.state.listing import Page
from api_server.status_checks import result_handlers as checks
from api_server.web import context
from api_server.web.errors import ApiError
from api_server.web.pagination import Paginated, wanted_page
from api_server.web.routes import Handler, Role, ask

pages = Pages()

#: What is shown of each list on the page of a merge request.
MOST = 20
MOST_NOTES = 100


@attrs.frozen(kw_only=True)
class ListOfMergeRequests(Paginated):
    state: Literal["opened", "closed", "merged", "all"] = "opened"


@attrs.frozen(kw_only=True)
class OneMergeRequest:
    iid: int


@pages.get("/{project}/-/merge_requests", access=project(opens="repository"))
async def list_merge_requests(
    request: web.Request, who: Visitor, wanted: ListOfMergeRequests, found: Project
) -> web.Response:
    """Newest first."""
    part = wanted_page(wanted, lists.OF_PROJECT)
    filters = filters_of(ListOfProject(id=str(found.id), state=wanted.state), who.user_id or 0)
    listed = await lists.list_of_project(context.database(request), part, found.id, filters)
    return page.answer(
        request,
        who,
        "merge_requests/list.html",
        project=found,
        tab="merge_requests",
        merge_requests=orjson.loads(listed.body),
        pages=pager(request, part, listed),
        state=wanted.state,
    )


@pages.get("/{project}/-/merge_requests/{iid}", access=project(opens="repository"))
async def show_merge_request(
    request: web.Request, who: Visitor, wanted: OneMergeRequest, found: Project
) -> web.Response:
    one = {"id": str(found.id), "merge_request_iid": wanted.iid}
    shown = await _read(request, handlers.show_merge_request, **one)
    row = await merge_requests.find(context.database(request), found.id, wanted.iid)
    looks_after = found.role >= Role.MAINTAINER
    repository = repositories(request).open(found.id)
    files, differing = await differences.read(request, repository, row.base_sha, row.head_sha, Page(MOST))
    return page.answer(
        request,
        who,
        "merge_requests/show.html",
        project=found,
        tab="merge_requests",
        mr=shown,
        obstacle=words.obstacle(shown["detailed_merge_status"]),
        commits=await _read(request, contents.list_commits, **one, per_page=MOST),
        files=files,
        total=differing.total or 0,
        approvals=await _read(request, approvals.show_approvals, **one),
        checks=await _if_open(request, checks.list_checks, **one),
        deliveries=await queries.deliveries(context.database(request), row.id, MOST) if looks_after else [],
        pipelines=await _read(request, pipelines.list_pipelines, **one) if found.shows_pipelines else [],
        notes=await _read(request, notes.list_notes, **one, sort="asc", per_page=MOST_NOTES),
        may_act=found.role >= Role.DEVELOPER and not found.archived,
        most=MOST,
        most_notes=MOST_NOTES,
    )


async def _read(request: web.Request, handler: Handler, **sent: Any) -> Any:
    """What the API shows."""
    answer = await ask(request, handler, **sent)
    assert isinstance(answer, web.Response)  # noqa: S101  # a handler of JSON
    return orjson.loads(answer.body)  # type: ignore[arg-type]


async def _if_open(request: web.Request, handler: Handler, **sent: Any) -> Any:
    """Likewise; None where the visitor or the tier has it not."""
    try:
        return await _read(request, handler, **sent)
    except ApiError as refused:
        if refused.status != 403:
            raise
        return None
