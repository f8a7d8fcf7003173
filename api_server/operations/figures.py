"""Figures of the whole instance: read once for all callers, stored over time, and exported to Prometheus.

docs/monitoring.md lists the metrics. Counters of this process are always present. Figures from the database
are read at most every few seconds; if it cannot be read, they are left out, and `forgelet_database_up` is 0.
"""

import asyncio
import datetime
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from importlib import metadata
from typing import Any

import attrs
import structlog
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api_server.git import spawning
from api_server.operations import figure_queries
from api_server.operations.failing import KINDS, RUNNER_SILENCE, failing
from api_server.outbound.edges import EDGES
from api_server.services import Key, Services
from api_server.state import driver, objects
from api_server.state.database import Database, Executor
from api_server.state.errors import Unavailable
from common.logs import ThrottledLog

#: Seconds for which figures are reused.
FRESH_SECONDS = 5.0
#: Maximum time of a query for a metric or a page.
TIMEOUT_SECONDS = 8.0


@attrs.frozen(kw_only=True)
class Figures:
    """The figures at the moment `at`: unfinished jobs by status, the queue by task, and so on. `failing` has
    the number of failures in `failing()` for every kind."""

    at: datetime.datetime
    jobs: Mapping[str, int]
    queue: list[figure_queries.QueueOfTask]
    deliveries: figure_queries.Deliveries
    mirrors: list[figure_queries.Mirrors]
    runners_alive: int
    workers_alive: int
    failing: Mapping[str, int]


async def read_figures(database: Database, tasks: list[str], worker_timeout: float) -> Figures:
    """Read all figures; `tasks` are the names of all existing tasks. Processes that have been silent for
    `worker_timeout` seconds do not count as doing background work. Raise `Unavailable`."""
    now = database.now
    counts = Counter(row.kind for row in await failing(database, now))
    return Figures(
        at=now,
        jobs={row.status: row.count for row in await figure_queries.jobs(database)},
        queue=await figure_queries.queue(database, tasks),
        deliveries=await figure_queries.deliveries(database),
        mirrors=await figure_queries.mirrors(database),
        runners_alive=await figure_queries.alive_runners(database, now - RUNNER_SILENCE),
        workers_alive=await figure_queries.alive_workers(
            database, now - datetime.timedelta(seconds=worker_timeout)
        ),
        failing={kind: counts[kind] for kind in KINDS},
    )


class FreshFigures:
    """The cached figures of an application. Concurrent callers wait for the same reading."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._read_at = -FRESH_SECONDS
        self._cached: Figures | None = None
        self._reading = asyncio.Lock()

    def forget(self) -> None:
        """Read the figures again on the next call."""
        self._cached = None

    async def get(self) -> Figures:
        """Return the figures. Raise `Unavailable`, and TimeoutError if the database is slow."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(TIMEOUT_SECONDS), self._reading:
            if self._cached is None or loop.time() - self._read_at >= FRESH_SECONDS:
                self._cached = await read_figures(
                    self._services.database,
                    self._services.queue.names,
                    self._services.settings.worker_timeout,
                )
                self._read_at = loop.time()
            return self._cached


FIGURES = Key[FreshFigures]("figures")


#: The stored figures by name, with a description.
SAMPLE_NAMES = {
    "jobs_created": "jobs that wait for others",
    "jobs_pending": "jobs that wait for a runner",
    "jobs_running": "jobs that runners have",
    "jobs_succeeded": "jobs that have succeeded in the minute",
    "jobs_failed": "jobs that have failed in the minute",
    "queue_waiting": "background tasks that wait",
    "queue_age_seconds": "seconds for which the oldest task that is due has been",
    "queue_failed": "background tasks that have failed permanently",
    "deliveries_queued": "deliveries that wait",
    "deliveries_due": "deliveries that are due",
    "deliveries_failing": "status checks whose receiver fails",
    "deliveries_paused": "status checks that are paused",
    "mirrors_finished": "mirrors whose last run has succeeded",
    "mirrors_failing": "mirrors whose last run has failed",
    "runners_alive": "runners that were heard of in the last two minutes",
    "failing": "things that fail",
    "requests": "requests answered in the minute",
    "slow_requests": "requests of the minute that took longer than a second",
    "database_bytes": "size of the database",
    "store_bytes": "size of the stored objects, estimated",
    "edge_requests": "requests to the edges since their start",
    "edge_hits": "requests that edges have answered from what they keep, since their start",
    "edge_bytes_sent": "bytes that edges have sent, since their start",
    "edge_bytes_from_origin": "bytes that edges have fetched from this service, since their start",
    "edge_hit_ratio": "part of the minute's requests that edges have answered from what they keep, 0 to 1",
    "edge_bytes_saved": "bytes of the minute that edges have sent and not fetched",
}
#: Edges' names for answers from the store.
_HITS = ("hit", "stale", "validated", "validated_for_user", "collapsed")
#: Maximum age of the counters from which the increase in the last minute is computed.
_BEFORE = datetime.timedelta(minutes=5)


