"""The phases of a server: it takes its ports, prepares, serves, and finishes open requests."""

import asyncio
import contextlib
import json
import logging
import os
import resource
import signal
import socket
import ssl
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NoReturn

import attrs
import structlog
from aiohttp import HttpVersion11, hdrs, web

from common import operations
from common.client_settings import ClientSettings
from common.concurrency import end
from common.config_errors import ConfigError, binding
from common.connections import UNREAD_BYTES, WAITS, Connections, head_refusal
from common.lifecycle import BACKGROUND, LAST_SECONDS, SHUTDOWN
from common.logs import OwnFaults
from common.workers import Line, supervisor_line, worker_address

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Seconds for which the rest of an unwanted body is read after the answer.
LINGERING_SECONDS = 10.0
#: Idle connections are closed by `Connections`; aiohttp does not know of all requests on them.
NEVER = 1e9
BACKLOG = 1024

_log = logging.getLogger("http")
_log.addFilter(OwnFaults())


@attrs.frozen(kw_only=True)
class Endpoint:
    """The address on which a process listens: `host` and `port` (0: a free one), or the open socket with the number
    `descriptor`."""

    settings: ClientSettings
    host: str
    port: int
    connections: Connections
    context: ssl.SSLContext | None = None
    reuse_port: bool = False
    descriptor: int = 0
    #: Whether the socket listens only when the application can answer, because another process answers until then.
    late: bool = False

    def for_operators(self) -> "Endpoint | None":
        """Return the endpoint of `operations_port`, if it is set. Each process has one of its own."""
        if not self.settings.operations_port:
            return None
        return attrs.evolve(
            self,
            port=self.settings.operations_port,
            connections=Connections(self.settings),
            context=None,
            reuse_port=False,
            descriptor=address.operators if (address := worker_address()) else 0,
        )


def reader_options(settings: ClientSettings) -> dict[str, Any]:
    """Return options of `web.Server` and `web.AppRunner` for reading requests."""
    return {
        "logger": _log,
        "keepalive_timeout": NEVER,
        "max_line_size": settings.max_header_bytes,
        "max_field_size": settings.max_header_bytes,
        "max_headers": settings.max_headers,
        "lingering_time": LINGERING_SECONDS,
        # Bodies are decoded where they are read: aiohttp waits forever for the end of some broken ones.
        "auto_decompress": False,
    }


