"""What git says while it runs, as the answer; and a push, with all that has to happen around it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from api_server.code import refs
from api_server.code.git_http import push_rules
from api_server.git import smart_http
from api_server.git.errors import GitError
from api_server.git.received_push import MalformedPushError, Push, Verdict
from api_server.git.repositories import repositories
from api_server.namespaces.projects.project import Project
from api_server.outbound import edges
from api_server.web import context, request_body
from api_server.web.auth import Caller


async def streamed(
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


@asynccontextmanager
async def receiving(
    request: web.Request, project: Project, who: Caller
) -> AsyncIterator[AsyncIterator[bytes]]:
    """git's answer to the push in the request's body, written down before git moves anything and settled before its
    last word. Raises 400 for what is no push."""
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
        repository, body = repositories(request).path(project.id), request_body.pieces(request)
        async with smart_http.receive_pack(repository, body, decide) as chunks:
            yield settled(chunks)
    except MalformedPushError as problem:
        raise web.HTTPBadRequest(text=f"{problem}\n") from None
    finally:
        await asyncio.shield(_settle(request, project, proposed))


async def _settle(request: web.Request, project: Project, proposed: list[Push]) -> None:
    while proposed:
        await refs.settle_push(request.config_dict, project.id, proposed.pop())
    await edges.tell_now(request)