async def history(
    database: Executor, names: Sequence[str], since: datetime.datetime
) -> dict[str, list[tuple[datetime.datetime, float]]]:
    """Return for each of `names`, which are from `SAMPLE_NAMES`, moments and values from `since` on, the
    oldest first; minutes without a sample are missing."""
    samples: dict[str, list[tuple[datetime.datetime, float]]] = {name: [] for name in names}
    for sample in await figure_queries.history(database, names, since):
        samples[sample.name].append((sample.at, sample.value))
    return samples


async def keep_sample(database: Database, values: Mapping[str, float], *, sums: bool = False) -> None:
    """Store values for the present minute; with `sums`, add them to the values of other processes."""
    async with database.transaction() as transaction:
        await figure_queries.add_samples(transaction, values, sums=sums)
        transaction.has_written = False  # samples are not cached


async def take_sample(database: Database, figures: Figures, edges: Iterable[Mapping[str, Any]]) -> None:
    """Store the figures of the present minute; `edges` are the edges' own reports."""
    minute = datetime.timedelta(minutes=1)
    finished = {
        row.status: row.count for row in await figure_queries.finished(database, database.now - minute)
    }
    values = (
        _sampled_figures(figures)
        | {
            "jobs_succeeded": finished.get("success", 0),
            "jobs_failed": finished.get("failed", 0),
            "database_bytes": await figure_queries.database_bytes(database),
            "store_bytes": await figure_queries.store_bytes(database),
        }
        | await _sampled_edges(database, edges)
    )
    await keep_sample(database, values)


def _sampled_figures(figures: Figures) -> dict[str, float]:
    oldest = min((row.due_since for row in figures.queue if row.due_since is not None), default=figures.at)
    mirrors = {row.status: row.count for row in figures.mirrors}
    return {
        **{f"jobs_{status}": figures.jobs.get(status, 0) for status in ("created", "pending", "running")},
        "queue_waiting": sum(row.waiting for row in figures.queue),
        "queue_age_seconds": max((figures.at - oldest).total_seconds(), 0),
        "queue_failed": sum(row.failed for row in figures.queue),
        "deliveries_queued": figures.deliveries.queued,
        "deliveries_due": figures.deliveries.due,
        "deliveries_failing": figures.deliveries.failing,
        "deliveries_paused": figures.deliveries.paused,
        "mirrors_finished": mirrors.get("finished", 0),
        "mirrors_failing": mirrors.get("failed", 0) + mirrors.get("to_retry", 0),
        "runners_alive": figures.runners_alive,
        "failing": sum(figures.failing.values()),
    }


