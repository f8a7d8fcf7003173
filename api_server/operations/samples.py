"""Figures over time: one process writes them down each minute, and each what only it knows; old ones go."""

import datetime
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aiohttp import web

from api_server.operations import figure_queries, sample_queries
from api_server.operations.figures import FIGURES, Figures, FreshFigures
from api_server.outbound.edges import EDGES
from api_server.state.database import Database, Executor
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE, SETTINGS

#: What is kept, by name, with what it is in words.
NAMES = {
    "jobs_created": "jobs that wait for others",
    "jobs_pending": "jobs that wait for a runner",
    "jobs_running": "jobs that runners have",
    "jobs_succeeded": "jobs that have succeeded in the minute",
    "jobs_failed": "jobs that have failed in the minute",
    "queue_waiting": "background tasks that wait",
    "queue_age_seconds": "seconds for which the oldest task that is due has been",
    "queue_failed": "background tasks that have failed for good",
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
#: What edges call answers that came from what they keep.
_HITS = ("hit", "stale", "validated", "validated_for_user", "collapsed")
#: How far back the counters are that the minute is measured from.
_BEFORE = datetime.timedelta(minutes=5)


async def history(
    database: Executor, names: Sequence[str], since: datetime.datetime
) -> dict[str, list[tuple[datetime.datetime, float]]]:
    """For each of `names` (those of `NAMES`) moments and values from `since` on, the oldest first; a minute in which
    nobody looked is missing."""
    found: dict[str, list[tuple[datetime.datetime, float]]] = {name: [] for name in names}
    for one in await sample_queries.history(database, names, since):
        found[one.name].append((one.at, one.value))
    return found


async def keep(database: Database, values: Mapping[str, float], *, sums: bool = False) -> None:
    """Writes down values of the present minute; with `sums`, they are parts of what other processes add to."""
    async with database.transaction() as transaction:
        await sample_queries.add(transaction, values, sums=sums)
        transaction.has_written = False  # nobody remembers samples


async def sample(database: Database, figures: Figures, edges: Iterable[Mapping[str, Any]]) -> None:
    """Writes down the figures of the present minute; `edges` is what each edge says of itself."""
    minute = datetime.timedelta(minutes=1)
    finished = {
        one.status: one.count for one in await figure_queries.finished(database, database.now - minute)
    }
    values = (
        _of_figures(figures)
        | {
            "jobs_succeeded": finished.get("success", 0),
            "jobs_failed": finished.get("failed", 0),
            "database_bytes": await figure_queries.database_bytes(database),
            "store_bytes": await figure_queries.store_bytes(database),
        }
        | await _of_edges(database, edges)
    )
    await keep(database, values)


def _of_figures(figures: Figures) -> dict[str, float]:
    oldest = min((one.due_since for one in figures.queue if one.due_since is not None), default=figures.at)
    mirrors = {one.status: one.count for one in figures.mirrors}
    return {
        **{f"jobs_{status}": figures.jobs.get(status, 0) for status in ("created", "pending", "running")},
        "queue_waiting": sum(one.waiting for one in figures.queue),
        "queue_age_seconds": max((figures.at - oldest).total_seconds(), 0),
        "queue_failed": sum(one.failed for one in figures.queue),
        "deliveries_queued": figures.deliveries.queued,
        "deliveries_due": figures.deliveries.due,
        "deliveries_failing": figures.deliveries.failing,
        "deliveries_paused": figures.deliveries.paused,
        "mirrors_finished": mirrors.get("finished", 0),
        "mirrors_failing": mirrors.get("failed", 0) + mirrors.get("to_retry", 0),
        "runners_alive": figures.runners_alive,
        "failing": sum(figures.failing.values()),
    }


async def _of_edges(database: Database, edges: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """The edges' counters, and what has become of them in the last minute."""
    now = _counters(edges)
    if not now:
        return {}
    before = await history(database, list(now), database.now - _BEFORE)
    grown = {name: _growth(before[name], value) for name, value in now.items()}
    values = dict(now)
    if grown["edge_requests"]:
        values["edge_hit_ratio"] = min(grown["edge_hits"] / grown["edge_requests"], 1.0)
    values["edge_bytes_saved"] = max(grown["edge_bytes_sent"] - grown["edge_bytes_from_origin"], 0)
    return values


def _counters(edges: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    total: dict[str, float] = {}
    for edge in edges:
        requests, sent = edge.get("requests") or {}, edge.get("bytes") or {}
        for name, value in {
            "edge_requests": sum(requests.values()),
            "edge_hits": sum(requests.get(hit, 0) for hit in _HITS),
            "edge_bytes_sent": sent.get("sent", 0),
            "edge_bytes_from_origin": sent.get("from_origin", 0),
        }.items():
            total[name] = total.get(name, 0) + value
    return total


def _growth(before: Sequence[tuple[datetime.datetime, float]], now: float) -> float:
    """By how much a counter has grown since it was last looked at; one that is smaller has begun anew."""
    last = before[-1][1] if before else now
    return now - last if now >= last else now


def setup(app: web.Application) -> None:
    """Samples each minute."""
    app[FIGURES] = FreshFigures(app)

    async def sample_figures() -> None:
        database = app[DATABASE]
        said = (await app[EDGES].statuses()).values()
        await sample(database, await app[FIGURES].get(), [one for one in said if isinstance(one, dict)])
        hours = datetime.timedelta(hours=app[SETTINGS].samples_hours)
        async with database.transaction() as transaction:
            await sample_queries.forget(transaction, database.now - hours)
            transaction.has_written = False  # nobody remembers samples

    app[QUEUE].add_periodic("sample_figures", "* * * * *", sample_figures)
