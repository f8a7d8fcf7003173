"""What surrounds the service under test: an object store, receivers, proxies, small disks, a name server."""

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import struct
import subprocess
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import cast
from urllib.parse import quote

import aiohttp
import attrs
from aiohttp import web

from forgelet.local.processes import Child
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http
from tests.api_server.status_checks.receiver import Behaviour, Receiver, answer, reset, running_receiver
from tests.support import pgbouncer, standbys
from tests.support.ports import free_port, is_listened_on

PIECE = 64 * 2**10


@attrs.define
class Proxy:
    """Listens on a port of loopback for as long as a `with` block lasts. The switches act on connections there are,
    and on those to come."""

    port: int
    #: Path of a Unix socket, or a port of loopback; asked for each connection.
    upstream: Callable[[], str | int]
    #: Cuts each connection in the middle of the next thing that its client says.
    cutting: bool = False
    #: Closes each connection as soon as it is made.
    refusing: bool = False
    #: Is said to each client in place of what the other side would have said.
    instead: bytes = b""
    #: Seconds that each piece waits, either way.
    delay: float = 0.0
    _writers: set[asyncio.StreamWriter] = attrs.field(factory=set, init=False)
    _tasks: set["asyncio.Task[None]"] = attrs.field(factory=set, init=False)
    _server: asyncio.Server | None = attrs.field(default=None, init=False)

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def drop(self) -> None:
        """Reset all connections at once."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._writers.add(writer)
        try:
            await self._through(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._writers.discard(writer)
            self._tasks.discard(task)

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing:
            return
        to = self.upstream()
        if isinstance(to, str):
            behind, before = await asyncio.open_unix_connection(to)
        else:
            behind, before = await asyncio.open_connection("127.0.0.1", to)
        self._writers.add(before)
        there = asyncio.create_task(self._forward(reader, before, asked_by=writer))
        back = asyncio.create_task(self._forward(behind, writer))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (there, back):
                task.cancel()
            await asyncio.wait({there, back})
            before.transport.abort()
            self._writers.discard(before)

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked_by: asyncio.StreamWriter | None = None,
    ) -> None:
        """Forward until either end is closed. `asked_by`: this is the client's direction, and that its other one."""
        with contextlib.suppress(OSError):
            while piece := await reader.read(PIECE):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if asked_by is not None and self.instead:
                    asked_by.write(self.instead)
                    await asked_by.drain()
                    return
                if asked_by is not None and self.cutting:
                    writer.write(piece[: len(piece) // 2])
                    await writer.drain()
                    return
                writer.write(piece)
                await writer.drain()


def balanced(ports: Sequence[int]) -> Callable[[], int]:
    """Return what chooses, in turn, one of these ports that somebody listens on, as balancers do."""
    turns = itertools.cycle(ports)

    def upstream() -> int:
        return next(filter(is_listened_on, itertools.islice(turns, len(ports))), ports[0])

    return upstream


BUCKET = "objects"
OBJECT_STORE_PROGRAM = "moto_server"
OBJECT_STORE_SECONDS = 30.0


def has_object_store() -> bool:
    return shutil.which(OBJECT_STORE_PROGRAM) is not None


@contextlib.asynccontextmanager
async def object_store(logs: Path) -> AsyncIterator[Proxy]:
    """Run S3 with an empty bucket, which is not on disk and end with the block; yield the proxy before it."""
    port = free_port()
    child = Child(
        OBJECT_STORE_PROGRAM, [OBJECT_STORE_PROGRAM, "-H", "127.0.0.1", "-p", str(port)], log=logs / "s3.log"
    )
    try:
        async with Proxy(free_port(), lambda: port) as proxy, aiohttp.ClientSession() as http:
            await _made(http, f"http://127.0.0.1:{proxy.port}/{BUCKET}")
            yield proxy
    finally:
        child.stop()


async def _made(http: aiohttp.ClientSession, bucket: str) -> None:
    async with asyncio.timeout(OBJECT_STORE_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.put(bucket) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


def object_store_settings(proxy: Proxy) -> dict[str, str]:
    """Return the environment of an API server that keeps its objects there."""
    return {
        "FORGELET_API_OBJECT_STORE_URL": f"s3://{BUCKET}",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "faults",
        "AWS_SECRET_ACCESS_KEY": "faults",
    }


#: Longer than anybody waits for an answer here.
HANG_SECONDS = 30.0


async def hang(_: web.Request) -> web.StreamResponse:
    """Answer nothing for a long time, and then 504."""
    await asyncio.sleep(HANG_SECONDS)
    return web.Response(status=504)


async def garbage(request: web.Request) -> web.StreamResponse:
    """Answer something that is no HTTP."""
    assert request.transport is not None
    request.transport.write(b"\x16\x03\x01\x00\xee nothing that anybody understands\r\n\r\n")
    request.transport.close()
    return web.Response()


MISBEHAVIOUR: dict[str, Behaviour] = {
    "hangs": hang,
    "500": answer(500, "no"),
    "resets": reset,
    "garbage": garbage,
}


@attrs.frozen
class Outside:
    """`receiver` takes deliveries at `receiver.url`; `mirrored` has the targets' repositories."""

    receiver: Receiver
    #: Ids of deliveries that have been answered with 204.
    delivered: set[str]
    target: HttpTarget
    target_port: int
    mirrored: Path
    #: The host in URLs.
    host: str

    @property
    def receiver_url(self) -> str:
        return self.receiver.url.replace("127.0.0.1", self.host)

    def new_target(self, name: str) -> str:
        """Make an empty repository; return its URL with credentials."""
        BareRepository.create(self.mirrored / f"{name}.git")
        return f"http://{USER}:{quote(PASSWORD, safe='')}@{self.host}:{self.target_port}/{name}.git"

    @contextlib.contextmanager
    def misbehaving(self, part: str, how: str) -> Iterator[None]:
        """Have the receiver, or the target, misbehave with each request until the block ends."""
        if part == "receiver":
            before, self.receiver.answers = self.receiver.answers, [MISBEHAVIOUR[how]]
        else:
            self.target.before = MISBEHAVIOUR[how]
        try:
            yield
        finally:
            if part == "receiver":
                self.receiver.answers = before
            self.target.before = None


@contextlib.asynccontextmanager
async def running_outside(host: str) -> AsyncIterator[Outside]:
    """Run the receiver and the target on ports of loopback, by this name of it."""
    with tempfile.TemporaryDirectory(prefix="fgl-faults-targets-") as folder:
        target = HttpTarget(Path(folder))
        delivered: set[str] = set()

        async def take(request: web.Request) -> web.StreamResponse:
            delivered.add(request.headers["webhook-id"])
            return web.Response(status=204)

        async with running_receiver() as receiver, serve_http(target) as server:
            receiver.answers = [take]
            assert server.port is not None
            yield Outside(receiver, delivered, target, server.port, Path(folder), host)


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
        """Return why there can be no such service on this machine, or None."""
        if self.s3 and not has_object_store():
            return f"needs {OBJECT_STORE_PROGRAM} on PATH (pip install 'moto[server]')"
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
    """Mount a disk of so many bytes at `folder`, with owner and mode of `like`; do nothing if we are not root."""
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
    """Fill the disk of `folder`, which has to be one of our own, until the block ends."""
    if not folder.is_mount():
        raise RuntimeError(f"{folder} is no disk of its own.")
    filler = folder / FILLER
    try:
        fill(filler)
        yield
    finally:
        filler.unlink(missing_ok=True)


def fill(filler: Path) -> None:
    """Take what is free now; what others free meanwhile can be taken by another call."""
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
    """Return whether a process can be given a name server of its own: as root, by a mount namespace."""
    return os.geteuid() == 0 and shutil.which("unshare") is not None


@attrs.define
class NameServer(asyncio.DatagramProtocol):
    """A name server that says of every name that it is this machine."""

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
        """Return the command for which this is the only name server; its process is the same one."""
        configuration = folder / "resolv.conf"
        configuration.write_text(f"nameserver {self.address}\noptions timeout:2 attempts:2\n")
        mounted = f"mount --bind '{configuration}' /etc/resolv.conf && exec \"$@\""
        return ["unshare", "--mount", "sh", "-c", mounted, "sh", *command]

    def answer(self, question: bytes) -> bytes:
        """Return the question again, and an address where one was asked for (RFC 1035 4.1)."""
        asked = question[12 : question.index(b"\0", 12) + 5]
        kind = struct.unpack(">H", asked[-4:-2])[0]
        address = b"" if self.failing or kind != _A else bytes(map(int, self.says.split(".")))
        flags = 0x8180 | (_SERVFAIL if self.failing else 0)
        head = question[:2] + struct.pack(">5H", flags, 1, 1 if address else 0, 0, 0)
        record = struct.pack(">3HIH", 0xC00C, _A, _IN, 0, 4) + address if address else b""
        return head + asked + record


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[NameServer | None]:
    """Run a name server; yield None if no process could be made to ask it."""
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
