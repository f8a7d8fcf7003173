"""What is outside of the service: an object store, receivers, mirrors' targets, and a proxy that breaks connections."""

import asyncio
import contextlib
import itertools
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import aiohttp
import attrs
from aiohttp import web

from forgelet.local.processes import Child
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http
from tests.api_server.status_checks.receiver import (
    Behaviour,
    Receiver,
    answer,
    reset,
    running_receiver,
)
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
        """Resets all connections at once."""
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
        """Until either end is closed. `asked_by`: this is the client's direction, and that its other one."""
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
    """By turns the next of these ports that somebody listens on, as balancers find out by themselves."""
    turns = itertools.cycle(ports)

    def upstream() -> int:
        return next(filter(is_listened_on, itertools.islice(turns, len(ports))), ports[0])

    return upstream


BUCKET = "objects"
PROGRAM = "moto_server"
READY_SECONDS = 30.0


def is_there() -> bool:
    return shutil.which(PROGRAM) is not None


@contextlib.asynccontextmanager
async def object_store(logs: Path) -> AsyncIterator[Proxy]:
    """An empty bucket. Nothing of what it holds is on disk, and it ends with the block."""
    port = free_port()
    child = Child(PROGRAM, [PROGRAM, "-H", "127.0.0.1", "-p", str(port)], log=logs / "s3.log")
    try:
        async with Proxy(free_port(), lambda: port) as proxy, aiohttp.ClientSession() as http:
            await _made(http, f"http://127.0.0.1:{proxy.port}/{BUCKET}")
            yield proxy
    finally:
        child.stop()


async def _made(http: aiohttp.ClientSession, bucket: str) -> None:
    async with asyncio.timeout(READY_SECONDS):
        while True:
            with contextlib.suppress(aiohttp.ClientError):
                async with http.put(bucket) as answer:
                    if answer.status == 200:
                        return
            await asyncio.sleep(0.1)


def settings(proxy: Proxy) -> dict[str, str]:
    """The environment of an API server that keeps its objects there."""
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
    """Says nothing for a long time, and then that it was in vain."""
    await asyncio.sleep(HANG_SECONDS)
    return web.Response(status=504)


async def garbage(request: web.Request) -> web.StreamResponse:
    """Says something that is no HTTP."""
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
        """Makes an empty repository; its URL with credentials."""
        BareRepository.create(self.mirrored / f"{name}.git")
        return f"http://{USER}:{quote(PASSWORD, safe='')}@{self.host}:{self.target_port}/{name}.git"

    @contextlib.contextmanager
    def misbehaving(self, part: str, how: str) -> Iterator[None]:
        """The receiver, or the target, does so with each request of this time."""
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
    """Both, on ports of loopback, by this name of it."""
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
