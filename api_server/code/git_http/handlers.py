"""`/<path>.git/info/refs`, `/git-upload-pack` and `/git-receive-pack` (gitprotocol-http(5))."""

from functools import partial
from typing import NoReturn

from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH, PROJECT_PATH
from api_server.code.git_http import judgement, places
from api_server.code.git_http.access import gone, readable_project, writable_project
from api_server.code.git_http.bodies import begun
from api_server.code.git_http.places import PLACES
from api_server.code.git_http.streaming import streamed
from api_server.code.repository.access import ensured
from api_server.git import smart_http
from api_server.git.receive_pack import read_push, receive_pack
from api_server.git.received_push import MalformedPushError
from api_server.git.repositories import repositories
from api_server.git.smart_http import Bounds, Service
from api_server.namespaces.resources import Project
from api_server.web import context, request_data

_SERVICES: tuple[Service, ...] = ("git-upload-pack", "git-receive-pack")


def setup(app: web.Application) -> None:
    repository = f"/{{path:{PROJECT_PATH}}}.git"
    app.router.add_get(f"{repository}/info/refs", info_refs)
    app.router.add_post(f"{repository}/git-upload-pack", fetch)
    app.router.add_post(f"{repository}/git-receive-pack", push)
    app.router.add_route(
        "*", f"/{{path:{FULL_PATH}(?<!\\.git)}}/info/{{rest:refs|lfs/[a-z0-9/]+}}", to_full_address
    )
    places.setup(app)
    judgement.setup(app)


async def info_refs(request: web.Request) -> web.StreamResponse:
    """What there is to fetch, or to push onto."""
    service = next((known for known in _SERVICES if known == request.query.get("service")), None)
    if service is None:
        raise web.HTTPForbidden(text="Only git's smart protocol is spoken here: upgrade your git.\n")
    project, who = await (writable_project if service == "git-receive-pack" else readable_project)(request)
    await _ensure_repository(request, project)
    repository, protocol = repositories(request).path(project.id), request.headers.get("Git-Protocol")
    async with (
        request.config_dict[PLACES].place(request, project, who),
        smart_http.info_refs(repository, service, protocol, _bounds(request)) as chunks,
    ):
        return await streamed(request, smart_http.content_type(service, "advertisement"), chunks)


async def to_full_address(request: web.Request) -> NoReturn:
    """Send clients on that leave out the `.git`, whether there is such a project or not."""
    path, rest = request.match_info["path"], request.match_info["rest"]
    query = request.rel_url.raw_query_string
    location = f"/{path}.git/info/{rest}{query and f'?{query}'}"
    if request.method in ("GET", "HEAD"):
        raise web.HTTPMovedPermanently(location)
    raise web.HTTPPermanentRedirect(location)


async def fetch(request: web.Request) -> web.StreamResponse:
    """Clone and fetch. git is started when there is something for it to do."""
    project, who = await readable_project(request)
    await _ensure_repository(request, project)
    body = await begun(request_data.pieces(request))
    repository, protocol = repositories(request).path(project.id), request.headers.get("Git-Protocol")
    async with (
        request.config_dict[PLACES].place(request, project, who),
        smart_http.upload_pack(repository, body, protocol, _bounds(request)) as chunks,
    ):
        return await streamed(request, smart_http.content_type("git-upload-pack", "result"), chunks)


async def push(request: web.Request) -> web.StreamResponse:
    """Push. Its consequences are decided before git's last word reaches the client."""
    project, who = await writable_project(request)
    await _ensure_repository(request, project)
    bounds = _bounds(request)
    try:
        pushed = await read_push(request_data.pieces(request), bounds)
    except MalformedPushError as problem:
        raise web.HTTPBadRequest(text=f"{problem}\n") from None
    judge = partial(judgement.judged, request, project, who, pushed.remarks)
    async with (
        request.config_dict[PLACES].place(request, project, who),
        receive_pack(repositories(request).path(project.id), pushed, judge, bounds) as chunks,
    ):
        return await streamed(request, smart_http.content_type("git-receive-pack", "result"), chunks)


def _bounds(request: web.Request) -> Bounds:
    settings = context.settings(request)
    return Bounds(
        time_limit=settings.git_time_limit, pack_bytes=settings.push_limit, updates=settings.push_refs_limit
    )


async def _ensure_repository(request: web.Request, project: Project) -> None:
    """Repositories are made when git first asks for them."""
    if not await ensured(request, project):
        raise gone()