class Listener:
    """An endpoint to which clients can connect. `read_by` sets the server that reads their requests."""

    def __init__(self, endpoint: Endpoint, server: web.Server) -> None:
        self.connections = endpoint.connections
        self._endpoint = endpoint
        self._sockets: asyncio.Server | None = None
        self.read_by(server)

    def read_by(self, server: web.Server) -> None:
        """Let `server` read the requests of clients that connect from now on."""
        server.request_handler = _watched(self.connections, server.request_handler)
        self._server = server

    async def open(self) -> None:
        """Open the endpoint if it is not open. Raise `ConfigError` if the address cannot be listened on."""
        endpoint = self._endpoint
        if self._sockets is not None:
            return
        with binding(endpoint.host, endpoint.port):
            self._sockets = await asyncio.get_running_loop().create_server(
                lambda: self.connections.accept(self._server),
                **self._place(),
                ssl=endpoint.context,
                ssl_handshake_timeout=endpoint.settings.header_timeout if endpoint.context else None,
                backlog=BACKLOG,
            )

    def _place(self) -> dict[str, Any]:
        endpoint = self._endpoint
        if endpoint.descriptor:
            return {"sock": inherited(endpoint.descriptor)}
        return {"host": endpoint.host, "port": endpoint.port, "reuse_port": endpoint.reuse_port or None}

    @property
    def address(self) -> tuple[str, int]:
        """The address and port."""
        assert self._sockets is not None  # noqa: S101 - opened immediately after creation
        host, port = self._sockets.sockets[0].getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Accept no more connections. Present connections stay open."""
        if self._sockets is not None:
            self._sockets.close()


def inherited(descriptor: int) -> socket.socket:
    """Return the open socket with this number. Our own children do not inherit it. Raise `ConfigError` if there is
    none."""
    try:
        listener = socket.socket(fileno=descriptor)
        listener.getsockname()
    except OSError as problem:
        raise ConfigError(
            f"listen_fd names {descriptor}, which is no open socket: {problem.strerror}"
        ) from None
    listener.set_inheritable(False)
    return listener


@contextlib.asynccontextmanager
async def opened(endpoint: Endpoint, not_yet: Handle) -> AsyncIterator[Listener]:
    """Yield the open endpoint. `not_yet` answers requests until another server reads them."""
    server = web.Server(not_yet, access_log=None, **reader_options(endpoint.settings))
    listener = Listener(endpoint, server)
    if not endpoint.late:
        await listener.open()
    try:
        yield listener
    finally:
        listener.close()
        await listener.connections.finish(0)


def _watched(connections: Connections, handle: Handle) -> Handle:
    """Return a handler that calls `handle` and notifies the connection of the beginning and the end of a request, and
    of the body that the client announced."""

    async def watched(request: web.BaseRequest) -> web.StreamResponse:
        connection = connections.of(request)
        if (bad_head := head_refusal(request)) is not None:
            return bad_head
        connection.begin(request)
        try:
            return await _answered(request, handled)
        except ConnectionError as problem:
            if request.transport is not None and not request.transport.is_closing():
                raise
            _forget_frames(problem)
            return web.Response()  # nobody gets it: the client has disconnected in the middle of its answer
        finally:
            _forget_frames(request.content.exception())
            connection.end()

    async def handled(request: web.BaseRequest) -> web.StreamResponse:
        try:
            response = await handle(request)
        except web.HTTPException as refusal:
            _close_if_last(refusal)
            raise
        _close_if_last(response)
        return response

    def _close_if_last(response: web.StreamResponse) -> None:
        if connections.are_finishing:
            response.force_close()

    return watched


def _forget_frames(problem: BaseException | None) -> None:
    """Separate an exception from the frames that it went through. These hold the request and the arrived part of its
    body; the request holds the exception, and all of that would remain until the next garbage collection."""
    while problem is not None:
        problem.__traceback__ = None
        problem = problem.__context__


async def _answered(request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
    if hdrs.EXPECT in request.headers:
        return await _with_expect(request, handle)
    if not request.body_exists:
        return await handle(request)
    return await _closing_on_unread(request, handle)


async def _with_expect(request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
    """Answer a request whose client waits before it sends the body. aiohttp would ask for every such body, even if
    the request is refused."""
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        return web.json_response({"error": "417 Expectation Failed"}, status=417, reason="Expectation Failed")
    headers = request.headers.copy()
    del headers[hdrs.EXPECT]
    cloned = request.clone(headers=headers)
    if request.version >= HttpVersion11 and request.body_exists:
        cloned[WAITS] = True
    try:
        response = await _closing_on_unread(cloned, handle)
    except web.HTTPException as refusal:
        await refusal.prepare(cloned)
        raise
    # Prepare the answer with the request that the application knows, so that its fields are added.
    await response.prepare(cloned)
    return response


async def _closing_on_unread(request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
    """Answer, and close the connection if too much of the body would have to be read before its next request."""
    try:
        response = await handle(request)
    except web.HTTPException as refusal:
        _close_if_unread(request, refusal)
        raise
    _close_if_unread(request, response)
    return response


def _close_if_unread(request: web.BaseRequest, response: web.StreamResponse) -> None:
    if not response.prepared and not request.content.is_eof():
        length = request.content_length
        if length is None or length > UNREAD_BYTES or request.get(WAITS, False):
            response.force_close()


log = structlog.get_logger(__name__)

#: Seconds that aiohttp waits for requests when it ends. No request is left at that time.
_SHUTDOWN_SECONDS = 0.1
_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: Open files that are reserved for other purposes than clients' connections: at most so many, and at most half of
#: all.
OTHER_FILES = 512


@attrs.frozen(kw_only=True)
class Serving:
    """An application, its endpoint, and options of `web.AppRunner` for serving it."""

    app: web.Application
    endpoint: Endpoint
    options: dict[str, Any] = attrs.field(factory=dict)


def allow_files(connections: Connections) -> None:
    """Raise the limit of open files, since each connection is one, and leave some for other purposes."""
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    connections.capacity = max(limit - OTHER_FILES, limit // 2)


@contextlib.asynccontextmanager
async def bound(endpoint: Endpoint) -> AsyncIterator["Ports"]:
    """Take the port, and the operators' port, before anything else is touched. Clients get 503 with `Retry-After`
    until `Ports.serving` is entered; liveness is answered. Raise `ConfigError`."""
    async with contextlib.AsyncExitStack() as stack:
        public = await stack.enter_async_context(opened(endpoint, operations.starting))
        operators = endpoint.for_operators()
        port = await stack.enter_async_context(opened(operators, operations.starting)) if operators else None
        yield Ports(endpoint, public, port)


@contextlib.asynccontextmanager
async def working(endpoint: Endpoint, app: web.Application) -> AsyncIterator[None]:
    """Run an application without clients, with only its background work and, if it is set, its operators' port."""
    async with contextlib.AsyncExitStack() as stack:
        operators = endpoint.for_operators()
        port = await stack.enter_async_context(opened(operators, operations.starting)) if operators else None
        await stack.enter_async_context(
            Ports(endpoint, None, port).running(Serving(app=app, endpoint=endpoint))
        )
        log.info("background work has begun")
        yield


