"""Bodies that flow, as chunks of bytes."""

from collections.abc import AsyncIterator


async def rejoined(head: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """All of a body of which the `head` has been read."""
    yield head
    async for piece in rest:
        yield piece
