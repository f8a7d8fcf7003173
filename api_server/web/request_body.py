"""Bodies of requests: asked for when somebody wants them, decoded, and bounded one by one and all together.

aiohttp's own ways to a body (`request.content`, `read`, `post`) know neither Content-Encoding nor these bounds.
"""

import asyncio
import zlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api_server.web.errors import BodyRefused
from common.client_address import one_client
from common.connections import ask_for_body

#: The `wbits` of zlib by Content-Encoding (RFC 9110 section 8.4.1).
_CODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}
#: Most bytes that are decoded in one step, so that nobody waits for long.
_STEP = 256 * 1024


class HeldBodies:
    """How many bytes of bodies are in memory: of all together, and of one client address."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most = most
        self._most_of_one = most_of_one
        self.held = 0
        self._held_by: Counter[str] = Counter()

    def take(self, client: str, size: int) -> None:
        """Counts `size` bytes more. Raises 503 where they do not fit, and 429 where the client has too many already."""
        if self.held + size > self._most:
            raise BodyRefused(503, "The server holds too many request bodies; try again later.", retry=True)
        if self._held_by[client] + size > self._most_of_one:
            raise BodyRefused(429, "Too many request bodies at once; try again later.", retry=True)
        self.held += size
        self._held_by[client] += size

    def give_back(self, client: str, size: int) -> None:
        self.held -= size
        self._held_by[client] -= size
        if not self._held_by[client]:
            del self._held_by[client]


class _Share:
    """What one request holds of `HeldBodies`."""

    def __init__(self, held: HeldBodies, client: str) -> None:
        self._held = held
        self._client = client
        self._size = 0

    def take(self, size: int) -> None:
        self._held.take(self._client, size)
        self._size += size

    def close(self) -> None:
        if self._size:
            self._held.give_back(self._client, self._size)


HELD = web.AppKey("held_bodies", HeldBodies)
#: Of a request whose body somebody else hears too, piece by piece, as it is read.
HEARD: web.RequestKey[Callable[[bytes], None]] = web.RequestKey("heard", Callable[[bytes], None])  # type: ignore[arg-type]
_SHARE = web.RequestKey("share", _Share)
_READ = web.RequestKey("read", bytes)


@web.middleware
async def bounded_bodies(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets go of a request's body in memory when it is answered."""
    if not request.body_exists:
        return await handler(request)
    share = request[_SHARE] = _Share(request.match_info.apps[0][HELD], one_client(request.remote or ""))
    try:
        return await handler(request)
    finally:
        share.close()


async def read(request: web.Request, limit: int) -> bytes:
    """All of the body, decoded. Raises 413 above `limit` bytes, and what `pieces` and `HeldBodies` raise."""
    if _READ in request:
        return request[_READ]
    _check_length(request, limit)
    body = bytearray()
    async for piece in pieces(request):
        if len(body) + len(piece) > limit:
            raise web.HTTPRequestEntityTooLarge(limit)
        request[_SHARE].take(len(piece))
        body += piece
    request[_READ] = bytes(body)
    return request[_READ]


def refuse_encoded_parts(request: web.Request) -> None:
    """Raises 415 for a body of several parts that is encoded."""
    if hdrs.CONTENT_ENCODING in request.headers:
        raise BodyRefused(415, "A body of several parts cannot have a Content-Encoding.")


def _check_length(request: web.Request, limit: int) -> None:
    """Raises 413 where the head says already that the body has more than `limit` bytes."""
    length = request.content_length
    if length is not None and length > limit:
        raise web.HTTPRequestEntityTooLarge(limit, length)


def pieces(request: web.Request) -> AsyncIterator[bytes]:
    """The body as it comes, decoded, in pieces of some hundred KiB at most.

    Raises 415 for a Content-Encoding that is not known here, 400 for a body that is not what it says, and 408 where the
    client stops sending.
    """
    hear = request.get(HEARD)
    return _decoded(request) if hear is None else _heard(_decoded(request), hear)


async def _heard(coming: AsyncIterator[bytes], hear: Callable[[bytes], None]) -> AsyncIterator[bytes]:
    async for piece in coming:
        hear(piece)
        yield piece


async def _decoded(request: web.Request) -> AsyncIterator[bytes]:
    coding = ", ".join(request.headers.getall(hdrs.CONTENT_ENCODING, ())).strip().lower() or "identity"
    if coding != "identity" and coding not in _CODINGS:
        raise BodyRefused(415, "The Content-Encoding is not supported; gzip and deflate are.")
    await ask_for_body(request)
    if coding == "identity":
        while piece := await request.content.readany():
            yield piece
        return
    decoder = _Decoder(coding)
    while piece := await request.content.readany():
        for decoded in decoder.decode(piece):
            yield decoded
            await asyncio.sleep(0)  # a little that was sent can be much
    decoder.end()


class _Decoder:
    """Undoes one Content-Encoding, in steps. Raises 400 for what has not been encoded so, or ends too early, and for
    several gzips one behind the other, which no client sends and which are slow to take apart."""

    def __init__(self, coding: str) -> None:
        self._coding = coding
        self._undo = zlib.decompressobj(_CODINGS[coding])
        self._begun = False

    def decode(self, piece: bytes) -> Iterator[bytes]:
        while piece:
            if self._undo.eof:
                raise self._broken()
            if not self._begun and self._coding == "deflate" and piece[0] & 0x0F != 8:
                self._undo = zlib.decompressobj(-15)  # without zlib's frame, as many clients have it
            self._begun = True
            try:
                decoded = self._undo.decompress(piece, _STEP)
            except zlib.error:
                raise self._broken() from None
            piece = self._undo.unconsumed_tail or self._undo.unused_data
            if decoded:
                yield decoded

    def end(self) -> None:
        """Raises 400 where more had to come. Nothing at all is nothing encoded."""
        if self._begun and not self._undo.eof:
            raise self._broken()

    def _broken(self) -> BodyRefused:
        return BodyRefused(400, f"The body is not valid {self._coding}.")
