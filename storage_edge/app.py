"""Assembly of the edge's parts into an application, its metrics and its server, and their update after SIGHUP."""

import asyncio
import contextlib
import logging
import os
import shutil
import ssl
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from aiohttp import web

from common import operations
from common.client_address import networks
from common.concurrency import Rates
from common.lifecycle import BACKGROUND, SHUTDOWN, BackgroundTasks, Change, Check, Shutdown, Work
from common.serving import Endpoint, Serving
from storage_edge.cache.cache import Cache
from storage_edge.cache.origin import Origin
from storage_edge.client import handlers, operators
from storage_edge.client.answers import Sender, Streams
from storage_edge.client.callers import AccessLog, Proxies
from storage_edge.client.connections import Connections
from storage_edge.client.handlers import CONNECTIONS
from storage_edge.client.memory_hits import PlainHits
from storage_edge.metrics import Metrics
from storage_edge.request_rules import Rules
from storage_edge.settings import Settings
from storage_edge.storage.store import Store
from storage_edge.tls import origin_context

if TYPE_CHECKING:
    from storage_edge.storage.shared import SharedTier

#: Gauges that are added up over all workers.
SUMMED = frozenset(("edge_connections", "edge_origin_requests_active"))


def watch(
    metrics: Metrics, connections: Connections, origin: Origin, store: Store, shared: "SharedTier | None"
) -> None:
    """Register the gauges and counters of these parts."""
    health = origin.health
    metrics.gauge("edge_connections", "Open connections of clients.", lambda: len(connections))
    metrics.total("edge_connections_accepted", "Connections of clients so far.", lambda: connections.accepted)
    metrics.total(
        "edge_connections_refused", "Connections that were one too many.", lambda: connections.turned_away
    )
    metrics.gauge("edge_origin_requests_active", "Requests at work at the origin.", lambda: origin.at_work)
    metrics.gauge("edge_origin_up", "1 while the origin answers, else 0.", lambda: health.reachable)
    metrics.gauge(
        "edge_origin_token_right",
        "1 where the origin knows the storage token, 0 where it does not, NaN while that is not known.",
        lambda: {"right": 1.0, "wrong": 0.0}.get(health.token, float("nan")),
    )
    _watch_tiers(metrics, store)
    if shared is not None:
        health_of_store = shared.health
        metrics.gauge(
            "edge_shared_usable",
            "1 while the shared tier can be used, else 0.",
            lambda: not health_of_store.problem,
        )


def _watch_tiers(metrics: Metrics, store: Store) -> None:
    memory, disk = store.memory, store.disk
    metrics.gauge(
        "edge_tier_bytes",
        "Bytes that a tier holds.",
        lambda: {"memory": memory.used, "disk": disk.size},
        "tier",
    )
    metrics.gauge(
        "edge_tier_limit_bytes",
        "Bytes that a tier may hold.",
        lambda: {"memory": memory.limit, "disk": disk.budget},
        "tier",
    )
    metrics.gauge(
        "edge_tier_responses",
        "Responses that a tier holds (memory: URLs).",
        lambda: {"memory": len(memory), "disk": disk.responses},
        "tier",
    )
    metrics.total(
        "edge_evictions",
        "What had to leave a tier for others.",
        lambda: {"memory": memory.evicted, "disk": disk.evicted},
        "tier",
    )
    metrics.gauge(
        "edge_purges_pending", "Purges that hold and are not in the index yet.", lambda: disk.pending_purges
    )
    metrics.gauge("edge_disk_usable", "1 while the disk tier can be used, else 0.", lambda: not disk.problem)
    metrics.total("edge_disk_failures", "Times that the disk tier could not be used.", lambda: disk.failures)
    metrics.total(
        "edge_disk_damaged_files", "Files of the disk tier found damaged.", lambda: disk.files.damaged
    )


def served(app: web.Application, settings: Settings, context: ssl.SSLContext | None = None) -> Serving:
    """Return the description of a server for the application, with TLS if there is a `context`."""
    return Serving(
        app=app,
        endpoint=Endpoint(
            settings=settings,
            host=settings.host,
            port=settings.port,
            connections=app[CONNECTIONS],
            context=context,
            reuse_port=settings.reuse_port,
            descriptor=settings.listen_fd,
        ),
        options={
            "handler_cancellation": True,  # nobody waits for the answer once the client has disconnected
            "access_log_class": AccessLog,
            "access_log": logging.getLogger("storage_edge.access") if settings.access_log else None,
        },
    )


