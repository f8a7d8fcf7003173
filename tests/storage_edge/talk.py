"""Connections of which the test says what is sent when."""

import asyncio
import contextlib
import re
import socket
from collections.abc import AsyncIterator

import attrs

RAW = "/group/app/-/raw/main/README.md"


def head(target: str = RAW, *fields: str, method: str = "GET") -> bytes:
    """A request without a body."""
    return "\r\n".join([f"{method} {target} HTTP/1.1", "Host: x", *fields, "", ""]).encode()


@attrs.frozen
class Talk:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self) -> bytes:
        """The next answer, head and body."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5)
        length = re.search(rb"\r\nContent-Length: (\d+)\r\n", head)
        bodiless = head.startswith(b"HTTP/1.1 304")
        return head + await asyncio.wait_for(
            self.reader.readexactly(0 if bodiless or length is None else int(length[1])), 5
        )

    async def ask(self, head: bytes) -> bytes:
        self.writer.write(head)
        return await self.answer()


@contextlib.asynccontextmanager
async def talk(port: int, *, takes_little: bool = False) -> AsyncIterator[Talk]:
    """A connection to a port of this machine; with `takes_little` the system takes little that is not read."""
    plug = socket.socket()
    if takes_little:
        plug.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    plug.setblocking(False)
    await asyncio.get_running_loop().sock_connect(plug, ("127.0.0.1", port))
    reader, writer = await asyncio.open_connection(sock=plug, limit=10_000 if takes_little else 2**16)
    yield Talk(reader, writer)
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
