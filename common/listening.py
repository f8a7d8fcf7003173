"""Ports: where a process listens, and who reads the requests of those who connect."""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
from aiohttp import HttpVersion11, hdrs, web

from common.client_settings import ClientSettings
from common.connection import UNREAD_BYTES, WAITS
from common.connections import Connections
from common.heads import head_refusal
from common.logs import OwnFaults
from common.mistakes import Mistake, binding
from common.workers.place import place

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
        """Where `operations_port` is listened on: each process has one of its own, which tells of nobody else."""
        if not self.settings.operations_port:
            return None
        return attrs.evolve(
            self,
            port=self.settings.operations_port,
            connections=Connections(self.settings),
            context=None,
            reuse_port=False,
            descriptor=mine.operators if (mine := place()) else 0,
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
        """Where it is not open already. Raises `Mistake` where the address cannot be listened on."""
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
        """Nobody can connect any more; the connections that there are remain."""
        if self._sockets is not None:
            self._sockets.close()


def inherited(descriptor: int) -> socket.socket:
    """The open socket of this number, which our own children do not inherit in turn. Raises `Mistake`."""
    try:
        found = socket.socket(fileno=descriptor)
        found.getsockname()
    except OSError as problem:
        raise Mistake(f"listen_fd names {descriptor}, which is no open socket: {problem.strerror}") from None
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
    """What has not been read of a body would have to be, before the connection could be used again."""
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
