"""`/<project>/-/merge_requests`: the list, the page of a merge request, and its buttons, which call the API."""

from collections.abc import Mapping
from typing import Any, Final, Literal

import attrs
import orjson
from aiohttp import web

from api_server.git.repositories import REPOSITORIES
from api_server.merge_requests import handlers, list_queries, note_handlers
from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.handlers import CHANGE
from api_server.merge_requests.list_handlers import ListOfProject, filters_of
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import commits, page, queries
from api_server.pages.ci.words import GOING_ON
from api_server.pages.page import pager
from api_server.pages.routes import Pages, allows
from api_server.pages.sessions import Visitor
from api_server.pages.text import rendering
from api_server.state.listing import Page
from api_server.status_checks import handlers as checks
from api_server.status_checks import handlers as status_checks
from api_server.web import context
from api_server.web.errors import ApiError
from api_server.web.pagination import Paginated, requested_page
from api_server.web.routes import Handler, Role, ask

#: Why a merge request cannot be merged and what to do about it, by `detailed_merge_status`.
OBSTACLES: Final = {
    "not_open": "The merge request is not open.",
    "commits_status": "The source branch has no new commits, or one of the branches does not exist. Push"
    " commits to the source branch.",
    "draft_status": "The merge request is a draft. Mark it as ready first.",
    "discussions_not_resolved": "All threads must be resolved.",
    "status_checks_must_pass": "All status checks must pass. See the status checks below.",
    "conflict": "Merge conflicts must be resolved. Merge the target branch into the source branch or rebase it,"
    " resolve the conflicts and push.",
    "unchecked": "Checking if the merge request can be merged. Refresh the page in a moment.",
    "need_rebase": "The source branch is behind the target branch and must be rebased.",
    "ci_still_running": "The pipeline must succeed. It is still running.",
    "ci_must_pass": "The pipeline of the latest commit must succeed. It did not, or there is no pipeline.",
}


def obstacle(status: str) -> str:
    """Return one or two sentences about why it cannot be merged, or "" if it can."""
    if status == "mergeable":
        return ""
    return OBSTACLES.get(status, f"Status: {status.replace('_', ' ')}.")


#: Obstacles that Maintainers can remove by changing the project's settings for merges.
_DEMANDS: Final = frozenset(
    {"discussions_not_resolved", "status_checks_must_pass", "need_rebase", "ci_still_running", "ci_must_pass"}
)


def ways(entity: Mapping[str, Any], project: Project) -> list[tuple[str, str]]:
    """Return the titles and addresses of pages that help to remove the obstacle."""
    base, status = f"/{project.full_path}/-", entity["detailed_merge_status"]
    pipeline = entity["head_pipeline"]
    links = {
        "commits_status": [("Branches", f"{base}/branches")],
        "discussions_not_resolved": [("View threads", "#notes")],
        "status_checks_must_pass": [("View status checks", "#checks")],
        "ci_still_running": [("View pipeline", f"{base}/pipelines/{pipeline['id']}")] if pipeline else [],
        "ci_must_pass": [("View pipeline", f"{base}/pipelines/{pipeline['id']}")] if pipeline else [],
    }.get(status, [])
    if status in _DEMANDS and project.role >= Role.MAINTAINER:
        links.append(("Merge request settings", f"{base}/settings/merge_requests"))
    return links


pages = Pages()

#: Maximum number of entries of each list on the page of a merge request, and of threads.
_SHOWN = 20
MAX_THREADS = 100


@attrs.frozen(kw_only=True)
class ListOfMergeRequests(Paginated):
    state: Literal["opened", "closed", "merged", "all"] = "opened"


@attrs.frozen(kw_only=True)
class OneMergeRequest:
    iid: int


@attrs.frozen(kw_only=True)
class ShowMergeRequest(OneMergeRequest):
    """A merge request and a `page` of its threads. None is the last page."""

    page: int | None = None


@pages.get("/{project}/-/merge_requests", access=project(feature="repository"))
async def list_merge_requests(
    request: web.Request, visitor: Visitor, params: ListOfMergeRequests, project: Project
) -> web.Response:
    """List the merge requests, the newest first."""
    part = requested_page(params, list_queries.OF_PROJECT)
    filters = filters_of(ListOfProject(id=str(project.id), state=params.state), visitor.user_id or 0)
    rows = await list_queries.list_of_project(context.services(request).database, part, project.id, filters)
    return page.answer(
        request,
        visitor,
        "merge_requests/list.html",
        project=project,
        tab="merge_requests",
        merge_requests=orjson.loads(rows.body),
        pages=pager(request, part, rows),
        state=params.state,
        may_create=allows(CHANGE, project, visitor),
    )


