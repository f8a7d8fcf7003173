"""`/merge_requests/:iid/pipelines`."""

from aiohttp import web

from api_server.ci.pipelines import queries as pipelines
from api_server.ci.pipelines.access import may_change
from api_server.ci.pipelines.creation import maker, not_allowed_on
from api_server.ci.pipelines.creation_queries import find_merge_request
from api_server.git.repositories import repositories
from api_server.merge_requests import queries
from api_server.merge_requests.contents import ListContents, shas_of
from api_server.merge_requests.handlers import ONE, MergeRequestId
from api_server.merge_requests.pipeline_making import wanted_for
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.state.errors import NotFound
from api_server.web import context
from api_server.web.answers import json_text
from api_server.web.errors import ApiError, forbidden
from api_server.web.pagination import paginated, wanted_page
from api_server.web.routes import Role, Routes, caller

routes = Routes()


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


@routes.post(f"{ONE}/pipelines", access=project(Role.DEVELOPER, opens="builds", changes=True))
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
        raise not_allowed_on(branch)
    pipeline_id = await maker(request.config_dict, database).make(
        wanted_for(merge_request, caller(request).user_id)
    )
    return json_text(await pipelines.show_pipeline(database, found.id, pipeline_id))


def _require_repository(found: Project) -> None:
    if not found.reads_repository:
        raise forbidden()
