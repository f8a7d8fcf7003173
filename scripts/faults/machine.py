"""What a run needs of the machine: small disks, a name server, and the shapes of a service."""

import asyncio
import contextlib
import os
import random
import shutil
import struct
import subprocess
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import cast

import attrs

from scripts.faults import outside
from tests.support import pgbouncer, standbys


@attrs.frozen
class Shape:
    """How many API servers and edges there are, and what else."""

    servers: int = 1
    edges: int = 1
    #: PgBouncer, in transaction mode, between the API servers and PostgreSQL.
    pooled: bool = False
    #: A standby follows PostgreSQL: commits wait for it, and the API servers read from it.
    replicated: bool = False
    #: Objects are in an S3 of moto's.
    s3: bool = False

    @property
    def api_names(self) -> Sequence[str]:
        return _numbered("api", self.servers)

    @property
    def edge_names(self) -> Sequence[str]:
        return _numbered("edge", self.edges)

    def hindrance(self) -> str | None:
        """Why there can be no such service on this machine; None where there can."""
        if self.s3 and not outside.is_there():
            return f"needs {outside.PROGRAM} on PATH (pip install 'moto[server]')"
        if self.pooled and not pgbouncer.program():
            return "needs PgBouncer (Debian: apt-get install pgbouncer)"
        if self.replicated and not standbys.program():
            return "needs pg_basebackup (Debian: apt-get install postgresql)"
        return None

    def __str__(self) -> str:
        parts = {
            "PostgreSQL": True,
            "a replica": self.replicated,
            "PgBouncer": self.pooled,
            "S3": self.s3,
            _counted(self.servers, "API server"): True,
            _counted(self.edges, "storage edge"): True,
        }
        return ", ".join(part for part, is_there in parts.items() if is_there)


def _numbered(name: str, count: int) -> Sequence[str]:
    return [name, *(f"{name}-{number}" for number in range(2, count + 1))]


def _counted(count: int, what: str) -> str:
    return f"one {what}" if count == 1 else f"{count} {what}s"


ALONE = Shape()
WITH_S3 = Shape(s3=True)
FLEET = Shape(servers=2, edges=2, pooled=True, replicated=True, s3=True)


MIB = 2**20
API_SIZE = 1024 * MIB
EDGE_SIZE = 96 * MIB
POSTGRES_SIZE = 640 * MIB
#: What the API server leaves free of its disk, and the edge takes of its own.
RESERVE = 4 * MIB
EDGE_BYTES = 48 * MIB
#: Larger ones the edge keeps on disk alone.
EDGE_MEMORY_OBJECT_BYTES = MIB // 4
#: Names the file that fills a disk.
FILLER = "filler"


def can_mount() -> bool:
    return os.geteuid() == 0


@contextlib.contextmanager
def mounted(folder: Path, size: int, *, like: Path | None = None) -> Iterator[None]:
    """A disk of so many bytes at `folder`, with owner and mode of `like`; nothing where we are not root."""
    if not can_mount():
        yield
        return
    status = (like or folder).stat()
    options = f"size={size},mode={status.st_mode & 0o7777:o},uid={status.st_uid},gid={status.st_gid}"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "forgelet-faults", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def full(folder: Path) -> Iterator[None]:
    """Nothing more fits on the disk of `folder`. Only for disks of our own."""
    if not folder.is_mount():
        raise RuntimeError(f"{folder} is no disk of its own.")
    filler = folder / FILLER
    try:
        fill(filler)
        yield
    finally:
        filler.unlink(missing_ok=True)


def fill(filler: Path) -> None:
    """Takes what is free now; what others free meanwhile can be taken by another call."""
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for piece in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while shutil.disk_usage(filler.parent).free and file.write(bytes(piece)):
                    pass


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
