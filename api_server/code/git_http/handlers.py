"""`/<path>.git/info/refs`, `/git-upload-pack` and `/git-receive-pack` (gitprotocol-http(5))."""

from aiohttp import web

from api_server.code.git_http.access import gone, readable_project, writable_project
from api_server.code.git_http.streaming import receiving, streamed
from api_server.code.repository.access import ensured
from api_server.git import smart_http
from api_server.git.repositories import repositories
from api_server.git.smart_http import Service
from api_server.namespaces.projects.project import Project
from api_server.web import request_body

_SERVICES: tuple[Service, ...] = ("git-upload-pack", "git-receive-pack")


def setup(app: web.Application) -> None:
    app.router.add_get("/{path:.+}.git/info/refs", info_refs)
    app.router.add_post("/{path:.+}.git/git-upload-pack", upload_pack)
    app.router.add_post("/{path:.+}.git/git-receive-pack", receive_pack)


async def info_refs(request: web.Request) -> web.StreamResponse:
    """What there is to fetch, or to push onto."""
    service = next((known for known in _SERVICES if known == request.query.get("service")), None)
    if service is None:
        raise web.HTTPForbidden(text="Only git's smart protocol is spoken here: upgrade your git.\n")
    project, _ = await (writable_project if service == "git-receive-pack" else readable_project)(request)
    await _ensure_repository(request, project)
    repository = repositories(request).path(project.id)
    async with smart_http.info_refs(repository, service, request.headers.get("Git-Protocol")) as chunks:
        return await streamed(request, smart_http.content_type(service, "advertisement"), chunks)


async def upload_pack(request: web.Request) -> web.StreamResponse:
    """Clone and fetch."""
    project, _ = await readable_project(request)
    await _ensure_repository(request, project)
    repository = repositories(request).path(project.id)
    body = request_body.pieces(request)
    async with smart_http.upload_pack(repository, body, request.headers.get("Git-Protocol")) as chunks:
        return await streamed(request, smart_http.content_type("git-upload-pack", "result"), chunks)


async def receive_pack(request: web.Request) -> web.StreamResponse:
    """Push. Its consequences are decided before git's last word reaches the client."""
    project, who = await writable_project(request)
    await _ensure_repository(request, project)
    async with receiving(request, project, who) as chunks:
        return await streamed(request, smart_http.content_type("git-receive-pack", "result"), chunks)


async def _ensure_repository(request: web.Request, project: Project) -> None:
    """Repositories are made when git first asks for them."""
    if not await ensured(request, project):
        raise gone()
