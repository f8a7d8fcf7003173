"""Connections whose clients send nothing useful are closed, so that a few of them cannot hold the edge."""

import asyncio
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from aiohttp import web

#: Looks at the connections per timeout.
LOOKS: Final = 4


class IdleConnections:
    """Knows since when each connection has had no request in work. Times are seconds.

    A connection may be silent for `header_timeout` before its first request, and for `keepalive_timeout` longer after
    one; a request head that trickles in does not count as a sign of life.
    """

    def __init__(self, header_timeout: float, keepalive_timeout: float) -> None:
        self._header_timeout = header_timeout
        self._keepalive_timeout = keepalive_timeout
        self._deadline: dict[object, float] = {}

    @contextmanager
    def at_work(self, connection: object) -> Iterator[None]:
        """While a request of this connection is answered."""
        self._deadline[connection] = math.inf
        try:
            yield
        finally:
            self._deadline[connection] = time.monotonic() + self._keepalive_timeout + self._header_timeout

    async def watch(self, server: web.Server) -> None:
        """Closes connections that are past their time, until cancelled."""
        while True:
            await asyncio.sleep(self._header_timeout / LOOKS)
            now = time.monotonic()
            self._deadline = {
                connection: self._deadline.get(connection, now + self._header_timeout)
                for connection in server.connections
            }
            for connection in server.connections:
                if self._deadline[connection] < now:
                    connection.force_close()
