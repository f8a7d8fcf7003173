"""Telling the storage edges that what they keep has changed (decision D9).

A purge is queued with the change that needs it, and tried once before that change's request is answered: after the
answer no edge that can be reached serves what it should not.
"""

import asyncio
from contextvars import ContextVar

import aiohttp
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.settings import Settings
from api_server.state.database import Transaction
from api_server.state.queue import enqueue

log = structlog.get_logger(__name__)

TASK = "purge_edges"
_TIMEOUT = aiohttp.ClientTimeout(total=3)
_changed: ContextVar[set[str] | None] = ContextVar("changed", default=None)


def project_key(project_id: int) -> str:
    """The surrogate key of everything of a project."""
    return f"project-{project_id}"


async def changed(transaction: Transaction, *keys: str) -> None:
    """What the edges keep under `keys` must not be served again once the transaction has committed."""
    if not keys:
        return
    await enqueue(transaction, TASK, keys=sorted(keys))
    noted = _changed.get()
    if noted is not None:
        noted.update(keys)


class Edges:
    """The purge APIs of the configured edges; calls to addresses that users name go through `outgoing`."""

    def __init__(self, settings: Settings, session: aiohttp.ClientSession) -> None:
        self._urls = [f"{url.rstrip('/')}/-/purge" for url in settings.edge_urls]
        self._settings = settings
        self._session = session

    async def purge(self, keys: list[str]) -> None:
        """Raises OSError or aiohttp's errors where an edge was not reached or did not accept."""
        await asyncio.gather(*(self._purge(url, keys) for url in self._urls))

    async def _purge(self, url: str, keys: list[str]) -> None:
        headers = {"Authorization": f"Bearer {self._settings.edge_purge_token}"}
        async with self._session.post(url, json={"keys": keys}, headers=headers, timeout=_TIMEOUT) as answer:
            answer.raise_for_status()


EDGES = web.AppKey("edges", Edges)


@web.middleware
async def tell_edges(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Tries the purges that the request has queued before it is answered; the queue repeats what fails."""
    if request.method in ("GET", "HEAD", "OPTIONS"):
        return await handler(request)
    token = _changed.set(set())
    try:
        return await handler(request)
    finally:
        await tell_now(request)
        _changed.reset(token)


async def tell_now(request: web.Request) -> None:
    """What `tell_edges` does, for handlers that stream their answer and are nearly done."""
    noted = _changed.get()
    if not noted:
        return
    keys = sorted(noted)
    noted.clear()
    try:
        await request.config_dict[EDGES].purge(keys)
    except (aiohttp.ClientError, OSError, TimeoutError) as problem:
        log.warning("an edge was not told at once, the queue goes on trying", problem=type(problem).__name__)
