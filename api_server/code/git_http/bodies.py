"""What fetching clients send, as git gets it: when it has begun, and with a bound on how much it is."""

from collections.abc import AsyncIterator

from aiohttp import web

from common.http_fields import rejoined

#: Of the request of a fetch: git starts when all of it is there, or this much.
HEAD_BYTES = 256 * 1024
#: All that one fetch may say of what it wants and has; decompressed. Git names some 16,000 commits of 50 bytes.
FETCH_BYTES = 32 * 2**20


async def begun(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The body of a fetch, once all of it is there or HEAD_BYTES. Its iterator raises 413 beyond FETCH_BYTES."""
    head = bytearray()
    while len(head) < HEAD_BYTES and (piece := await anext(pieces, None)) is not None:
        head += piece
    return _bounded(rejoined(bytes(head), pieces))


async def _bounded(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    size = 0
    async for piece in body:
        size += len(piece)
        if size > FETCH_BYTES:
            raise web.HTTPRequestEntityTooLarge(FETCH_BYTES, size)
        yield piece
