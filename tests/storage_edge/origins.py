"""An origin that sends bytes as each test says."""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs
from aiohttp import web

from common.concurrency import end
from tests.storage_edge.conftest import RAW, Origin
from tests.support import wire


@attrs.frozen
class Wire:
    """One connection of the edge to the origin."""

    writer: asyncio.StreamWriter
    #: Set when the client has the head of the answer.
    delivered: asyncio.Event

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        plug = self.writer.transport.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


#: Answers one request; returns whether the connection goes on.
Behaviour = Callable[[Wire], Awaitable[bool]]


@attrs.define
class BareOrigin:
    """An origin that answers requests byte by byte as each test says, and counts them."""

    behaviour: Behaviour | None = None
    port: int = 0
    requests: int = 0
    delivered: asyncio.Event = attrs.field(factory=asyncio.Event)
    tasks: set["asyncio.Task[None] | None"] = attrs.field(factory=set)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.tasks.add(asyncio.current_task())
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError, asyncio.CancelledError):
            while await reader.readuntil(b"\r\n\r\n"):
                self.requests += 1
                assert self.behaviour is not None
                if not await self.behaviour(Wire(writer, self.delivered)):
                    break
        writer.close()


@contextlib.asynccontextmanager
async def bare_origin() -> AsyncIterator[BareOrigin]:
    """Run an origin on a port of this machine."""
    bare = BareOrigin()
    server = await asyncio.start_server(bare.handle, "127.0.0.1", 0)
    bare.port = server.sockets[0].getsockname()[1]
    try:
        yield bare
    finally:
        server.close()
        await end(*filter(None, bare.tasks))


def says(*pieces: bytes, then: str = "waits") -> Behaviour:
    """Return a behaviour that answers with these bytes, and then waits for the next request, closes, breaks or resets
    when the client has a part of it, or repeats the last piece."""

    async def behave(wire: Wire) -> bool:
        for piece in pieces:
            await wire.send(piece)
        while then == "repeats":
            await wire.send(pieces[-1])
            await asyncio.sleep(0.01)
        if then in {"breaks", "resets"} and pieces:
            await wire.delivered.wait()
        if then == "resets":
            wire.reset()
        return then == "waits"

    return behave


@attrs.define
class Project:
    """A project at the origin: its readers and its content."""

    origin: Origin
    readers: set[str] = attrs.field(factory=set)
    public: bool = False
    body: bytes = b"the plan"
    version: int = 1
    gitlab: bool = False
    sent: int = 0

    def __attrs_post_init__(self) -> None:
        self.origin.handler = self.handle

    async def handle(self, request: web.Request) -> web.Response:
        prefix = "X-Gitlab" if self.gitlab else "X-Service"
        token = request.headers.get(f"{prefix}-Static-Object-Token")
        if not self.public and token not in self.readers:
            if self.gitlab:
                sign_in = {"Location": "/users/sign_in", "Date": self.origin.date()}
                return web.Response(status=302, headers=sign_in)
            return web.Response(status=404, headers={"Date": self.origin.date()})
        tag = f'"v{self.version}"'
        visibility = "public" if self.public else "private"
        headers = {
            "ETag": tag,
            "Cache-Control": f"max-age=60, {visibility}, must-revalidate, stale-while-revalidate=60, "
            "stale-if-error=300, s-maxage=60",
            "Date": self.origin.date(),
        }
        if request.headers.get("If-None-Match") == tag:
            return web.Response(status=304, headers=headers)
        self.sent += 1
        await asyncio.sleep(0.02)
        return web.Response(body=self.body, headers=headers)


def head(target: str = RAW, *fields: str, method: str = "GET") -> bytes:
    """Return a request without a body."""
    return wire.request(method, target, *fields)


@attrs.frozen
class Talk:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self, *, to_head: bool = False) -> bytes:
        """Return the next answer, head and body; an answer to HEAD has no body."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 20)
        length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
        bodiless = to_head or head.startswith(b"HTTP/1.1 304")
        return head + await asyncio.wait_for(
            self.reader.readexactly(0 if bodiless or length is None else int(length[1])), 20
        )

    async def ask(self, head: bytes) -> bytes:
        self.writer.write(head)
        return await self.answer(to_head=head.startswith(b"HEAD "))


@contextlib.asynccontextmanager
async def talk(port: int, *, takes_little: bool = False) -> AsyncIterator[Talk]:
    """Open a connection to a port of this machine; with `takes_little` the system buffers few unread bytes."""
    async with wire.talk(port, takes_little=takes_little) as bare:
        yield Talk(bare.reader, bare.writer)
