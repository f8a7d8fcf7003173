"""Git over HTTP: clone, fetch and push at `/<path>.git` (gitprotocol-http(5)), and `/<path>?go-get=1`."""

import re
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager, suppress
from functools import partial
from html import escape
from itertools import accumulate
from typing import NoReturn

from aiohttp import web
from yarl import URL

from api_server.accounts.path_rules import FULL_PATH, PROJECT_PATH
from api_server.code import push_judgement
from api_server.code.git_access import git_caller, project_not_found, readable_project, writable_project
from api_server.code.reading import ensured
from api_server.git import smart_http
from api_server.git.errors import GitError, classified_errors
from api_server.git.receive_pack import read_push, receive_pack
from api_server.git.received_push import MalformedPushError
from api_server.git.repositories import REPOSITORIES
from api_server.git.smart_http import Bounds, MalformedRequestError, Service
from api_server.namespaces.access import visible_project
from api_server.namespaces.paths import MAX_SEGMENTS
from api_server.namespaces.resources import Project
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.web import context, request_data
from api_server.web.auth import Actor, Anonymous
from api_server.web.context import SERVICES, with_services
from common.concurrency import ConcurrencyLimiter, TooBusy
from common.http_fields import rejoined

#: Bytes of a fetch request after which git starts, even if more of the request follows.
HEAD_BYTES = 256 * 1024
#: Maximum number of bytes, decompressed, in which a fetch names the commits that it wants and has. Git names some
#: 16,000 commits of 50 bytes each.
FETCH_BYTES = 32 * 2**20


