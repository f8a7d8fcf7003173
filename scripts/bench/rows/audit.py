"""The audit trail: pages of a million events against ten thousand, the cost of recording a change, and the
verification of the chain."""

import asyncio
import contextlib
import datetime
import itertools
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import Any
from unittest.mock import patch

import attrs

from api_server.audit import chain, queries
from api_server.state import audit_trail
from api_server.state.database import connect
from api_server.state.listing import Page
from api_server.state.migrate import migrate
from forgelet.local.embedded_postgres import Cluster, temporary_cluster
from scripts.bench import filling
from scripts.bench.runs import OURS, Bench, Measure, Row, Sample, Sides
from scripts.bench.service import in_process, service

FEW, UNRECORDED = "a hundredth of them", "without its event"
_FIRST = Page(counted=False)
_MIDDLE = datetime.timedelta(days=180)


@attrs.frozen
class Read:
    """A page of a list of events. `page` takes the total number of events."""

    name: str
    what: str
    filters: Callable[[], dict[str, Any]] = dict
    page: Callable[[int], Page] = lambda _: _FIRST


def _before() -> dict[str, Any]:
    return {"created_before": datetime.datetime.now(datetime.UTC) - _MIDDLE}


READS = (
    Read("first", "first page"),
    Read("first-counted", "first page, counted", page=lambda _: Page()),
    Read("middle", "page in the middle, by keyset", page=lambda total: Page(counted=False, after=total // 2)),
    Read("entity", "of one entity", lambda: {"entity_type": "Project", "entity_id": 7_000_000}),
    Read(
        "entity-counted",
        "of one entity, counted",
        lambda: {"entity_type": "Project", "entity_id": 7_000_000},
        lambda _: Page(),
    ),
    Read("author", "of one author", lambda: {"author_id": 7}),
    Read("type", "of one type", lambda: {"event_type": "project_archived"}),
    Read("before", "before a moment", _before),
    Read("author-before", "of one author before a moment", lambda: {"author_id": 7, **_before()}),
)


# --- reading --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _few(bench: Bench) -> Iterator[Cluster]:
    with temporary_cluster() as cluster:
        migrate(cluster.url())
        filling.fill_events(cluster, bench.size.few_events)
        yield cluster


def _reading(read: Read, bench: Bench) -> Sides:
    many, few = bench.use(service).cluster, bench.use(_few)
    return {
        OURS: lambda seconds: asyncio.run(_pages(read, many.url(), bench.size.events, seconds)),
        FEW: lambda seconds: asyncio.run(_pages(read, few.url(), bench.size.few_events, seconds)),
    }


async def _pages(read: Read, url: str, total: int, seconds: float) -> Sample:
    page, filters = read.page(total), read.filters()
    async with connect(url, base_url="http://127.0.0.1:8080", size=1) as database:
        return await _times_a_second(lambda: queries.list_events(database, page, filters), seconds)


async def _times_a_second(work: Callable[[], Awaitable[object]], seconds: float) -> Sample:
    for _ in range(10):  # until statements are prepared and have their final plans
        await work()
    started, times = time.perf_counter(), 0
    while times == 0 or time.perf_counter() - started < seconds:
        await work()
        times += 1
    return Sample(times / (time.perf_counter() - started))


# --- verifying ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _chained(bench: Bench) -> Iterator[tuple[Cluster, Cluster]]:
    with temporary_cluster() as many, temporary_cluster() as few:
        for cluster, total in ((many, bench.size.chained_events), (few, bench.size.few_events)):
            migrate(cluster.url())
            filling.fill_events(cluster, total, chained=True)
        yield many, few


def _verifying(bench: Bench) -> Sides:
    many, few = bench.use(_chained)
    return {
        OURS: lambda _: asyncio.run(_verified(many.url())),
        "10,000 events": lambda _: asyncio.run(_verified(few.url())),
    }


async def _verified(url: str) -> Sample:
    async with connect(url, base_url="http://127.0.0.1:8080", size=1, statement_timeout=600) as database:
        started = time.perf_counter()
        result = await chain.verify(database)
        if result.problem:
            raise RuntimeError(result.problem)
        return Sample(result.head.position / (time.perf_counter() - started))


# --- recording ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _renamed(bench: Bench) -> Iterator[Callable[[], Awaitable[None]]]:
    """Yield a function that renames a project over HTTP."""
    server = bench.use(in_process)
    root = server.forge.root
    project = server.runner.run(root.post("/projects", {"name": "app"})).body["id"]
    count = itertools.count()

    async def rename() -> None:
        answer = await root.put(f"/projects/{project}", {"name": f"app {next(count)}"})
        if answer.status != 200:
            raise RuntimeError(f"A project could not be renamed: {answer.status}")

    yield rename


def _recording(bench: Bench) -> Sides:
    runner, rename = bench.use(in_process).runner, bench.use(_renamed)

    def recorded(seconds: float) -> Sample:
        return runner.run(_times_a_second(rename, seconds))

    def unrecorded(seconds: float) -> Sample:
        with patch.object(audit_trail, "record", _nothing):
            return recorded(seconds)

    sides: dict[str, Measure] = {OURS: recorded, UNRECORDED: unrecorded}
    return sides


async def _nothing(*_arguments: object, **_details: object) -> None:
    """Replace `record`."""


_row = partial(Row, warmed_up=False)
_reads, _verify = (
    "audit events, {}, of 1,000,000 against 10,000",
    "verifying the chain over 100,000 events, against 10,000",
)
AUDIT_ROWS = (
    *(
        _row(
            f"audit-{read.name}",
            _reads.format(read.what),
            partial(_reading, read),
            "pages/s",
            aims={FEW: 1 / 1.2},
        )
        for read in READS
    ),
    _row("audit-verify", _verify, _verifying, "events/s", aims={"10,000 events": 0.7}, most_rounds=1),
    _row("audit-record", "renaming a project, recorded", _recording, "a second", aims={UNRECORDED: 1 / 1.15}),
)
