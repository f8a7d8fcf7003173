"""What git says while it runs, as the answer."""

from collections.abc import AsyncIterator

from aiohttp import web

from api_server.git.errors import GitError, told_apart
from api_server.git.smart_http import MalformedRequestError


async def streamed(
    request: web.Request, content_type: str, chunks: AsyncIterator[bytes]
) -> web.StreamResponse:
    """The first chunk is awaited before the status is sent: git may fail without a word. Raises `Unavailable`."""
    try:
        with told_apart():
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
    except web.HTTPException as refusal:  # too late to say so
        raise ConnectionResetError from refusal
    await response.write_eof()
    return response
