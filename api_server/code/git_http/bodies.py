"""What git clients send, as git gets it: with bounds on how long a client is silent and how much it says."""

import asyncio
from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web

#: Of the request of a fetch: git starts when all of it is there, or this much.
HEAD_BYTES = 256 * 1024
#: All that one fetch may say of what it wants and has; decompressed. Git names some 16,000 commits of 50 bytes.
FETCH_BYTES = 32 * 2**20


async def pieces_of(request: web.Request, patience: float) -> AsyncIterator[bytes]:
    """The body as it comes. Raises 400 where it is not in its Content-Encoding, 408 after `patience` silent seconds."""
    pieces = aiter(request.content.iter_any())
    while True:
        try:
            async with asyncio.timeout(patience):
                piece = await anext(pieces, None)
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="The request has stopped in the middle.\n") from None
        except (web.RequestPayloadError, aiohttp.http_exceptions.HttpProcessingError):
            raise web.HTTPBadRequest(text="The request's body is not in its Content-Encoding.\n") from None
        if piece is None:
            return
        yield piece


async def begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The body of a fetch, once all of it is there or HEAD_BYTES. Its iterator raises 413 beyond FETCH_BYTES."""
    head = bytearray()
    while len(head) < HEAD_BYTES and (piece := await anext(pieces, None)) is not None:
        head += piece
    return _bounded(bytes(head), pieces)


async def _bounded(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    size = len(head)
    yield head
    async for piece in rest:
        size += len(piece)
        if size > FETCH_BYTES:
            raise web.HTTPRequestEntityTooLarge(FETCH_BYTES, size)
        yield piece
