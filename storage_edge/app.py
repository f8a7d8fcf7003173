"""The one place where the edge's parts are joined."""

import asyncio
import contextlib
import os
import shutil
import sqlite3
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from common import operations
from common.ending import end
from storage_edge.cache.cache import Cache
from storage_edge.cache.fetching import CacheOptions
from storage_edge.cache.origin import Origin
from storage_edge.client import handlers
from storage_edge.client.answers import Sender
from storage_edge.client.connections import Connections
from storage_edge.client.memory_hits import RepeatedHits
from storage_edge.metrics import Metrics
from storage_edge.request_rules import Rules
from storage_edge.settings import Settings
from storage_edge.tiers.store import Store

if TYPE_CHECKING:
    from storage_edge.tiers.shared import SharedTier

log = structlog.get_logger(__name__)

ORIGIN = web.AppKey("origin", Origin)
#: Seconds between two reports of used responses to the disk tier.
USE_INTERVAL = 10.0
#: The rest of a path; file names may hold line breaks.
ANY_PATH = r"{path:[\s\S]*}"
#: Largest body of a purge.
MAX_PURGE_BYTES = 4 * 1024 * 1024


def create_app(
    settings: Settings,
    clock: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> web.Application:
    """The edge as an application; `clock` gives seconds since 1970, `random_bytes` what nobody can guess."""
    app = web.Application(client_max_size=MAX_PURGE_BYTES)
    app[handlers.RULES] = Rules(
        str(settings.origin_url),
        forward_all=settings.forward_all_headers,
        client_directives=settings.client_directives,
    )
    metrics = app[handlers.METRICS] = Metrics()
    repeated = RepeatedHits(metrics, clock, logged=settings.access_log)
    app[handlers.CONNECTIONS] = Connections(repeated, settings)
    app[handlers.SENDER] = Sender(clock, random_bytes)

    async def parts(app: web.Application) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as opened:
            origin = await opened.enter_async_context(contextlib.aclosing(_origin(settings)))
            directory = opened.enter_context(_directory(settings))
            store = await opened.enter_async_context(contextlib.aclosing(_store(settings, directory, clock)))
            shared = _shared(settings, metrics)
            cache = Cache(origin, store, _options(settings), clock, metrics, shared)
            await opened.enter_async_context(contextlib.aclosing(cache))
            app[ORIGIN], app[handlers.STORE], app[handlers.CACHE] = origin, store, cache
            repeated.cache = cache
            _watch(metrics, store)
            opened.push_async_callback(end, asyncio.create_task(_report_uses(store)))
            yield

    async def origin_answers() -> None:
        await app[ORIGIN].check()

    app.cleanup_ctx.append(parts)
    operations.setup(app, settings, metrics.registry, {"origin": origin_answers})
    if settings.purge_token:
        app[handlers.PURGE_TOKEN] = str(settings.purge_token)
        app.router.add_post("/-/purge", handlers.purge)
    app.router.add_route("*", f"/-/{ANY_PATH}", _not_found)
    app.router.add_route("*", f"/{ANY_PATH}", handlers.static_object)
    return app


async def _not_found(_request: web.Request) -> web.Response:
    return web.json_response({"error": "404 Not Found"}, status=404)


def _origin(settings: Settings) -> Origin:
    return Origin(
        settings.origin_url,
        storage_token=str(settings.storage_token),
        token_headers=settings.token_headers,
        connections=settings.origin_connections,
        connections_of_one=settings.origin_connections_per_address,
        patience=settings.origin_patience,
        timeout=settings.origin_timeout,
    )


def _store(settings: Settings, directory: Path, clock: Callable[[], float]) -> Store:
    return Store(
        directory,
        clock,
        memory_bytes=settings.memory_bytes,
        memory_object_bytes=settings.memory_object_bytes,
        disk_bytes=settings.disk_bytes,
    )


def _shared(settings: Settings, metrics: Metrics) -> "SharedTier | None":
    if not settings.shared_store_url:
        return None
    from storage_edge.tiers.shared import SharedTier, open_store  # five megabytes that most edges do not need

    store = open_store(settings.shared_store_url, settings.shared_store_timeout)
    return SharedTier(store, settings.shared_store_timeout, metrics.shared)


def _options(settings: Settings) -> CacheOptions:
    return CacheOptions(
        origin_patience=settings.origin_patience,
        private_grace=settings.private_grace,
        negative_seconds=settings.negative_seconds,
        stale_when_unreachable=settings.stale_when_unreachable,
    )


@contextlib.contextmanager
def _directory(settings: Settings) -> Iterator[Path]:
    if settings.data_dir is not None:
        yield settings.data_dir
        return
    directory = Path(tempfile.mkdtemp(prefix="storage-edge-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _watch(metrics: Metrics, store: Store) -> None:
    metrics.watch("memory_bytes", "Bytes of the memory tier.", lambda: store.memory_used)
    metrics.watch("disk_bytes", "Bytes of the disk tier.", lambda: store.disk_used)
    metrics.watch("evictions", "Bodies evicted from the disk tier.", lambda: store.evicted)


async def _report_uses(store: Store) -> None:
    while True:
        await asyncio.sleep(USE_INTERVAL)
        try:
            await store.flush_uses()
        except sqlite3.Error as error:
            log.warning("the index could not note uses", reason=type(error).__name__)
