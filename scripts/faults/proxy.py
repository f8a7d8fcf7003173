"""A TCP proxy that can cut, stall, slow down and refuse what goes through it."""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Sequence
from types import TracebackType

import attrs

from tests.support.ports import is_listened_on

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
