"""The environment of the service under test: an object store, receivers, proxies, small disks, a name server."""

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
from typing import cast
from urllib.parse import quote

import aiohttp
import attrs
from aiohttp import web

from forgelet.local.processes import Child
from scripts.harness.processes import retry_until
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http
from tests.api_server.status_checks.receiver import Behaviour, Receiver, answer, reset, running_receiver
from tests.support import pgbouncer, standbys
from tests.support.ports import free_port, is_listened_on

PIECE = 64 * 2**10


@attrs.define
class Proxy:
    """A proxy that listens on a port of loopback for the duration of a `with` block. Its switches act on open and on
    future connections."""

    port: int
    #: Path of a Unix socket, or a port of loopback; asked for each connection.
    upstream: Callable[[], str | int]
    #: Whether each connection is cut in the middle of the next piece that its client sends.
    cutting: bool = False
    #: Whether each connection is closed as soon as it is opened.
    refusing: bool = False
    #: The answer to each client instead of the one of the other side.
    instead: bytes = b""
    #: Seconds of delay for each piece in both directions.
    delay: float = 0.0
    _connections: set["asyncio.Task[None]"] = attrs.field(factory=set, init=False)
    _server: asyncio.Server | None = attrs.field(default=None, init=False)

    async def __aenter__(self) -> "Proxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.drop()
        if self._connections:
            await asyncio.wait(self._connections)

    def drop(self) -> None:
        """Reset all connections at once."""
        for connection in self._connections:
            connection.cancel()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            if not self.refusing:
                await self._through(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.transport.abort()
            self._connections.discard(task)

    async def _through(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward both ways until either end is closed."""
        to = self.upstream()
        if isinstance(to, str):
            behind, before = await asyncio.open_unix_connection(to)
        else:
            behind, before = await asyncio.open_connection("127.0.0.1", to)
        there = asyncio.create_task(self._forward(reader, before, asked_by=writer))
        back = asyncio.create_task(self._forward(behind, writer))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            there.cancel()
            back.cancel()
            before.transport.abort()

    async def _forward(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        asked_by: asyncio.StreamWriter | None = None,
    ) -> None:
        """Forward until either end is closed. In the client's direction, `asked_by` is the writer of the other
        direction."""
        with contextlib.suppress(OSError):
            while chunk := await reader.read(PIECE):
                if self.delay:
                    await asyncio.sleep(self.delay)
                if asked_by is not None and self.instead:
                    asked_by.write(self.instead)
                    await asked_by.drain()
                    return
                is_cut = asked_by is not None and self.cutting
                writer.write(chunk[: len(chunk) // 2] if is_cut else chunk)
                await writer.drain()
                if is_cut:
                    return


def balanced(ports: Sequence[int]) -> Callable[[], int]:
    """Return a function that chooses, in turn, one of these ports on which a server listens, as balancers do."""
    turns = itertools.cycle(ports)

    def upstream() -> int:
        return next(filter(is_listened_on, itertools.islice(turns, len(ports))), ports[0])

    return upstream


BUCKET = "objects"
OBJECT_STORE_PROGRAM = "moto_server"
OBJECT_STORE_SECONDS = 30.0


@contextlib.asynccontextmanager
async def object_store(logs: Path) -> AsyncIterator[Proxy]:
    """Run S3 with an empty bucket in memory for the duration of the block; yield the proxy before it."""
    port = free_port()
    child = Child(
        OBJECT_STORE_PROGRAM, [OBJECT_STORE_PROGRAM, "-H", "127.0.0.1", "-p", str(port)], log=logs / "s3.log"
    )
    try:
        async with Proxy(free_port(), lambda: port) as proxy, aiohttp.ClientSession() as http:
            bucket = f"http://127.0.0.1:{proxy.port}/{BUCKET}"
            if not await retry_until(lambda: _create_bucket(http, bucket), OBJECT_STORE_SECONDS, pause=0.1):
                raise RuntimeError(f"S3 did not start: {child.log.read_text()}")
            yield proxy
    finally:
        child.stop()


async def _create_bucket(http: aiohttp.ClientSession, bucket: str) -> bool:
    with contextlib.suppress(aiohttp.ClientError):
        async with http.put(bucket) as answer:
            return answer.status == 200
    return False


def object_store_settings(proxy: Proxy) -> dict[str, str]:
    """Return the environment of an API server that stores its objects behind the proxy."""
    return {
        "FORGELET_API_OBJECT_STORE_URL": f"s3://{BUCKET}",
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": "faults",
        "AWS_SECRET_ACCESS_KEY": "faults",
    }


#: Longer than any client here waits for an answer.
HANG_SECONDS = 30.0


async def hang(_: web.Request) -> web.StreamResponse:
    """Answer nothing for a long time, and then 504."""
    await asyncio.sleep(HANG_SECONDS)
    return web.Response(status=504)


async def garbage(request: web.Request) -> web.StreamResponse:
    """Answer bytes that are not HTTP."""
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
    """The servers that the service sends requests to: `receiver` takes deliveries, and `mirrored` has the repositories
    of mirrors' targets."""

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
        """Create an empty repository; return its URL with credentials."""
        BareRepository.create(self.mirrored / f"{name}.git")
        return f"http://{USER}:{quote(PASSWORD, safe='')}@{self.host}:{self.target_port}/{name}.git"

    @contextlib.contextmanager
    def misbehaving(self, part: str, misbehaviour: str) -> Iterator[None]:
        """Let the receiver or the target misbehave at each request for the duration of the block."""
        if part == "receiver":
            before, self.receiver.answers = self.receiver.answers, [MISBEHAVIOUR[misbehaviour]]
        else:
            self.target.before = MISBEHAVIOUR[misbehaviour]
        try:
            yield
        finally:
            if part == "receiver":
                self.receiver.answers = before
            self.target.before = None


@contextlib.asynccontextmanager
async def running_outside(host: str) -> AsyncIterator[Outside]:
    """Run the receiver and the target on ports of loopback, which `host` names."""
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
    """The composition of a service to break: a title, its API servers and edges, and its other parts."""

    name: str
    title: str
    api_names: Sequence[str] = ("api",)
    edge_names: Sequence[str] = ("edge",)
    #: Whether PgBouncer, in transaction mode, is between the API servers and PostgreSQL.
    pooled: bool = False
    #: Whether a standby follows PostgreSQL: commits wait for it, and the API servers read from it.
    replicated: bool = False
    #: Whether objects are in S3, which moto provides.
    s3: bool = False

    def hindrance(self) -> str | None:
        """Return the reason why such a service is impossible on this machine, or None."""
        if self.s3 and not shutil.which(OBJECT_STORE_PROGRAM):
            return f"needs {OBJECT_STORE_PROGRAM} on PATH (pip install 'moto[server]')"
        if self.pooled and not pgbouncer.program():
            return "needs PgBouncer (Debian: apt-get install pgbouncer)"
        if self.replicated and not standbys.program():
            return "needs pg_basebackup (Debian: apt-get install postgresql)"
        return None


ALONE = Shape("with-files", "PostgreSQL, one API server, one storage edge")
WITH_S3 = Shape("with-s3", "PostgreSQL, S3, one API server, one storage edge", s3=True)
FLEET = Shape(
    "fleet",
    "PostgreSQL, a replica, PgBouncer, S3, 2 API servers, 2 storage edges",
    api_names=("api", "api-2"),
    edge_names=("edge", "edge-2"),
    pooled=True,
    replicated=True,
    s3=True,
)


MIB = 2**20
API_SIZE = 1024 * MIB
EDGE_SIZE = 96 * MIB
POSTGRES_SIZE = 640 * MIB
#: Bytes that the API server leaves free on its disk, and bytes that the edge uses on its own.
RESERVE = 4 * MIB
EDGE_BYTES = 48 * MIB
#: The edge keeps larger bodies only on disk.
EDGE_MEMORY_OBJECT_BYTES = MIB // 4
#: Name of the file that fills a disk.
FILLER = "filler"


def can_mount() -> bool:
    return os.geteuid() == 0


@contextlib.contextmanager
def mounted(folder: Path, size: int, *, like: Path | None = None) -> Iterator[None]:
    """Mount a disk of this many bytes at `folder`, with owner and mode of `like`; do nothing if we are not root."""
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
    """Fill the disk of `folder`, which has to be one of our own, for the duration of the block."""
    if not folder.is_mount():
        raise RuntimeError(f"{folder} is not a separate disk.")
    filler = folder / FILLER
    try:
        fill(filler)
        yield
    finally:
        filler.unlink(missing_ok=True)


def fill(filler: Path) -> None:
    """Take the space that is free now; space that is freed later needs another call."""
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (MIB, 4096, 1):
            with contextlib.suppress(OSError):
                while shutil.disk_usage(filler.parent).free and file.write(bytes(size)):
                    pass


#: The host in URLs of receivers and mirror targets.
NAME = "outside.faults.test"
#: An address of loopback on which nothing listens.
NOBODY = "127.0.66.1"
_A, _IN, _SERVFAIL = 1, 1, 2


def can_be_asked() -> bool:
    """Return whether a process can have a name server of its own, which needs root and a mount namespace."""
    return os.geteuid() == 0 and shutil.which("unshare") is not None


@attrs.define
class NameServer(asyncio.DatagramProtocol):
    """A name server that answers every name with the address of this machine."""

    #: An address of loopback of its own, since port 53 of others may be taken.
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
        """Return the command with this as its only name server; the process id stays the same."""
        configuration = folder / "resolv.conf"
        configuration.write_text(f"nameserver {self.address}\noptions timeout:2 attempts:2\n")
        mounted = f"mount --bind '{configuration}' /etc/resolv.conf && exec \"$@\""
        return ["unshare", "--mount", "sh", "-c", mounted, "sh", *command]

    def answer(self, question: bytes) -> bytes:
        """Return the question again, with an address if one was asked for (RFC 1035 section 4.1)."""
        name = question[12 : question.index(b"\0", 12) + 5]
        kind = struct.unpack(">H", name[-4:-2])[0]
        address = b"" if self.failing or kind != _A else bytes(map(int, self.says.split(".")))
        flags = 0x8180 | (_SERVFAIL if self.failing else 0)
        head = question[:2] + struct.pack(">5H", flags, 1, 1 if address else 0, 0, 0)
        record = struct.pack(">3HIH", 0xC00C, _A, _IN, 0, 4) + address if address else b""
        return head + name + record


@contextlib.asynccontextmanager
async def name_server() -> AsyncIterator[NameServer | None]:
    """Run a name server; yield None if a process cannot be made to use it."""
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
