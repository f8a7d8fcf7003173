"""Listening: aiohttp reads requests, on connections that are ours."""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import AsyncIterator

from aiohttp import web

from common.ending import end
from common.logs import OwnFaults
from storage_edge.client.access_log import AccessLog
from storage_edge.client.handlers import CONNECTIONS
from storage_edge.settings import Settings

#: How long the rest of a request's body is awaited after the answer; requests to the edge have none.
LINGERING_SECONDS = 2.0
#: Idle connections are closed by `Connections`; aiohttp does not know of all requests on them.
NEVER = 1e9
BACKLOG = 1024


_log = logging.getLogger("storage_edge.http")
_log.addFilter(OwnFaults())


@contextlib.asynccontextmanager
async def listening(
    app: web.Application, settings: Settings, context: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[str, int]]:
    """Serves the application while it is entered; gives the address and port. At the end, answers in flight may take
    `shutdown_timeout` seconds.
    """
    runner = web.AppRunner(
        app,
        logger=_log,
        access_log_class=AccessLog,
        access_log=logging.getLogger("storage_edge.access") if settings.access_log else None,
        keepalive_timeout=NEVER,
        max_line_size=settings.max_header_bytes,
        max_field_size=settings.max_header_bytes,
        max_headers=settings.max_headers,
        lingering_time=LINGERING_SECONDS,
        shutdown_timeout=settings.shutdown_timeout,
    )
    await runner.setup()
    connections, reader = app[CONNECTIONS], runner.server
    assert reader is not None  # noqa: S101 - set up just now
    watch = asyncio.create_task(connections.watch())
    try:
        server = await asyncio.get_running_loop().create_server(
            lambda: connections.accept(reader),
            settings.host,
            settings.port,
            ssl=context,
            reuse_port=settings.reuse_port or None,
            backlog=BACKLOG,
        )
        try:
            yield server.sockets[0].getsockname()[:2]
        finally:
            server.close()
    finally:
        await end(watch)
        await runner.cleanup()
        await connections.all_closed(settings.shutdown_timeout)
