"""`/<path>.git/info/refs`, `/git-upload-pack` and `/git-receive-pack` (gitprotocol-http(5))."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from api_server.code import refs
from api_server.code.git_http import push_rules
from api_server.code.git_http.access import readable_project, writable_project
from api_server.git import smart_http
from api_server.git.errors import GitError
from api_server.git.received_push import MalformedPushError, Push, Verdict
from api_server.git.repositories import repositories
from api_server.git.smart_http import Service
from api_server.namespaces.projects.access import Project
from api_server.outbound import edges
from api_server.web import context

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
        return await _streamed(request, smart_http.content_type(service, "advertisement"), chunks)


async def upload_pack(request: web.Request) -> web.StreamResponse:
    """Clone and fetch."""
    project, _ = await readable_project(request)
    await _ensure_repository(request, project)
    repository = repositories(request).path(project.id)
    body = request.content.iter_any()
    async with smart_http.upload_pack(repository, body, request.headers.get("Git-Protocol")) as chunks:
        return await _streamed(request, smart_http.content_type("git-upload-pack", "result"), chunks)


async def receive_pack(request: web.Request) -> web.StreamResponse:
    """Push. Its consequences are decided before git's last word reaches the client."""
    project, who = await writable_project(request)
    await _ensure_repository(request, project)
    proposed: list[Push] = []

    async def decide(push: Push) -> Verdict:
        verdict = await push_rules.verdict(context.database(request), project, push.updates)
        await refs.propose(request.config_dict, project.id, who.user_id, push)
        proposed.append(push)
        return verdict

    async def settled(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            yield chunk
        await _settle(request, project, proposed)

    try:
        repository, body = repositories(request).path(project.id), request.content.iter_any()
        async with smart_http.receive_pack(repository, body, decide) as receiving:
            content_type = smart_http.content_type("git-receive-pack", "result")
            return await _streamed(request, content_type, settled(receiving.output))
    except MalformedPushError as problem:
        raise web.HTTPBadRequest(text=f"{problem}\n") from None
    finally:
        await asyncio.shield(_settle(request, project, proposed))


async def _settle(request: web.Request, project: Project, proposed: list[Push]) -> None:
    while proposed:
        await refs.settle_push(request.config_dict, project.id, proposed.pop())
    await edges.tell_now(request)


async def _ensure_repository(request: web.Request, project: Project) -> None:
    """Repositories are made when git first asks for them."""
    await repositories(request).ensure(project.id, project.default_branch)


async def _streamed(
    request: web.Request, content_type: str, chunks: AsyncIterator[bytes]
) -> web.StreamResponse:
    """The first chunk is awaited before the status is sent: git may fail without a word."""
    try:
        first = await anext(chunks, b"")
    except GitError as problem:
        raise web.HTTPInternalServerError(text="git failed; the reason is in the server's log\n") from problem
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    await response.prepare(request)
    await response.write(first)
    async for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response
