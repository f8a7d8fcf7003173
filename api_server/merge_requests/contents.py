"""`/merge_requests/:iid/commits`, `/diffs` and `/pipelines`: what a merge request brings."""

import attrs
from aiohttp import web

from api_server.ci.pipelines import queries as pipelines
from api_server.ci.pipelines.access import find_readable_project
from api_server.code.repository.access import require_readable
from api_server.code.repository.comparing import listed_commits, listed_differences
from api_server.git.commits import commits_between
from api_server.git.repositories import Repository, repositories
from api_server.merge_requests.access import find_merge_request
from api_server.merge_requests.handlers import ONE
from api_server.namespaces.projects.access import Project, find_project, project
from api_server.state.database import Row
from api_server.web import context
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import parse
from api_server.web.routes import Routes

routes = Routes()

#: Older commits of a merge request are not listed, nor are their pipelines.
MOST_COMMITS = 1000


@attrs.frozen(kw_only=True)
class ListContents(Paginated):
    id: str
    merge_request_iid: int


@routes.get(f"{ONE}/commits", access=project())
async def list_commits(request: web.Request) -> web.Response:
    """Newest first."""
    wanted = await parse(request, ListContents)
    found = await find_project(request, wanted.id)
    row, repository = await _found(request, found, wanted)
    shas = await commits_between(repository, row.base_sha, row.head_sha, MOST_COMMITS)
    return await listed_commits(request, wanted, found, repository, shas)


@routes.get(f"{ONE}/diffs", access=project())
async def list_diffs(request: web.Request) -> web.Response:
    """What the source has changed since it parted from the target."""
    wanted = await parse(request, ListContents)
    found = await find_project(request, wanted.id)
    row, repository = await _found(request, found, wanted)
    return await listed_differences(request, wanted, repository, row.base_sha, row.head_sha)


@routes.get(f"{ONE}/pipelines", access=project())
async def list_pipelines(request: web.Request) -> web.Response:
    """Those of the source branch for any of the merge request's commits, newest first."""
    wanted = await parse(request, ListContents)
    found = await find_readable_project(request, wanted.id)
    row, repository = await _found(request, found, wanted)
    page = wanted_page(wanted, pipelines.OF_COMMITS)
    shas = await commits_between(repository, row.base_sha, row.head_sha, MOST_COMMITS)
    listed = await pipelines.list_pipelines_of_commits(
        context.database(request), page, found.id, row.source_branch, shas or [row.head_sha]
    )
    return await paginated(request, page, listed)


async def _found(request: web.Request, found: Project, wanted: ListContents) -> tuple[Row, Repository]:
    require_readable(found)
    row = await find_merge_request(request, found, wanted.merge_request_iid)
    return row, repositories(request).open(found.id)
