"""What the API server tells Prometheus: docs/monitoring.md has the names.

What this process counts itself is always there. What is read from the database is read at most every few seconds; while
it cannot be read, it is left out, and `forgelet_database_up` is 0.
"""

import datetime
from collections.abc import Awaitable, Callable, Iterable
from importlib import metadata

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, GCCollector, PlatformCollector, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from api_server.git import spawning
from api_server.operations.figures import FIGURES, Figures
from api_server.state import driver, objects
from api_server.state.errors import Unavailable
from api_server.web.context import DATABASE
from common.logs import ThrottledLog

#: Gauges that are added up where there are several workers; all others tell the same in each.
SUMMED = frozenset(
    f"forgelet_{name}"
    for name in ("git_processes", "database_pool_size", "database_pool_used", "database_pool_waiting")
)

log = ThrottledLog(structlog.get_logger(__name__), seconds=60)


class _Values(Collector):
    """Metrics that a function gives when they are asked for."""

    def __init__(self, values: Callable[[], Iterable[Metric]]) -> None:
        self._values = values

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        return self._values()


def setup(app: web.Application, registry: CollectorRegistry) -> Callable[[], Awaitable[None]]:
    """Registers everything but the requests; gives what has to be awaited before metrics are shown."""
    known: list[Figures] = []

    async def read() -> None:
        known.clear()
        try:
            known.append(await app[FIGURES].get())
        except (Unavailable, TimeoutError) as problem:
            log.warning("metrics of the database are left out", about=type(problem).__name__)

    def of_database() -> Iterable[Metric]:
        yield gauge("database_up", "1 while the database answers, else 0.", float(bool(known)))
        for figures in known:
            yield from _of_figures(figures)

    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    GCCollector(registry=registry)
    for collector in (
        driver.STATEMENTS,
        objects.STORE_ERRORS,
        _Values(lambda: _of_process(app)),
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


def _of_process(app: web.Application) -> Iterable[Metric]:
    version = GaugeMetricFamily("forgelet_build_info", "1, with the version.", labels=["version"])
    version.add_metric([metadata.version("forgelet")], 1)
    yield version
    yield gauge("git_processes", "git processes of this process that run now.", len(spawning.RUNNING))
    database = app.get(DATABASE)
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
        each = database.replicas.each
        ready = sum(replica.is_ready for replica in each)
        yield gauge("database_replicas_ready", "Replicas that take reads now.", ready)
        yield CounterMetricFamily(
            "forgelet_database_replica_reads",
            "Statements that replicas have answered.",
            value=sum(replica.reads for replica in each),
        )


def _of_figures(figures: Figures) -> Iterable[Metric]:
    queue = figures.queue
    yield _labelled(
        "queue_tasks", "Background tasks that wait.", "task", ((one.task, one.waiting) for one in queue)
    )
    yield _labelled(
        "queue_failed_tasks",
        "Background tasks that have failed for good.",
        "task",
        ((one.task, one.failed) for one in queue),
    )
    yield _labelled(
        "queue_age_seconds",
        "For how long the task has been due that waits longest; 0: none.",
        "task",
        ((one.task, _age(figures.at, one.due_since)) for one in queue),
    )
    yield _labelled("jobs", "Jobs that are not finished, by status.", "status", _jobs(figures))
    deliveries = figures.deliveries
    yield gauge("deliveries_queued", "Deliveries that wait, due or not.", deliveries.queued)
    yield gauge("deliveries_due", "Deliveries that are due.", deliveries.due)
    yield gauge("deliveries_failing_checks", "Status checks whose receiver fails.", deliveries.failing)
    yield gauge("deliveries_paused_checks", "Status checks that are paused.", deliveries.paused)
    mirrors = {one.status: one for one in figures.mirrors}
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
