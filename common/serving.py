"""Listening: aiohttp reads requests, on connections that are ours."""

import asyncio
import contextlib
import logging
import resource
import signal
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import attrs
from aiohttp import HttpVersion11, hdrs, web

from common import operations
from common.client_settings import ClientSettings
from common.connections import UNREAD_BYTES, WAITS, Connections
from common.ending import end
from common.logs import OwnFaults
from common.mistakes import binding

Handle = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

#: Seconds for which the rest of an unwanted body is read after the answer.
LINGERING_SECONDS = 2.0
#: Idle connections are closed by `Connections`; aiohttp does not know of all requests on them.
NEVER = 1e9
BACKLOG = 1024
_STOPPING = (signal.SIGTERM, signal.SIGINT)
#: Open files that are not connections of clients: at most so many, and at most half of all.
OTHER_FILES = 512

_log = logging.getLogger("http")
_log.addFilter(OwnFaults())


@attrs.frozen(kw_only=True)
class Serving:
    """How one application is served: on `host` and `port` (0: a free one), with options of `web.AppRunner`."""

    app: web.Application
    settings: ClientSettings
    host: str
    port: int
    connections: Connections
    context: ssl.SSLContext | None = None
    reuse_port: bool = False
    options: dict[str, Any] = attrs.field(factory=dict)


def allow_files(connections: Connections) -> None:
    """Each connection is an open file, of which processes get few unless they ask; some have to be left for others."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    connections.most = min(connections.most, max(most - OTHER_FILES, most // 2))


@contextlib.asynccontextmanager
async def serving(serve: Serving) -> AsyncIterator[tuple[str, int]]:
    """Serves the application while it is entered; gives the address and port. At the end, answers in flight may take
    `shutdown_timeout` seconds. Where there is an `operations_port`, that is served as well.
    """
    async with contextlib.AsyncExitStack() as stack:
        address = await stack.enter_async_context(_listening(serve))
        if serve.settings.operations_port:
            watchers = attrs.evolve(
                serve,
                app=operations.application(serve.app),
                port=serve.settings.operations_port,
                connections=Connections(serve.settings),
                context=None,
            )
            await stack.enter_async_context(_listening(watchers))
        yield address


@contextlib.asynccontextmanager
async def _listening(serve: Serving) -> AsyncIterator[tuple[str, int]]:
    settings, connections = serve.settings, serve.connections
    runner = web.AppRunner(
        serve.app,
        logger=_log,
        keepalive_timeout=NEVER,
        max_line_size=settings.max_header_bytes,
        max_field_size=settings.max_header_bytes,
        max_headers=settings.max_headers,
        lingering_time=LINGERING_SECONDS,
        shutdown_timeout=settings.shutdown_timeout,
        # Bodies are decoded where they are read: aiohttp waits for ever for the end of some that are broken.
        auto_decompress=False,
        **serve.options,
    )
    await runner.setup()
    server = runner.server
    assert server is not None  # noqa: S101 - set up just now
    server.request_handler = _watched(connections, server.request_handler)
    watch = asyncio.create_task(connections.watch())
    try:
        with binding(serve.host, serve.port):
            listener = await asyncio.get_running_loop().create_server(
                lambda: connections.accept(server),
                serve.host,
                serve.port,
                ssl=serve.context,
                ssl_handshake_timeout=settings.header_timeout if serve.context else None,
                reuse_port=serve.reuse_port or None,
                backlog=BACKLOG,
            )
        try:
            yield listener.sockets[0].getsockname()[:2]
        finally:
            listener.close()
    finally:
        await end(watch)
        await runner.cleanup()
        await connections.all_closed(settings.shutdown_timeout)


def _watched(connections: Connections, handle: Handle) -> Handle:
    """`handle`, its connection being at work meanwhile; and what clients announce of bodies, before it and after it."""

    async def watched(request: web.BaseRequest) -> web.StreamResponse:
        connection = connections.of(request)
        connection.begin(request)
        try:
            if hdrs.EXPECT in request.headers:
                return await _expected(request, handle)
            if not request.body_exists:
                return await handle(request)
            return await _closing_on_unread(request, handle)
        finally:
            connection.end()

    return watched


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


@contextlib.asynccontextmanager
async def stopping() -> AsyncIterator[asyncio.Event]:
    """An event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in _STOPPING:
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in _STOPPING:
            loop.remove_signal_handler(number)
