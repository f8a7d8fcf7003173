"""`/projects/:id/repository/archive` (supporting resource): what the archive pages serve, for clients of the API."""

import attrs
from aiohttp import web

from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.static_objects.archives import serve_to_client
from api_server.static_objects.limits import LIMITS
from api_server.web.errors import too_many_requests
from api_server.web.routes import Routes, caller

routes = Routes()


@attrs.frozen(kw_only=True)
class GetArchive:
    id: str
    format: str = "tar.gz"
    sha: str | None = None
    path: str = ""


@routes.get("/projects/{id}/repository/archive", access=project(opens="repository"))
@routes.get(
    "/projects/{id}/repository/archive.{format:[a-z0-9.]+}",
    access=project(opens="repository"),
)
async def show_archive(request: web.Request, wanted: GetArchive, found: Project) -> web.StreamResponse:
    """Of the branch, tag or commit `sha` (by default the default branch), or of the folder `path` of it."""
    user_id = caller(request).user_id
    if wait := request.config_dict[LIMITS].archive(user_id):
        raise too_many_requests(wait)
    return await serve_to_client(
        request,
        found,
        user_id,
        ref=wanted.sha or found.default_branch,
        ending=f".{wanted.format}",
        folder=wanted.path.strip("/"),
    )
