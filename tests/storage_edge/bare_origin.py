"""An origin of which each test says what it sends when, byte by byte."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

import attrs

from common.concurrency import end


@attrs.frozen
class Wire:
    """One connection of the edge to the origin."""

    writer: asyncio.StreamWriter
    #: The client has the head of the answer.
    delivered: asyncio.Event

    async def send(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    def reset(self) -> None:
        plug = self.writer.transport.get_extra_info("socket")
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


#: Answers one request; whether the connection goes on.
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
    """Listens on a port of this machine."""
    bare = BareOrigin()
    server = await asyncio.start_server(bare.handle, "127.0.0.1", 0)
    bare.port = server.sockets[0].getsockname()[1]
    try:
        yield bare
    finally:
        server.close()
        await end(*filter(None, bare.tasks))


def says(*pieces: bytes, then: str = "waits") -> Behaviour:
    """Answers with these bytes, and then waits for the next request, closes, breaks or resets when the client has part
    of it, or repeats the last piece.
    """

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
