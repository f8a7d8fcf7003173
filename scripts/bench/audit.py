"""The audit trail: reading a million events against ten thousand, what recording adds to a change, verifying."""

import asyncio
import contextlib
import datetime
import itertools
import os
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import psycopg2

from api_server.audit import chain, queries
from api_server.state import audit_trail
from api_server.state.database import connect
from api_server.state.listing import Page
from api_server.state.migrate import migrate
from common import logs
from forgelet.local.embedded_postgres import temporary
from scripts.bench.rows import Row, by_turns
from tests.support.forge import running_forge

FEW, MANY = 10_000, 1_000_000
ROUND_SECONDS = 2.0
#: Events of the author, entity and type that are looked for; as many among few as among many.
WANTED = 200

#: Spread evenly over a year, with the wanted ones among them.
FILL = """
    INSERT INTO audit_events (created_at, author_id, author_name, entity_type, entity_id, entity_path, event_type,
        target_type, target_id, target_details, details)
    SELECT now() - interval '1 year' + interval '1 year' * n / %(total)s,
        CASE WHEN wanted THEN 7 ELSE 1000 + n %% 5000 END, 'alice', 'Project',
        CASE WHEN wanted THEN 7 ELSE 1000 + n %% 5000 END, 'group/app',
        CASE WHEN wanted THEN 'project_archived' ELSE 'project_name_updated' END, 'Project', n %% 5000, 'app',
        '{"custom_message": "Changed name from app to tool", "change": "name", "from": "app", "to": "tool"}'
    FROM generate_series(%(first)s, %(last)s) n CROSS JOIN LATERAL (SELECT n %% (%(total)s / %(wanted)s) = 0) w (wanted)
"""


def measure() -> Iterator[Row]:
    """Lists, recording, verifying."""
    with temporary() as cluster:
        yield _recording(cluster.url())
    with temporary() as few, temporary() as many:
        for cluster, total in ((few, FEW), (many, MANY)):
            migrate(cluster.url())
            _fill(cluster.url(), total)
        for what, filters, page in _reads():
            yield _reading(what, filters, page, many.url(), few.url())
        yield _verifying(many.url(), few.url())


# --- reading --------------------------------------------------------------------------------------------------------


def _reads() -> Iterator[tuple[str, dict[str, Any], Callable[[int], Page]]]:
    first = Page(counted=False)
    middle = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=180)
    yield "first page", {}, lambda _: first
    yield "first page, counted", {}, lambda _: Page()
    yield "page in the middle, by keyset", {}, lambda total: Page(counted=False, after=total // 2)
    yield "one entity", {"entity_type": "Project", "entity_id": 7}, lambda _: first
    yield "one entity, counted", {"entity_type": "Project", "entity_id": 7}, lambda _: Page()
    yield "one author", {"author_id": 7}, lambda _: first
    yield "one type", {"event_type": "project_archived"}, lambda _: first
    yield "before a moment", {"created_before": middle}, lambda _: first
    yield "one author before a moment", {"author_id": 7, "created_before": middle}, lambda _: first


def _reading(what: str, filters: dict[str, Any], page: Callable[[int], Page], many: str, few: str) -> Row:
    async def pages(url: str, total: int) -> float:
        async with connect(url, base_url="http://127.0.0.1:8080", size=1) as database:
            return await _times_a_second(lambda: queries.list_events(database, page(total), filters))

    ours, theirs = by_turns(lambda: asyncio.run(pages(many, MANY)), lambda: asyncio.run(pages(few, FEW)))
    return Row(f"audit events, {what}, of {MANY:,}", ours, theirs, f"of {FEW:,}", 1 / 1.2, "pages/s")


async def _times_a_second(work: Callable[[], Awaitable[object]], seconds: float = ROUND_SECONDS) -> float:
    for _ in range(10):  # statements are prepared, and planned for good
        await work()
    started, times = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        await work()
        times += 1
    return times / (time.perf_counter() - started)


def _fill(url: str, total: int) -> None:
    batch = 50_000
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_events DETACH PARTITION audit_events_past")
        cursor.execute("DROP TABLE audit_events_past")
        cursor.execute(
            """
            SELECT make_audit_partition('audit_events_past', NULL, date_trunc('month', now()) - interval '13 months');
            SELECT make_audit_partition('audit_events_' || to_char(month, 'YYYY_MM'), month, month + interval '1 month')
            FROM generate_series(date_trunc('month', now()) - interval '13 months',
                date_trunc('month', now()) - interval '1 month', interval '1 month') month
            """
        )
        connection.commit()
        for first in range(1, total + 1, batch):
            last = min(first + batch - 1, total)
            cursor.execute(FILL, {"first": first, "last": last, "total": total, "wanted": WANTED})
            connection.commit()
        connection.autocommit = True
        cursor.execute("VACUUM (ANALYZE) audit_events, audit_chain")


# --- verifying ------------------------------------------------------------------------------------------------------


def _verifying(many: str, few: str) -> Row:
    async def events(url: str) -> float:
        async with connect(url, base_url="http://127.0.0.1:8080", size=1, statement_timeout=600) as database:
            started = time.perf_counter()
            verdict = await chain.verify(database)
            if verdict.problem:
                raise RuntimeError(verdict.problem)
            return verdict.head.position / (time.perf_counter() - started)

    ours, theirs = by_turns(lambda: asyncio.run(events(many)), lambda: asyncio.run(events(few)), rounds=1)
    return Row(f"verifying the chain over {MANY:,} events", ours, theirs, f"over {FEW:,}", 0.7, "events/s")


# --- recording ------------------------------------------------------------------------------------------------------


def _recording(url: str) -> Row:
    with Path(os.devnull).open("w") as nowhere:
        logs.configure("console", stream=nowhere)  # written as ever, and read by nobody
        migrate(url)
        return asyncio.run(_record(url))


async def _record(url: str) -> Row:
    """A project renamed over HTTP, one request after the other, with and without its event."""
    recording: list[float] = []
    silent: list[float] = []
    async with _changes(url) as change:
        for _ in range(15):
            recording.append(await _times_a_second(change, ROUND_SECONDS / 4))
            with patch.object(audit_trail, "record", _nothing):
                silent.append(await _times_a_second(change, ROUND_SECONDS / 4))
    ours, theirs = statistics.median(recording), statistics.median(silent)
    return Row("renaming a project, recorded", ours, theirs, "without its event", 1 / 1.15)


async def _nothing(*_arguments: object, **_details: object) -> None:
    """In the place of `record`."""


@contextlib.asynccontextmanager
async def _changes(url: str) -> AsyncIterator[Callable[[], Awaitable[object]]]:
    with tempfile.TemporaryDirectory() as folder:
        async with running_forge(url, Path(folder), work=False) as forge:
            project = (await forge.root.post("/projects", {"name": "app"})).body["id"]
            count = itertools.count()

            async def change() -> None:
                answer = await forge.root.put(f"/projects/{project}", {"name": f"app {next(count)}"})
                if answer.status != 200:
                    raise RuntimeError(f"A project could not be renamed: {answer.status}")

            yield change
