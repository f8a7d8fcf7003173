"""A server whose connections to the database a test can break."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit, urlunsplit

import attrs

from scripts.faults.surroundings import Proxy
from tests.support.forge import Forge, running_forge
from tests.support.ports import free_port

#: Bytes that PostgreSQL never sends.
GARBAGE = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n"


@attrs.frozen
class Way:
    """The connection to the database through a proxy."""

    proxy: Proxy
    url: str

    def take(self, how: str) -> None:
        """Break connections. `how`: they are refused, cut in the middle of statements, answered with garbage, or never
        answered."""
        self.proxy.refusing = how == "refused"
        self.proxy.cutting = how == "cut"
        self.proxy.instead = GARBAGE if how == "garbage" else b""
        self.proxy.delay = 3600 if how == "silent" else 0
        if how == "refused":
            self.proxy.drop()

    def give_back(self) -> None:
        self.proxy.refusing, self.proxy.cutting, self.proxy.instead, self.proxy.delay = False, False, b"", 0
        self.proxy.drop()


@contextlib.asynccontextmanager
async def way_to(database_url: str) -> AsyncIterator[Way]:
    """Run a proxy for the server on a Unix socket at `database_url`."""
    parts = urlsplit(database_url)
    socket = f"{parse_qs(parts.query)['host'][0]}/.s.PGSQL.5432"
    port = free_port()
    through = parts._replace(netloc=f"{parts.netloc}127.0.0.1:{port}", query="sslmode=disable")
    async with Proxy(port, lambda: socket) as proxy:
        yield Way(proxy, urlunsplit(through))


@contextlib.asynccontextmanager
async def forge_on_the_way(
    database_url: str, data_dir: Path, **settings: Any
) -> AsyncIterator[tuple[Forge, Way]]:
    """Run a server that gives up waiting for its database within seconds."""
    quick = {"database_connect_timeout": 1.0, "database_statement_timeout": 1.0, "database_pool": 3}
    async with way_to(database_url) as way, running_forge(way.url, data_dir, **quick | settings) as forge:
        try:
            yield forge, way
        finally:
            way.give_back()
