"""The life of a process: its ports are taken, then it makes ready, serves, and finishes what is in flight."""

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator
from typing import Any

import attrs
import structlog
from aiohttp import web

from common import operations
from common.background import BACKGROUND
from common.connections import Connections
from common.ending import end
from common.listening import Endpoint, Listener, opened, reader_options
from common.shutdown import SHUTDOWN
from common.workers.line import Line, line
from common.workers.place import place

log = structlog.get_logger(__name__)

#: Seconds that aiohttp waits for requests, of which none is left when it is asked.
_AT_ONCE = 0.1
_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: Open files that are not connections of clients: at most so many, and at most half of all.
OTHER_FILES = 512


@attrs.frozen(kw_only=True)
class Serving:
    """An application, where it is served, and with which options of `web.AppRunner`."""

    app: web.Application
    endpoint: Endpoint
    options: dict[str, Any] = attrs.field(factory=dict)


def allow_files(connections: Connections) -> None:
    """Each connection is an open file, of which processes get few unless they ask; some have to be left for others."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections.room = max(most - OTHER_FILES, most // 2)


@contextlib.asynccontextmanager
async def bound(endpoint: Endpoint) -> AsyncIterator["Ports"]:
    """Takes the port, and that of the operators, before anything else is touched. Clients hear 503 with `Retry-After`
    until `Ports.serving` is entered; liveness is answered. Raises `Mistake`."""
    async with contextlib.AsyncExitStack() as stack:
        public = await stack.enter_async_context(opened(endpoint, operations.starting))
        operators = endpoint.for_operators()
        own = await stack.enter_async_context(opened(operators, operations.starting)) if operators else None
        yield Ports(endpoint, public, own)


@contextlib.asynccontextmanager
async def working(endpoint: Endpoint, app: web.Application) -> AsyncIterator[None]:
    """Runs an application that serves no clients: what it does by itself, and its operators' port if it has one."""
    async with contextlib.AsyncExitStack() as stack:
        operators = endpoint.for_operators()
        own = await stack.enter_async_context(opened(operators, operations.starting)) if operators else None
        await stack.enter_async_context(
            Ports(endpoint, None, own).running(Serving(app=app, endpoint=endpoint))
        )
        yield


@attrs.frozen
class Ports:
    """The ports of a process, taken."""

    _endpoint: Endpoint
    _public: Listener | None
    _operators: Listener | None

    @contextlib.asynccontextmanager
    async def serving(self, serve: Serving) -> AsyncIterator[tuple[str, int]]:
        """Serves the application while it is entered; gives the address and port. At the end, answers in flight and
        background work may take `shutdown_timeout` seconds, both together."""
        assert self._public is not None  # noqa: S101 - `working` has none, and no use for this
        async with self.running(serve):
            for listener in filter(None, (self._public, self._operators)):
                host, port = listener.address
                log.info("listening", host=host, port=port)
            ours = line()
            if ours is not None and (worker := place()):
                ours.figures = serve.app[operations.COUNTED]
                worker.tell_ready()
            yield self._public.address
        if ours is not None:
            await ours.tell_figures()  # nothing is counted any more

    @contextlib.asynccontextmanager
    async def running(self, serve: Serving) -> AsyncIterator[None]:
        """As `serving`, on the ports that there are."""
        settings, app = self._endpoint.settings, serve.app
        runner = self._runner(app, serve.options)
        watchers = self._runner(operations.application(app), {"access_log": None})
        try:
            await self._serve(self._public, runner, app, "client connections")
            await self._serve(self._operators, watchers, app, "operators' connections")
            yield
        finally:
            app[SHUTDOWN].begin(settings.shutdown_timeout)
            await self._end(self._public, runner, app[SHUTDOWN].left)
            await self._end(self._operators, watchers, 0)
            await app[BACKGROUND].close()

    def _runner(self, app: web.Application, options: dict[str, Any]) -> web.AppRunner:
        return web.AppRunner(
            app, shutdown_timeout=_AT_ONCE, **reader_options(self._endpoint.settings), **options
        )

    async def _serve(
        self, listener: Listener | None, runner: web.AppRunner, app: web.Application, name: str
    ) -> None:
        await runner.setup()
        if listener is not None:
            assert runner.server is not None  # noqa: S101 - set up just now
            app[BACKGROUND].start(name, listener.connections.watch)
            listener.read_by(runner.server)
            await listener.open()

    async def _end(self, listener: Listener | None, runner: web.AppRunner, seconds: float) -> None:
        if listener is not None:
            listener.close()
            await listener.connections.finish(seconds)
        await runner.cleanup()


@contextlib.asynccontextmanager
async def serving(serve: Serving) -> AsyncIterator[tuple[str, int]]:
    """`bound` and `Ports.serving`, for an application that can be made before its port is taken."""
    async with bound(serve.endpoint) as ports, ports.serving(serve) as address:
        yield address


@contextlib.asynccontextmanager
async def stopping() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set, and the end of a supervisor."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, stop.set)
    listening = None if (ours := line()) is None else asyncio.create_task(_heed(ours, stop))
    try:
        yield stop
    finally:
        if listening is not None:
            await end(listening)
        for number in _STOPPING:
            loop.remove_signal_handler(number)


async def _heed(supervisor: Line, stop: asyncio.Event) -> None:
    await supervisor.listen()
    stop.set()
