"""What git says while it runs, as the answer."""

import asyncio
from collections.abc import AsyncIterator

import structlog
from aiohttp import web

from api_server.git.errors import GitError
from api_server.git.smart_http import MalformedRequestError

log = structlog.stdlib.get_logger(__name__)


async def streamed(
    request: web.Request, content_type: str, chunks: AsyncIterator[bytes], patience: float
) -> web.StreamResponse:
    """The first chunk is awaited before the status is sent: git may fail without a word. A client that takes longer
    than `patience` seconds for one is cut off."""
    try:
        first = await anext(chunks, b"")
    except MalformedRequestError as problem:
        raise web.HTTPBadRequest(text=f"{problem}\n") from problem
    except GitError as problem:
        raise web.HTTPInternalServerError(text="git failed; the reason is in the server's log\n") from problem
    response = web.StreamResponse(headers={"Content-Type": content_type, "Cache-Control": "no-cache"})
    await response.prepare(request)
    try:
        await _write(request, response, first, patience)
        async for chunk in chunks:
            await _write(request, response, chunk, patience)
    except web.HTTPException as refusal:  # too late to say so
        raise ConnectionResetError from refusal
    await response.write_eof()
    return response


async def _write(request: web.Request, response: web.StreamResponse, chunk: bytes, patience: float) -> None:
    try:
        async with asyncio.timeout(patience):
            await response.write(chunk)
    except TimeoutError:
        log.info("a git client does not take its answer", path=request.path)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError from None