def reconfigured(app: web.Application, fresh: Settings) -> Change:
    """Prepare new settings for the parts that have derived objects from the old ones; the others read settings whenever
    they need them. Raise `ConfigError` if files for TLS to the origin cannot be used."""
    to_origin = origin_context(fresh)

    async def change() -> None:
        settings = app[handlers.SETTINGS]  # they have the new values now
        app[operators.ORIGIN].use(settings, to_origin)
        app[operators.ORIGIN].health.forget()
        app[handlers.RULES].use(settings)
        app[handlers.PROXIES].trust(settings.trusted_proxies)
        app[handlers.CONNECTIONS].trust(networks(settings.trusted_proxies))
        app[handlers.RATES].limit(settings.client_rate, settings.client_burst)
        app[handlers.STORE].resize(
            memory_bytes=settings.memory_bytes,
            memory_object_bytes=settings.memory_object_bytes,
            disk_bytes=settings.disk_bytes,
        )

    return change


if TYPE_CHECKING:
    from storage_edge.storage.shared import SharedTier

#: Seconds between two reports of used responses to the disk tier, which is tried at the same time.
TEND_INTERVAL = 10.0
#: Number of checks per interval whether the disk tier can be used. If not, it is tried at once.
LOOKS = 10
#: The rest of a path. File names may contain line breaks.
ANY_PATH = r"{path:[\s\S]*}"
#: The largest body of a purge.
MAX_PURGE_BYTES = 4 * 1024 * 1024


def create_app(
    settings: Settings,
    clock: Callable[[], float] = time.time,
    random_bytes: Callable[[int], bytes] = os.urandom,
) -> web.Application:
    """Return the edge as an application. `clock` returns seconds since 1970, `random_bytes` unpredictable bytes."""
    if settings.testing:
        clock = operators.MovableClock(clock)
    app = web.Application(client_max_size=MAX_PURGE_BYTES, middlewares=[handlers.identified])
    app.on_response_prepare.append(handlers.name_request)
    rules = app[handlers.RULES] = Rules(settings)
    app[handlers.SETTINGS] = settings
    metrics = app[handlers.METRICS] = Metrics(clock)
    proxies = app[handlers.PROXIES] = Proxies(settings.trusted_proxies, random_bytes)
    rates = app[handlers.RATES] = Rates()
    rates.limit(settings.client_rate, settings.client_burst)
    plain_hits = PlainHits(rules, metrics, clock, proxies, rates, settings, logged=settings.access_log)
    connections = app[handlers.CONNECTIONS] = Connections(plain_hits, settings)
    app[handlers.SENDER] = Sender(clock, random_bytes, Streams(connections))
    app[SHUTDOWN] = Shutdown()
    background = app[BACKGROUND] = BackgroundTasks(metrics.registry)

    async def parts(app: web.Application) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            origin = await stack.enter_async_context(
                contextlib.aclosing(Origin(settings, metrics, proxies.name))
            )
            directory = stack.enter_context(_directory(settings))
            store = await stack.enter_async_context(contextlib.aclosing(_store(settings, directory, clock)))
            shared = _shared(settings, metrics)
            cache = Cache(origin, store, settings, clock, metrics, shared)
            await stack.enter_async_context(contextlib.aclosing(cache))
            app[operators.ORIGIN], app[handlers.STORE], app[handlers.CACHE] = origin, store, cache
            plain_hits.cache = cache
            watch(metrics, connections, origin, store, shared)
            if shared is not None:
                checks["shared_store"] = shared.health.check
            for name, work in _background(settings, origin, store, shared).items():
                background.start(name, work)
                stack.push_async_callback(background.finish, name, 0)
            yield

    app.cleanup_ctx.append(parts)
    _let_be_steered(app, clock)
    checks = {**_checks(app), "background": background.check}
    operations.setup(app, settings, metrics.registry, checks, shares_port=settings.reuse_port, summed=SUMMED)
    app.add_routes(OTHER_PATHS)
    return app


def _let_be_steered(app: web.Application, clock: Callable[[], float]) -> None:
    operators.setup(app, clock)
    if isinstance(clock, operators.MovableClock):
        operators.setup_controls(app, clock)


def _checks(app: web.Application) -> dict[str, Check]:
    """Return the readiness checks of the parts that exist once the application has started."""

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
    # these take megabytes, and few edges need them
    from storage_edge.storage.shared import SharedTier, open_store

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