async def _sampled_edges(database: Database, edges: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the edges' counters and their increases in the last minute."""
    now = _counters(edges)
    if not now:
        return {}
    before = await history(database, list(now), database.now - _BEFORE)
    increases = {name: _growth(before[name], value) for name, value in now.items()}
    values = dict(now)
    if increases["edge_requests"]:
        values["edge_hit_ratio"] = min(increases["edge_hits"] / increases["edge_requests"], 1.0)
    values["edge_bytes_saved"] = max(increases["edge_bytes_sent"] - increases["edge_bytes_from_origin"], 0)
    return values


def _counters(edges: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for edge in edges:
        requests, traffic = edge.get("requests") or {}, edge.get("bytes") or {}
        for name, value in {
            "edge_requests": sum(requests.values()),
            "edge_hits": sum(requests.get(hit, 0) for hit in _HITS),
            "edge_bytes_sent": traffic.get("sent", 0),
            "edge_bytes_from_origin": traffic.get("from_origin", 0),
        }.items():
            total[name] = total.get(name, 0) + value
    return total


def _growth(before: Sequence[tuple[datetime.datetime, float]], now: float) -> float:
    """Return the increase of a counter since its last sample; a smaller counter has been reset."""
    last = before[-1][1] if before else now
    return now - last if now >= last else now


def setup_samples(services: Services) -> None:
    """Register the task that takes a sample each minute."""
    services[FIGURES] = FreshFigures(services)

    async def sample_figures() -> None:
        database = services.database
        statuses = (await services[EDGES].statuses()).values()
        await take_sample(
            database,
            await services[FIGURES].get(),
            [status for status in statuses if isinstance(status, dict)],
        )
        hours = datetime.timedelta(hours=services.settings.samples_hours)
        async with database.transaction() as transaction:
            await figure_queries.forget_samples(transaction, database.now - hours)
            transaction.has_written = False  # samples are not cached

    services.queue.add_periodic("sample_figures", "* * * * *", sample_figures)


#: Gauges that are summed over several workers; all others have the same value in each.
SUMMED = frozenset(
    f"forgelet_{name}"
    for name in ("git_processes", "database_pool_size", "database_pool_used", "database_pool_waiting")
)

log = ThrottledLog(structlog.get_logger(__name__), seconds=60)


class _Values(Collector):
    """Metrics that a function computes on request."""

    def __init__(self, values: Callable[[], Iterable[Metric]]) -> None:
        self._values = values

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._values()


def setup_metrics(services: Services, registry: CollectorRegistry) -> Callable[[], Awaitable[None]]:
    """Register all metrics except those of requests; return the function to await before metrics are
    shown."""
    latest: list[Figures] = []

    async def read() -> None:
        latest.clear()
        try:
            latest.append(await services[FIGURES].get())
        except (Unavailable, TimeoutError) as problem:
            log.warning("metrics of the database are left out", about=type(problem).__name__)

    def of_database() -> Iterable[Metric]:
        yield gauge("database_up", "1 while the database answers, else 0.", float(bool(latest)))
        for figures in latest:
            yield from _of_figures(figures)

    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    for collector in (
        driver.STATEMENTS,
        objects.STORE_ERRORS,
        _Values(lambda: _of_process(services)),
        _Values(of_database),
    ):
        registry.register(collector)
    return read


def gauge(name: str, documentation: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"forgelet_{name}", documentation, value=value)


def _labelled(
    name: str, documentation: str, label: str, values: Iterable[tuple[str, float]]
) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"forgelet_{name}", documentation, labels=[label])
    for key, value in values:
        family.add_metric([key], value)
    return family


def _of_process(services: Services) -> Iterable[Metric]:
    version = GaugeMetricFamily("forgelet_build_info", "1, with the version.", labels=["version"])
    version.add_metric([metadata.version("forgelet")], 1)
    yield version
    yield gauge("git_processes", "git processes of this process that run now.", len(spawning.RUNNING))
    database = services.database
    if database is None:
        return
    pool = database.pool
    yield gauge("database_pool_size", "Connections that this process may have.", pool.size)
    yield gauge("database_pool_used", "Connections of the pool in use.", pool.used)
    yield gauge("database_pool_waiting", "Statements that wait for a connection now.", pool.waiting)
    yield CounterMetricFamily(
        "forgelet_database_pool_waits", "Times that a connection had to be waited for.", value=pool.waits
    )
    yield CounterMetricFamily(
        "forgelet_database_pool_wait_seconds", "Seconds waited for connections.", value=pool.waited_seconds
    )
    if database.replicas is not None:
        replicas = database.replicas.all
        ready = sum(replica.is_ready for replica in replicas)
        yield gauge("database_replicas_ready", "Replicas that take reads now.", ready)
        yield CounterMetricFamily(
            "forgelet_database_replica_reads",
            "Statements that replicas have answered.",
            value=sum(replica.reads for replica in replicas),
        )


def _of_figures(figures: Figures) -> Iterable[Metric]:
    queue = figures.queue
    yield _labelled(
        "queue_tasks", "Background tasks that wait.", "task", ((row.task, row.waiting) for row in queue)
    )
    yield _labelled(
        "queue_failed_tasks",
        "Background tasks that have failed permanently.",
        "task",
        ((row.task, row.failed) for row in queue),
    )
    yield _labelled(
        "queue_age_seconds",
        "For how long the task has been due that waits longest; 0: none.",
        "task",
        ((row.task, _age(figures.at, row.due_since)) for row in queue),
    )
    yield _labelled("jobs", "Jobs that are not finished, by status.", "status", _jobs(figures))
    deliveries = figures.deliveries
    yield gauge("deliveries_queued", "Deliveries that wait, due or not.", deliveries.queued)
    yield gauge("deliveries_due", "Deliveries that are due.", deliveries.due)
    yield gauge("deliveries_failing_checks", "Status checks whose receiver fails.", deliveries.failing)
    yield gauge("deliveries_paused_checks", "Status checks that are paused.", deliveries.paused)
    mirrors = {row.status: row for row in figures.mirrors}
    yield _labelled(
        "mirrors",
        "Enabled mirrors by state.",
        "state",
        ((state, mirrors[state].count if state in mirrors else 0) for state in _MIRROR_STATES),
    )
    yield _labelled(
        "mirrors_oldest_success_age_seconds",
        "How long ago the last success is, of the mirror of a state where that is longest; 0: none.",
        "state",
        (
            (state, _age(figures.at, mirrors[state].oldest_success) if state in mirrors else 0)
            for state in _MIRROR_STATES
        ),
    )
    yield gauge("runners_alive", "Active runners heard of in the last two minutes.", figures.runners_alive)
    yield gauge("workers_alive", "Processes that do background work.", figures.workers_alive)
    yield _labelled("failing", "What fails now, by kind; 100 at most.", "kind", figures.failing.items())


_MIRROR_STATES = ("none", "started", "finished", "to_retry", "failed")
_JOB_STATUSES = (
    "created",
    "waiting_for_resource",
    "preparing",
    "pending",
    "running",
    "canceling",
    "scheduled",
)


def _jobs(figures: Figures) -> Iterable[tuple[str, float]]:
    return ((status, figures.jobs.get(status, 0)) for status in _JOB_STATUSES)


def _age(now: datetime.datetime, since: datetime.datetime | None) -> float:
    return 0.0 if since is None else max((now - since).total_seconds(), 0.0)
