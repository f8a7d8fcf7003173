"""`/projects/:id/repository/archive` (supporting resource): what the archive pages serve, for clients of the API."""

import attrs
from aiohttp import web

from api_server.code.repository.access import require_readable
from api_server.git import references
from api_server.git.repositories import repositories
from api_server.namespaces.projects.access import find_project, project
from api_server.static_objects.archives import named, send_archive
from api_server.static_objects.limits import LIMITS
from api_server.web.errors import not_found, too_many_requests
from api_server.web.params import parse
from api_server.web.routes import Routes, caller
from common.static_paths import ARCHIVE_FORMATS

routes = Routes()


@attrs.frozen(kw_only=True)
class GetArchive:
    id: str
    format: str = "tar.gz"
    sha: str | None = None
    path: str = ""


@routes.get("/projects/{id}/repository/archive", access=project())
@routes.get("/projects/{id}/repository/archive.{format:[a-z0-9.]+}", access=project())
async def show_archive(request: web.Request) -> web.StreamResponse:
    """Of the branch, tag or commit `sha` (by default the default branch), or of the folder `path` of it."""
    wanted = await parse(request, GetArchive)
    found = await find_project(request, wanted.id)
    require_readable(found)
    if wait := request.config_dict[LIMITS].archive(caller(request).user_id):
        raise too_many_requests(wait)
    repository = repositories(request).open(found.id) if repositories(request).exists(found.id) else None
    ref = references.resolve(repository, wanted.sha or found.default_branch) if repository else None
    format_ = ARCHIVE_FORMATS.get(f".{wanted.format}")
    if ref is None or format_ is None:
        raise not_found("File")
    archive = named(found, ref, format_, wanted.path.strip("/"), appends_sha=ref.name != ref.commit)
    try:
        return await send_archive(request, found, archive)
    except web.HTTPNotFound:
        raise not_found("File") from None
