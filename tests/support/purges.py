"""A stand-in for an edge that records the purges of a service."""

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.forge import Answer, Forge, running_forge

TOKEN = "purge-token-of-the-tests"


@attrs.define
class Told:
    """The surrogate keys of which the service has notified the edge since the last call of `by`."""

    keys: set[str] = attrs.field(factory=set)

    async def by(self, change: Awaitable[Answer]) -> set[str]:
        """Return the keys of one change, which has to succeed; it is answered only after edges are notified."""
        self.keys.clear()
        answer = await change
        assert answer.status < 300, answer
        return set(self.keys)


@contextlib.asynccontextmanager
async def forge_with_edge(
    new_database: Callable[[], str], data_dir: Path, **settings: Any
) -> AsyncIterator[tuple[Forge, Told]]:
    """Run a server that notifies one edge. It has no background work, which would notify the edge again at some
    moment."""
    told = Told()

    async def purge(request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        told.keys.update((await request.json())["keys"])
        return web.json_response({"purged": 1})

    app = web.Application()
    app.router.add_post("/-/purge", purge)
    async with TestServer(app) as edge:
        urls = [str(edge.make_url("")).rstrip("/")]
        options = {"edge_urls": urls, "edge_purge_token": TOKEN, "work": False} | settings
        async with running_forge(new_database(), data_dir, **options) as forge:
            yield forge, told