async def fetch_body(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Return the body of a fetch once all of it or `HEAD_BYTES` have arrived. Reading it raises 413 above
    `FETCH_BYTES`."""
    head = bytearray()
    while len(head) < HEAD_BYTES and (chunk := await anext(chunks, None)) is not None:
        head += chunk
    return _bounded(rejoined(bytes(head), chunks))


async def _bounded(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    size = 0
    async for chunk in body:
        size += len(chunk)
        if size > FETCH_BYTES:
            raise web.HTTPRequestEntityTooLarge(FETCH_BYTES, size)
        yield chunk


async def streamed(
    request: web.Request, content_type: str, chunks: AsyncIterator[bytes]
) -> web.StreamResponse:
    """Answer with git's output. The status is sent after the first chunk, because git may fail before it. Raise
    `Unavailable`."""
    try:
        with classified_errors():
            first = await anext(chunks, b"")
    except MalformedRequestError as problem:
        raise web.HTTPBadRequest(text=f"{problem}\n") from problem
    except GitError as problem:
        raise web.HTTPInternalServerError(text="git failed; the reason is in the server's log\n") from problem
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    await response.prepare(request)
    try:
        await response.write(first)
        async for chunk in chunks:
            await response.write(chunk)
    except web.HTTPException as refusal:  # the status has been sent already
        raise ConnectionResetError from refusal
    await response.write_eof()
    return response


#: Seconds after which a client that got no slot is asked to try again.
SLOT_RETRY_AFTER = 30
#: Maximum number of requests that wait for a slot.
SLOT_QUEUE = 200

_BUSY = "The server has too many git requests of yours or for this project at the moment, try again in a minute.\n"


class GitSlots:
    """Limits for concurrent git processes. Anonymous callers have limits of their own, so that they do not block
    users."""

    def __init__(self, settings: Settings) -> None:
        each, timeout = settings.git_processes_each, settings.git_queue_timeout
        self._users = ConcurrencyLimiter(settings.git_processes, each, timeout=timeout, queue=SLOT_QUEUE)
        self._anonymous = ConcurrencyLimiter(
            settings.git_anonymous_processes, each, timeout=timeout, queue=SLOT_QUEUE
        )

    @asynccontextmanager
    async def slot(self, project: Project, actor: Actor | Anonymous) -> AsyncIterator[None]:
        """Hold a slot during the block. Raise 429."""
        keys: tuple[Hashable, ...] = (("project", project.id), ("address", actor.address))
        limiter = self._anonymous
        if isinstance(actor, Actor):
            keys, limiter = (("project", project.id), ("user", actor.user_id)), self._users
        try:
            async with limiter.slot(*keys):
                yield
        except TooBusy:
            headers = {"Retry-After": str(SLOT_RETRY_AFTER)}
            raise web.HTTPTooManyRequests(text=_BUSY, headers=headers) from None


GIT_SLOTS = Key[GitSlots]("git_slots")


_FULL_PATH = re.compile(FULL_PATH)


def is_go_get(request: web.Request) -> bool:
    """Return whether the request comes from the `go` command."""
    return request.method in ("GET", "HEAD") and request.query.get("go-get") == "1"


async def answer_go_get(request: web.Request, path: str, outermost: str) -> web.Response:
    """Answer with the project with the longest path that begins `path` and that the caller can see, as GitLab does.

    If there is none, answer with `outermost`, which may be private or not exist: the answer does not say which.
    """
    services = context.services(request)
    project_path = await _project_of_import(request, services, path) or outermost
    base_url = services.settings.base_url
    prefix = escape(f"{URL(base_url).host_port_subcomponent}/{project_path}")  # no import path has a port
    return web.Response(
        text=f'<html><head><meta name="go-import" content="{prefix} git {escape(base_url)}/{project_path}.git"></head>'
        f"<body>go get {prefix}</body></html>\n",
        content_type="text/html",
        headers={"Cache-Control": "no-store"},
    )


async def _project_of_import(request: web.Request, services: Services, path: str) -> str | None:
    actor: Actor | Anonymous = Anonymous()
    with suppress(web.HTTPException):  # callers with invalid credentials count as anonymous
        actor = await git_caller(request, services)
    beginnings = list(accumulate(path.split("/")[:MAX_SEGMENTS], "{}/{}".format))[1:]
    for beginning in filter(_FULL_PATH.fullmatch, reversed(beginnings)):
        project = await visible_project(
            services,
            beginning,
            user_id=actor.user_id,
            admin=actor.admin,
            job_project_id=actor.job_project_id,
        )
        if project is not None:
            return beginning
    return None


_SERVICES: tuple[Service, ...] = ("git-upload-pack", "git-receive-pack")


def setup(app: web.Application) -> None:
    services = app[SERVICES]
    repository = f"/{{path:{PROJECT_PATH}}}.git"
    app.router.add_get(f"{repository}/info/refs", with_services(info_refs))
    app.router.add_post(f"{repository}/git-upload-pack", with_services(fetch))
    app.router.add_post(f"{repository}/git-receive-pack", with_services(push))
    app.router.add_route(
        "*", f"/{{path:{FULL_PATH}(?<!\\.git)}}/info/{{rest:refs|lfs/[a-z0-9/]+}}", to_full_address
    )
    services[GIT_SLOTS] = GitSlots(services.settings)
    push_judgement.setup(services)


async def info_refs(request: web.Request, services: Services) -> web.StreamResponse:
    """List the refs to fetch or to push to."""
    service = next((name for name in _SERVICES if name == request.query.get("service")), None)
    if service is None:
        raise web.HTTPForbidden(text="Only git's smart protocol is spoken here: upgrade your git.\n")
    find = writable_project if service == "git-receive-pack" else readable_project
    project, actor = await find(request, services)
    await _ensure_repository(services, project)
    repository, protocol = (
        services[REPOSITORIES].path(project.id),
        request.headers.get("Git-Protocol"),
    )
    async with (
        services[GIT_SLOTS].slot(project, actor),
        smart_http.info_refs(repository, service, protocol, _bounds(services)) as chunks,
    ):
        return await streamed(request, smart_http.content_type(service, "advertisement"), chunks)


async def to_full_address(request: web.Request) -> NoReturn:
    """Redirect clients that leave out `.git`, even if the project does not exist."""
    path, rest = request.match_info["path"], request.match_info["rest"]
    query = request.rel_url.raw_query_string
    location = f"/{path}.git/info/{rest}{query and f'?{query}'}"
    if request.method in ("GET", "HEAD"):
        raise web.HTTPMovedPermanently(location)
    raise web.HTTPPermanentRedirect(location)


async def fetch(request: web.Request, services: Services) -> web.StreamResponse:
    """Serve a clone or fetch. git starts once the request has arrived."""
    project, actor = await readable_project(request, services)
    await _ensure_repository(services, project)
    body = await fetch_body(request_data.chunks(request))
    repository, protocol = (
        services[REPOSITORIES].path(project.id),
        request.headers.get("Git-Protocol"),
    )
    async with (
        services[GIT_SLOTS].slot(project, actor),
        smart_http.upload_pack(repository, body, protocol, _bounds(services)) as chunks,
    ):
        return await streamed(request, smart_http.content_type("git-upload-pack", "result"), chunks)


async def push(request: web.Request, services: Services) -> web.StreamResponse:
    """Serve a push. Its consequences are stored before the end of git's answer reaches the client."""
    project, actor = await writable_project(request, services)
    bounds = _bounds(services)
    await _ensure_repository(services, project)
    try:
        pushed = await read_push(request_data.chunks(request), bounds)
    except MalformedPushError as problem:
        raise web.HTTPBadRequest(text=f"{problem}\n") from None
    judge = partial(push_judgement.judged, services, project, actor, pushed.remarks)
    async with (
        services[GIT_SLOTS].slot(project, actor),
        receive_pack(services[REPOSITORIES].path(project.id), pushed, judge, bounds) as chunks,
    ):
        return await streamed(request, smart_http.content_type("git-receive-pack", "result"), chunks)


def _bounds(services: Services) -> Bounds:
    settings = services.settings
    return Bounds(
        time_limit=settings.git_time_limit, pack_bytes=settings.push_limit, updates=settings.push_refs_limit
    )


async def _ensure_repository(services: Services, project: Project) -> None:
    """Create the repository on git's first request. Raise 404 if the project no longer exists."""
    if not await ensured(services, project):
        raise project_not_found()