@pages.get("/{project}/-/merge_requests/{iid}", access=project(feature="repository"))
async def show_merge_request(
    request: web.Request, visitor: Visitor, params: ShowMergeRequest, project: Project
) -> web.Response:
    services = context.services(request)
    ids = {"id": str(project.id), "merge_request_iid": params.iid}
    entity = await page.read(request, handlers.show_merge_request, **ids)
    row = await merge_requests.find(services.database, project.id, params.iid)
    looks_after = project.role >= Role.MAINTAINER
    repository = services[REPOSITORIES].open(project.id)
    files, differing = await commits.read_differences(
        request, repository, row.base_sha, row.head_sha, Page(_SHOWN)
    )
    threads = await _threads(request, params, ids)
    notes = [note for thread in threads.rows for note in thread["notes"]]
    texts = [entity["description"], *(note["body"] for note in notes)]
    description, *bodies = await rendering.markdown(request, visitor, project, texts)
    return page.answer(
        request,
        visitor,
        "merge_requests/show.html",
        project=project,
        tab="merge_requests",
        mr=entity,
        description=description,
        obstacle=obstacle(entity["detailed_merge_status"]),
        ways=ways(entity, project),
        commits=await page.read(request, handlers.list_commits, **ids, per_page=_SHOWN),
        files=files,
        total=differing.total or 0,
        approvals=await page.read(request, handlers.show_approvals, **ids),
        checks=await _read_unless_forbidden(request, checks.list_checks, **ids),
        deliveries=await queries.deliveries_of_merge_request(services.database, row.id, _SHOWN)
        if looks_after
        else [],
        pipelines=await page.read(request, handlers.list_pipelines, **ids) if project.shows_pipelines else [],
        threads=threads,
        bodies={note["id"]: body for note, body in zip(notes, bodies, strict=True)},
        edited=await queries.edited_notes(services.database, [note["id"] for note in notes]),
        thread_page=params.page,
        maintains=looks_after,
        may_act=allows(CHANGE, project, visitor),
        may_comment=allows(note_handlers.WRITE, project, visitor),
        most=_SHOWN,
        going_on=GOING_ON,
    )


async def _threads(request: web.Request, params: ShowMergeRequest, ids: dict[str, Any]) -> page.List:
    """Return a page of the threads, oldest first. The service's own notes about events are among them."""
    number, handler = params.page, note_handlers.list_discussions
    if number is None:
        single = await ask(request, handler, **ids, per_page=1)
        number = max(1, -(-int(single.headers["X-Total"]) // MAX_THREADS))
    return await page.read_list(request, handler, **ids, page=number, per_page=MAX_THREADS)


async def _read_unless_forbidden(request: web.Request, handler: Handler, **fields: Any) -> Any:
    """Return the JSON of the API's answer, or None for 403, if the visitor's role or the license lacks the feature."""
    try:
        return await page.read(request, handler, **fields)
    except ApiError as problem:
        if problem.status != 403:
            raise
        return None


_ONE = "/{project}/-/merge_requests/{iid}"


@attrs.frozen(kw_only=True)
class OfHead(OneMergeRequest):
    """The parameters of a form. `sha` is the head that the page showed: commits that have been pushed since then are
    neither merged nor approved."""

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
async def merge(request: web.Request, visitor: Visitor, params: Merge, project: Project) -> web.Response:
    """Merge it now, or with `later` when its pipeline has succeeded."""
    fields = {"should_remove_source_branch": params.remove_source_branch, "auto_merge": params.later}
    text = "Set to auto-merge." if params.later else "Merge request merged."
    return await _do(
        request, visitor, project, params, handlers.merge_merge_request, text, sha=params.sha, **fields
    )


@pages.post(f"{_ONE}/cancel_auto_merge", access=CHANGE)
async def cancel_auto_merge(
    request: web.Request, visitor: Visitor, params: OneMergeRequest, project: Project
) -> web.Response:
    return await _do(request, visitor, project, params, handlers.cancel_auto_merge, "Auto-merge canceled.")


@pages.post(f"{_ONE}/approve", access=CHANGE)
async def approve(request: web.Request, visitor: Visitor, params: OfHead, project: Project) -> web.Response:
    text = "Merge request approved."
    return await _do(request, visitor, project, params, handlers.approve_merge_request, text, sha=params.sha)


@pages.post(f"{_ONE}/unapprove", access=CHANGE)
async def unapprove(
    request: web.Request, visitor: Visitor, params: OneMergeRequest, project: Project
) -> web.Response:
    text = "Approval revoked."
    return await _do(request, visitor, project, params, handlers.unapprove_merge_request, text)


@pages.post(f"{_ONE}/retry_check", access=CHANGE)
async def retry_check(
    request: web.Request, visitor: Visitor, params: OneCheck, project: Project
) -> web.Response:
    """Ask the status check again."""
    fields = {"external_status_check_id": params.check_id}
    return await _do(
        request, visitor, project, params, status_checks.retry, "Status check retried.", **fields
    )


@pages.post(f"{_ONE}/redeliver", access=project(Role.MAINTAINER, feature="repository"))
async def redeliver(
    request: web.Request, visitor: Visitor, params: OneDelivery, project: Project
) -> web.Response:
    """Send the same message to the status check once more."""
    await ask(
        request,
        status_checks.redeliver,
        id=str(project.id),
        check_id=params.check_id,
        delivery_id=params.delivery_id,
    )
    return _back(request, visitor, project, params, "Redelivery queued.")


async def _do(
    request: web.Request,
    visitor: Visitor,
    project: Project,
    params: OneMergeRequest,
    handler: Handler,
    text: str,
    **fields: object,
) -> web.Response:
    await ask(request, handler, id=str(project.id), merge_request_iid=params.iid, **fields)
    return _back(request, visitor, project, params, text)


def _back(
    request: web.Request, visitor: Visitor, project: Project, params: OneMergeRequest, text: str
) -> web.Response:
    return page.see_other(request, visitor, f"/{project.full_path}/-/merge_requests/{params.iid}", text)
