"""What an edge is told, in the place of the edge."""

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
    """The surrogate keys that the service has told of since it was last asked."""

    keys: set[str] = attrs.field(factory=set)

    async def by(self, change: Awaitable[Answer]) -> set[str]:
        """Those of one change, which succeeds; it is answered only when edges know."""
        self.keys.clear()
        answer = await change
        assert answer.status < 300, answer
        return set(self.keys)


@contextlib.asynccontextmanager
async def forge_with_edge(
    new_database: Callable[[], str], data_dir: Path, **settings: Any
) -> AsyncIterator[tuple[Forge, Told]]:
    """A server that tells one edge. It does no work in the background, which would tell the same a second time, at any
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
