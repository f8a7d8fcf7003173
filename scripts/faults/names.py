"""A name server for the service under test alone, which can be slow, silent, and lie."""

import asyncio
import contextlib
import os
import random
import shutil
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import cast

import attrs

#: The host that receivers and mirror targets have in URLs.
NAME = "outside.faults.test"
#: An address of loopback on which nothing listens.
NOBODY = "127.0.66.1"
_A, _IN, _SERVFAIL = 1, 1, 2


def can_be_asked() -> bool:
    """Whether a process can be given a name server of its own: as root, by a mount namespace."""
    return os.geteuid() == 0 and shutil.which("unshare") is not None


@attrs.define
class NameServer(asyncio.DatagramProtocol):
    """Says of every name that it is this machine."""

    #: Of loopback, so that it can have port 53 beside others.
    address: str
    #: Seconds before each answer.
    delay: float = 0.0
    silent: bool = False
    failing: bool = False
    says: str = "127.0.0.1"
    _transport: asyncio.DatagramTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        assert self._transport is not None
        if not self.silent:
            asyncio.get_running_loop().call_later(self.delay, self._transport.sendto, self.answer(data), addr)

    def command(self, folder: Path, command: Sequence[str]) -> list[str]:
        """The command, for which this is the only name server; its process is the same one."""
        configuration = folder / "resolv.conf"
        configuration.write_text(f"nameserver {self.address}\noptions timeout:2 attempts:2\n")
        mounted = f"mount --bind '{configuration}' /etc/resolv.conf && exec \"$@\""
        return ["unshare", "--mount", "sh", "-c", mounted, "sh", *command]

    def answer(self, question: bytes) -> bytes:
        """RFC 1035 4.1: the question again, and an address where one was asked for."""
        asked = question[12 : question.index(b"\0", 12) + 5]
        kind = struct.unpack(">H", asked[-4:-2])[0]
        address = b"" if self.failing or kind != _A else bytes(map(int, self.says.split(".")))
        flags = 0x8180 | (_SERVFAIL if self.failing else 0)
        head = question[:2] + struct.pack(">5H", flags, 1, 1 if address else 0, 0, 0)
        record = struct.pack(">3HIH", 0xC00C, _A, _IN, 0, 4) + address if address else b""
        return head + asked + record


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[NameServer | None]:
    """None where no process could be made to ask it."""
    if not can_be_asked():
        yield None
        return
    address = f"127.{random.randrange(1, 255)}.{random.randrange(1, 255)}.{random.randrange(1, 255)}"
    transport, server = await asyncio.get_running_loop().create_datagram_endpoint(
        lambda: NameServer(address), local_addr=(address, 53)
    )
    try:
        yield server
    finally:
        transport.close()
