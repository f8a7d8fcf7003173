"""`/merge_requests/:iid/commits`, `/diffs`, `/changes` and `/closes_issues`: what a merge request brings."""

import attrs
import orjson
from aiohttp import web

from api_server.code.reading import reading
from api_server.code.repository.comparing import all_differences, listed_commits, listed_differences
from api_server.code.repository.pages import listed
from api_server.git.commits import commits_between
from api_server.git.repositories import Repository, repositories
from api_server.merge_requests import queries
from api_server.merge_requests.handlers import ONE, MergeRequestId
from api_server.merge_requests.queries import MergeRequest
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.pagination import Paginated
from api_server.web.routes import Routes

routes = Routes()

#: Older commits of a merge request are not listed, nor are their pipelines.
MOST_COMMITS = 1000


@attrs.frozen(kw_only=True)
class ListContents(Paginated):
    id: str
    merge_request_iid: int


@routes.get(f"{ONE}/commits", access=project(opens="repository"))
async def list_commits(request: web.Request, wanted: ListContents, found: Project) -> web.Response:
    """Newest first."""
    merge_request = await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    repository = repositories(request).open(found.id)
    shas = await shas_of(request, repository, merge_request)
    return await listed_commits(request, wanted, found, repository, shas)


@routes.get(f"{ONE}/diffs", access=project(opens="repository"))
async def list_diffs(request: web.Request, wanted: ListContents, found: Project) -> web.Response:
    """What the source has changed since it parted from the target."""
    merge_request = await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    return await listed_differences(
        request,
        wanted,
        repositories(request).open(found.id),
        merge_request.base_sha,
        merge_request.head_sha,
    )


@routes.get(f"{ONE}/closes_issues", access=project(opens="repository"))
async def list_closed_issues(request: web.Request, wanted: ListContents, found: Project) -> web.Response:
    """None, as where a project has no issues; release tools ask."""
    await queries.find(context.database(request), found.id, wanted.merge_request_iid)
    return await listed(request, wanted, [], 0)


@routes.get(f"{ONE}/changes", access=project(opens="repository"))
async def show_changes(request: web.Request, wanted: MergeRequestId, found: Project) -> web.Response:
    """The merge request with all of its diffs; `overflow` where there are more than are shown."""
    database = context.database(request)
    merge_request = await queries.find(database, found.id, wanted.merge_request_iid)
    repository = repositories(request).open(found.id)
    async with reading(request):
        diffs, overflows = await all_differences(
            request, repository, merge_request.base_sha, merge_request.head_sha
        )
    shown = orjson.loads(await queries.show(database, merge_request.id, found))
    return json_value(shown | {"changes": diffs, "overflow": overflows})


async def shas_of(request: web.Request, repository: Repository, merge_request: MergeRequest) -> list[str]:
    """Its commits, newest first."""
    async with reading(request):
        return await commits_between(repository, merge_request.base_sha, merge_request.head_sha, MOST_COMMITS)
