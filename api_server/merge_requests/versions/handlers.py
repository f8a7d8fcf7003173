"""`/projects/:id/merge_requests/:iid/versions` (supporting resource)."""

import attrs
import orjson
from aiohttp import web

from api_server.code.reading import reading
from api_server.code.repository.comparing import all_commits, all_differences
from api_server.git.commits import commits_between
from api_server.git.repositories import repositories
from api_server.merge_requests import queries as merge_requests
from api_server.merge_requests.contents import MOST_COMMITS
from api_server.merge_requests.handlers import ONE
from api_server.merge_requests.versions import queries
from api_server.merge_requests.versions.sizes import add_sizes
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.routes import Routes

routes = Routes()

VERSIONS = f"{ONE}/versions"


@attrs.frozen(kw_only=True)
class ListVersions(Paginated):
    id: str
    merge_request_iid: int


@attrs.frozen(kw_only=True)
class OneVersion:
    id: str
    merge_request_iid: int
    version_id: int


@routes.get(VERSIONS, access=project(opens="repository"))
async def list_versions(request: web.Request, wanted: ListVersions, found: Project) -> web.Response:
    """Newest first."""
    database = context.database(request)
    page = wanted_page(wanted, queries.VERSIONS)
    merge_request = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    listed = await queries.list_versions(database, page, merge_request.id)
    versions = orjson.loads(listed.body)
    await add_sizes(request, found.id, versions)
    return await paginated(request, page, attrs.evolve(listed, body=orjson.dumps(versions).decode()))


@routes.get(f"{VERSIONS}/{{version_id}}", access=project(opens="repository"))
async def show_version(request: web.Request, wanted: OneVersion, found: Project) -> web.Response:
    """With its commits, newest first, and what it changes."""
    database = context.database(request)
    merge_request = await merge_requests.find(database, found.id, wanted.merge_request_iid)
    version = await queries.find(database, merge_request.id, wanted.version_id)
    repository = repositories(request).open(found.id)
    async with reading(request):
        shas = await commits_between(repository, version.base_sha, version.head_sha, MOST_COMMITS)
        files, _ = await all_differences(request, repository, version.base_sha, version.head_sha)
    commits = await all_commits(request, found, repository, shas)
    shown = orjson.loads(await queries.show(database, version.id))
    await add_sizes(request, found.id, [shown])
    return json_value(shown | {"commits": commits, "diffs": files})
