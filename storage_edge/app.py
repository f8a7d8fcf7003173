"""The one place where the edge's parts are joined."""

import asyncio
import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from common import operations
from common.concurrency import Rates
from common.lifecycle import BACKGROUND, SHUTDOWN, BackgroundTasks, Check, Shutdown, Work
from storage_edge.cache.cache import Cache
from storage_edge.cache.origin import Origin
from storage_edge.client import controls, handlers, operators, watched
from storage_edge.client.answers import Sender
from storage_edge.client.connections import Connections
from storage_edge.client.plain_hits import PlainHits
from storage_edge.client.streaming import Streams
from storage_edge.client.who import Proxies
from storage_edge.metrics import Metrics
from storage_edge.request_rules import Rules
from storage_edge.settings import Settings
from storage_edge.tiers.store import Store

if TYPE_CHECKING:
    from storage_edge.tiers.shared import SharedTier

#: Seconds between two reports of used responses to the disk tier, which is tried then.
TEND_INTERVAL = 10.0
#: How often one looks meanwhile whether it can be used; if not, it is tried at once.
LOOKS = 10
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
    if settings.testing:
        clock = controls.MovableClock(clock)
    app = web.Application(client_max_size=MAX_PURGE_BYTES, middlewares=[handlers.identified])
    app.on_response_prepare.append(handlers.name_request)
    rules = app[handlers.RULES] = Rules(settings)
    app[handlers.SETTINGS] = settings
    metrics = app[handlers.METRICS] = Metrics(clock)
    proxies = app[handlers.PROXIES] = Proxies(settings.trusted_proxies, random_bytes)
    rates = app[handlers.RATES] = Rates()
    rates.limit(settings.client_rate, settings.client_burst)
    plain = PlainHits(rules, metrics, clock, proxies, rates, settings, logged=settings.access_log)
    connections = app[handlers.CONNECTIONS] = Connections(plain, settings)
    app[handlers.SENDER] = Sender(clock, random_bytes, Streams(connections))
    app[SHUTDOWN] = Shutdown()
    background = app[BACKGROUND] = BackgroundTasks(metrics.registry)

    async def parts(app: web.Application) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as opened:
            origin = await opened.enter_async_context(
                contextlib.aclosing(Origin(settings, metrics, proxies.name))
            )
            directory = opened.enter_context(_directory(settings))
            store = await opened.enter_async_context(contextlib.aclosing(_store(settings, directory, clock)))
            shared = _shared(settings, metrics)
            cache = Cache(origin, store, settings, clock, metrics, shared)
            await opened.enter_async_context(contextlib.aclosing(cache))
            app[operators.ORIGIN], app[handlers.STORE], app[handlers.CACHE] = origin, store, cache
            plain.cache = cache
            watched.watch(metrics, connections, origin, store, shared)
            if shared is not None:
                checks["shared_store"] = shared.health.check
            for name, work in _background(settings, origin, store, shared).items():
                background.start(name, work)
                opened.push_async_callback(background.finish, name, 0)
            yield

    app.cleanup_ctx.append(parts)
    _let_be_steered(app, clock)
    checks = {**_checks(app), "background": background.check}
    operations.setup(
        app, settings, metrics.registry, checks, shares_port=settings.reuse_port, summed=watched.SUMMED
    )
    app.add_routes(OTHER_PATHS)
    return app


def _let_be_steered(app: web.Application, clock: Callable[[], float]) -> None:
    operators.setup(app, clock)
    if isinstance(clock, controls.MovableClock):
        controls.setup(app, clock)


def _checks(app: web.Application) -> dict[str, Check]:
    """Readiness of the parts that there will be when the application has started."""

    async def origin_answers() -> None:
        await app[operators.ORIGIN].health.check()

    async def disk_is_usable() -> None:
        await app[handlers.STORE].check()

    return {"origin": origin_answers, "disk": disk_is_usable, "purges": app[operators.TROUBLE].check}


async def _not_found(_request: web.Request) -> web.Response:
    return web.json_response({"error": "404 Not Found"}, status=404)


OTHER_PATHS = [
    web.route("*", f"/-/{ANY_PATH}", _not_found),
    web.route("*", f"/{ANY_PATH}", handlers.static_object),
]


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
    # megabytes that few edges need
    from storage_edge.tiers.shared import SharedTier, open_store

    store = open_store(settings.shared_store_url, settings.shared_store_timeout)
    return SharedTier(store, settings.shared_store_timeout, settings.shared_store_pause, metrics.shared)


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


def _background(
    settings: Settings, origin: Origin, store: Store, shared: "SharedTier | None"
) -> dict[str, Work]:
    work: dict[str, Work] = {
        "disk tier": lambda: _tend(store),
        "check of stored bodies": lambda: _check(store, settings),
        "check of the origin": origin.health.watch,
    }
    if shared is not None:
        work["shared store"] = shared.health.watch
    return work


async def _tend(store: Store) -> None:
    while True:
        for _ in range(LOOKS):
            await asyncio.sleep(TEND_INTERVAL / LOOKS)
            if store.disk.problem:
                break
        await store.tend()


async def _check(store: Store, settings: Settings) -> None:
    while True:
        if settings.disk_check_rate:
            await store.check_bodies(settings.disk_check_rate)
        else:
            await asyncio.sleep(TEND_INTERVAL)
