"""The life of a server: its ports are taken, then it makes ready, serves, and finishes what is in flight."""

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
LINGERING_SECONDS = 2.0
#: Idle connections are closed by `Connections`; aiohttp does not know of all requests on them.
NEVER = 1e9
BACKLOG = 1024

_log = logging.getLogger("http")
_log.addFilter(OwnFaults())


@attrs.frozen(kw_only=True)
class Endpoint:
    """Where a process listens: on `host` and `port` (0: a free one), or on the open socket that `descriptor` numbers;
    on connections that are ours."""

    settings: ClientSettings
    host: str
    port: int
    connections: Connections
    context: ssl.SSLContext | None = None
    reuse_port: bool = False
    descriptor: int = 0
    #: Whether nobody is listened to before the application can answer: somebody else answers until then.
    late: bool = False

    def for_operators(self) -> "Endpoint | None":
        """The endpoint of `operations_port`, if it is set; each process has one that tells of itself alone."""
        if not self.settings.operations_port:
            return None
        return attrs.evolve(
            self,
            port=self.settings.operations_port,
            connections=Connections(self.settings),
            context=None,
            reuse_port=False,
            descriptor=mine.operators if (mine := worker_address()) else 0,
        )


def reader_options(settings: ClientSettings) -> dict[str, Any]:
    """How aiohttp reads requests: options of `web.Server` and of `web.AppRunner`."""
    return {
        "logger": _log,
        "keepalive_timeout": NEVER,
        "max_line_size": settings.max_header_bytes,
        "max_field_size": settings.max_header_bytes,
        "max_headers": settings.max_headers,
        "lingering_time": LINGERING_SECONDS,
        # Bodies are decoded where they are read: aiohttp waits for ever for the end of some that are broken.
        "auto_decompress": False,
    }


class Listener:
    """An endpoint that clients can connect to. `read_by` says who reads what they send."""

    def __init__(self, endpoint: Endpoint, server: web.Server) -> None:
        self.connections = endpoint.connections
        self._endpoint = endpoint
        self._sockets: asyncio.Server | None = None
        self.read_by(server)

    def read_by(self, server: web.Server) -> None:
        """From now on `server` reads the requests of those who connect."""
        server.request_handler = _watched(self.connections, server.request_handler)
        self._server = server

    async def open(self) -> None:
        """Open it if it is not open. Raises `ConfigError` where the address cannot be listened on."""
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
        """Address and port."""
        assert self._sockets is not None  # noqa: S101 - opened just after it was made
        host, port = self._sockets.sockets[0].getsockname()[:2]
        return host, port

    def close(self) -> None:
        """Accept no more connections; those that there are remain."""
        if self._sockets is not None:
            self._sockets.close()


def inherited(descriptor: int) -> socket.socket:
    """The open socket of this number, which our own children do not inherit in turn. Raises `ConfigError`."""
    try:
        found = socket.socket(fileno=descriptor)
        found.getsockname()
    except OSError as problem:
        raise ConfigError(
            f"listen_fd names {descriptor}, which is no open socket: {problem.strerror}"
        ) from None
    found.set_inheritable(False)
    return found


@contextlib.asynccontextmanager
async def opened(endpoint: Endpoint, not_yet: Handle) -> AsyncIterator[Listener]:
    """The endpoint, open from now on; until somebody else reads them, requests are answered by `not_yet`."""
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
    """`handle`, its connection being at work meanwhile; and what clients announce of bodies, before it and after it."""

    async def watched(request: web.BaseRequest) -> web.StreamResponse:
        connection = connections.of(request)
        if (bad_head := head_refusal(request)) is not None:
            return bad_head
        connection.begin(request)
        try:
            return await _answered(request, handled)
        except ConnectionError:
            if request.transport is not None and not request.transport.is_closing():
                raise
            return web.Response()  # for nobody: the client has gone in the middle of its answer
        finally:
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


async def _answered(request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
    if hdrs.EXPECT in request.headers:
        return await _expected(request, handle)
    if not request.body_exists:
        return await handle(request)
    return await _closing_on_unread(request, handle)


async def _expected(request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
    """aiohttp asks for each body that a client holds back, also for one that is going to be refused."""
    if request.headers[hdrs.EXPECT].lower() != "100-continue":
        return web.json_response({"error": "417 Expectation Failed"}, status=417, reason="Expectation Failed")
    headers = request.headers.copy()
    del headers[hdrs.EXPECT]
    asked = request.clone(headers=headers)
    if request.version >= HttpVersion11 and request.body_exists:
        asked[WAITS] = True
    try:
        response = await _closing_on_unread(asked, handle)
    except web.HTTPException as refusal:
        await refusal.prepare(asked)
        raise
    # With what the application adds to answers, which it does by the request that it knows.
    await response.prepare(asked)
    return response


async def _closing_on_unread(request: web.BaseRequest, handle: Handle) -> web.StreamResponse:
    """Answer, and close the connection where the rest of the body would have to be read before its next request."""
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
    until `Ports.serving` is entered; liveness is answered. Raises `ConfigError`."""
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
            ours = supervisor_line()
            if ours is not None and (worker := worker_address()):
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
    listening = (
        None
        if (ours := supervisor_line()) is None
        else asyncio.create_task(_stop_with_supervisor(ours, stop))
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
#: Without what the program itself imports.
_PROGRAM = f"import sys; sys.path.insert(0, {_ROOT!r}); from common.supervisor import main; main()"


def become_supervisor(settings: Any) -> NoReturn:
    """Replaces this program, which `settings` are of, by a supervisor, which keeps its process id; its workers are
    begun as this program was. Raises `ConfigError` where the port cannot be listened on."""
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
    os.execv(sys.executable, [sys.executable, "-P", "-c", _PROGRAM, json.dumps(plan)])  # noqa: S606 - ourselves


def _try_port(host: str, port: int) -> None:
    """Raises OSError. Workers' sockets share their port, and would share it with a stranger's workers too."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        tried.bind(address)
        tried.listen(1)