@attrs.frozen
class Ports:
    """The bound ports of a process."""

    _endpoint: Endpoint
    _public: Listener | None
    _operators: Listener | None

    @contextlib.asynccontextmanager
    async def serving(self, serve: Serving) -> AsyncIterator[tuple[str, int]]:
        """Serve the application during the block and yield its address and port. At the end, open requests and
        background work may together take `shutdown_timeout` seconds."""
        assert self._public is not None  # noqa: S101 - not called by `working`, which has none
        async with self.running(serve):
            line = supervisor_line()
            if line is not None and (worker := worker_address()):
                line.figures = serve.app[operations.METRICS]
                worker.report_ready()
            yield self._public.address
        if line is not None:
            await line.report_figures()  # nothing is counted after this

    @contextlib.asynccontextmanager
    async def running(self, serve: Serving) -> AsyncIterator[None]:
        """Run the application as `serving` does."""
        settings, app = self._endpoint.settings, serve.app
        runner = self._runner(app, serve.options)
        watchers = self._runner(operations.application(app), {"access_log": None})
        try:
            await self._serve(self._public, runner, app, "client connections")
            await self._serve(self._operators, watchers, app, "operators' connections")
            for listener in filter(None, (self._public, self._operators)):
                host, port = listener.address
                log.info("listening", host=host, port=port)
            yield
        finally:
            app[SHUTDOWN].begin(settings.shutdown_timeout)
            await self._end(self._public, runner, app[SHUTDOWN].seconds_left)
            await self._end(self._operators, watchers, 0)
            await app[BACKGROUND].close()

    def _runner(self, app: web.Application, options: dict[str, Any]) -> web.AppRunner:
        return web.AppRunner(
            app, shutdown_timeout=_SHUTDOWN_SECONDS, **reader_options(self._endpoint.settings), **options
        )

    async def _serve(
        self, listener: Listener | None, runner: web.AppRunner, app: web.Application, name: str
    ) -> None:
        await runner.setup()
        if listener is not None:
            assert runner.server is not None  # noqa: S101 - it was set up just now
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
    """Take the port and serve an application that needs no preparation."""
    async with bound(serve.endpoint) as ports, ports.serving(serve) as address:
        yield address


@contextlib.asynccontextmanager
async def stopping() -> AsyncIterator[asyncio.Event]:
    """Yield an event that is set by SIGTERM, SIGINT and the end of a supervisor."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, stop.set)
    listening = (
        None
        if (line := supervisor_line()) is None
        else asyncio.create_task(_stop_with_supervisor(line, stop))
    )
    try:
        yield stop
    finally:
        if listening is not None:
            await end(listening)
        for number in _STOPPING:
            loop.remove_signal_handler(number)


async def _stop_with_supervisor(supervisor: Line, stop: asyncio.Event) -> None:
    await supervisor.listen()
    stop.set()


_ROOT = str(Path(__file__).parents[1])
#: The supervisor's program, which does not import the modules of this program.
_PROGRAM = f"import sys; sys.path.insert(0, {_ROOT!r}); from common.supervisor import main; main()"


def become_supervisor(settings: Any) -> NoReturn:
    """Replace this program by a supervisor with the same process id, whose workers are started like this program.
    Raise `ConfigError` if the port cannot be listened on."""
    if settings.listen_fd:
        raise ConfigError(
            "listen_fd and workers contradict each other: workers listen on sockets of their own"
        )
    with binding(settings.host, settings.port):
        _try_port(settings.host, settings.port)
    plan = {
        "command": [sys.executable, *sys.orig_argv[1:]],
        "workers": settings.workers,
        "host": settings.host,
        "port": settings.port,
        "operations_port": settings.operations_port,
        "grace": settings.shutdown_timeout + LAST_SECONDS + 1,
        "log": [settings.log_format, settings.log_level, settings.log_file and str(settings.log_file)],
    }
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-c", _PROGRAM, json.dumps(plan)])  # noqa: S606 - our own


def _try_port(host: str, port: int) -> None:
    """Raise `OSError` if the port is taken. Workers' sockets share their port, and would share it with another
    program's workers, too."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
        probe.listen(1)
