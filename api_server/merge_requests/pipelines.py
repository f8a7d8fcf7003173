"""`/merge_requests/:iid/pipelines`, and the pipelines that opening a merge request and pushing to it make."""

import attrs
import structlog
from aiohttp import web

from api_server.ci.pipelines import actions, rights
from api_server.ci.pipelines import queries as pipelines
from api_server.ci.pipelines.access import may_change
from api_server.ci.pipelines.creation import maker
from api_server.ci.pipelines.merge_request_queries import MergeRequest, find_merge_request
from api_server.ci.pipelines.wanted import NotMade, Wanted
from api_server.git.repositories import repositories
from api_server.merge_requests import queries
from api_server.merge_requests.changes import head_ref
from api_server.merge_requests.contents import ListContents, shas_of
from api_server.merge_requests.events import MERGE_REQUEST_LISTENERS, MergeRequestEvent
from api_server.merge_requests.handlers import ONE, MergeRequestId
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.state.database import Transaction
from api_server.state.errors import NotFound
from api_server.state.queue import QUEUE, enqueue
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text
from api_server.web.context import DATABASE, App
from api_server.web.errors import ApiError, forbidden
from api_server.web.pagination import paginated, wanted_page
from api_server.web.routes import Routes, caller

log = structlog.get_logger(__name__)
routes = Routes()

CREATE_PIPELINE = "create_merge_request_pipeline"


@attrs.frozen(kw_only=True)
class OfNewPipelines:
    async_: bool | None = attrs.field(default=None, metadata={"name": "async"})


@routes.get(f"{ONE}/pipelines", access=project(opens="builds"))
async def list_pipelines(request: web.Request, wanted: ListContents, found: Project) -> web.Response:
    """Its own, and those of the source branch for any of its commits, newest first; for readers of both."""
    _require_repository(found)
    page = wanted_page(wanted, pipelines.OF_MERGE_REQUEST)
    merge_request = await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    shas = await shas_of(request, repositories(request).open(found.id), merge_request)
    listed = await pipelines.list_pipelines_of_merge_request(
        context.database(request),
        page,
        merge_request.id,
        project_id=found.id,
        branch=merge_request.source_branch,
        shas=shas or [merge_request.head_sha],
    )
    return await paginated(request, page, listed)


@routes.post(
    f"{ONE}/pipelines", access=project(Role.DEVELOPER, opens="builds", changes=True), ignores=OfNewPipelines
)
async def create_pipeline(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    """One for its head, beside those that are there; 405 where it has no commits."""
    _require_repository(found)
    database = context.database(request)
    named = await queries.find(database, found.id, wanted.merge_request_iid)
    merge_request = await find_merge_request(database, named.id)
    if merge_request is None:
        raise NotFound
    if merge_request.mergeability == "no_commits":
        raise ApiError(405, {"message": "405 Method Not Allowed"}, {"Allow": "GET, HEAD"})
    branch = merge_request.source_branch
    if not await may_change(request, found, branch, tag=False):
        raise NotMade(f"You do not have sufficient permission to run a pipeline on '{branch}'.")
    pipeline_id = await maker(request.config_dict, database).make(
        _wanted(merge_request, caller(request).user_id)
    )
    return json_text(await pipelines.show_pipeline(database, found.id, pipeline_id))


def setup(app: web.Application) -> None:
    """Has merge requests of this application get their pipelines."""

    async def create(merge_request_id: int, user_id: int) -> None:
        await make_pipeline(app, merge_request_id, user_id)

    app[MERGE_REQUEST_LISTENERS].append(_react)
    app[QUEUE].add(CREATE_PIPELINE, create, attempts=5)


async def _react(transaction: Transaction, event: MergeRequestEvent) -> None:
    """Queues a pipeline where the merge request is new, or has a new head."""
    if event.user_id is not None and (event.action == "open" or event.old_head is not None):
        await enqueue(
            transaction,
            CREATE_PIPELINE,
            merge_request_id=event.merge_request_id,
            user_id=event.user_id,
        )


async def make_pipeline(app: App, merge_request_id: int, user_id: int) -> None:
    """Makes what `_react` has queued, once for each head, where the file asks for it; and cancels what it makes
    superfluous."""
    found = await find_merge_request(app[DATABASE], merge_request_id)
    if found is None or found.state != "opened" or found.mergeability == "no_commits":
        return
    wanted = _wanted(found, user_id, origin=f"merge_request:{found.id}:{found.head_sha}")
    try:
        pipeline_id = await rights.make(maker(app), wanted)
    except NotMade as refused:
        reason = "; ".join(refused.errors)
        log.info("no pipeline for a merge request", merge_request_id=found.id, reason=reason)
    else:
        await actions.cancel_superseded(app[DATABASE], pipeline_id)


def _wanted(found: MergeRequest, user_id: int, origin: str | None = None) -> Wanted:
    return Wanted(
        project_id=found.project_id,
        ref=head_ref(found.iid),
        sha=found.head_sha,
        source="merge_request_event",
        user_id=user_id,
        origin=origin,
        merge_request=found,
    )


def _require_repository(found: Project) -> None:
    if not found.reads_repository:
        raise forbidden()
