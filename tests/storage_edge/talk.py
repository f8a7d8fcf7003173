"""Connections of which the test says what is sent when."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator

import attrs

from tests.support import wire

RAW = "/group/app/-/raw/main/README.md"


def head(target: str = RAW, *fields: str, method: str = "GET") -> bytes:
    """A request without a body."""
    return wire.request(method, target, *fields)


@attrs.frozen
class Talk:
    """One connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def answer(self, *, to_head: bool = False) -> bytes:
        """The next answer, head and body, which one to a HEAD has not."""
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
    """A connection to a port of this machine; with `takes_little` the system takes little that is not read."""
    async with wire.talk(port, takes_little=takes_little) as bare:
        yield Talk(bare.reader, bare.writer)
