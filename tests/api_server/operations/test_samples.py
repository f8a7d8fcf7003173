"""Figures: read by indexes, kept for each minute, and for so long."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from api_server.operations import failing, figure_queries, figures, queries
from api_server.state.database import Database, Executor, connect
from api_server.state.queue import enqueue
from tests.api_server.test_many_rows import Explaining
from tests.support.clock import MovedClock

Read = Callable[[Executor], Awaitable[Any]]


@pytest.fixture(scope="module")
async def place(new_database: Any) -> AsyncIterator[tuple[Database, MovedClock]]:
    clock = MovedClock()
    async with connect(new_database(), base_url="http://forge.example.org", clock=clock, size=1) as database:
        async with database.transaction() as transaction:
            for _ in range(3):
                await enqueue(transaction, "send_mail")
            await transaction.rows("SET enable_seqscan = off")
        yield database, clock


CHEAP: dict[str, Read] = {
    "what fails": lambda d: failing.failing(d, d.now),
    "jobs": figure_queries.jobs,
    "finished jobs": lambda d: figure_queries.finished(d, d.now),
    "queue": lambda d: figure_queries.queue(d, ["send_mail", "run_mirror"]),
    "deliveries": figure_queries.deliveries,
    "mirrors": figure_queries.mirrors,
    "runners": lambda d: figure_queries.alive_runners(d, d.now),
    "workers": lambda d: figure_queries.alive_workers(d, d.now),
    "store": figure_queries.store_bytes,
    "history": lambda d: figure_queries.history(d, list(figures.SAMPLE_NAMES), d.now),
    "waiting tasks": lambda d: queries.list_tasks(d, "todo", None, None, 50),
    "waiting tasks of a name": lambda d: queries.list_tasks(d, "todo", "send_mail", 1, 50),
    "failed tasks": lambda d: queries.list_tasks(d, "failed", None, 10, 50),
    "failed tasks of a name": lambda d: queries.list_tasks(d, "failed", "send_mail", None, 50),
}


@pytest.mark.parametrize("name", CHEAP)
async def test_no_figure_reads_a_whole_table(place: tuple[Database, MovedClock], name: str) -> None:
    explaining = Explaining(place[0])
    await CHEAP[name](explaining)
    read = [line for line in explaining.plan.splitlines() if "Seq Scan on" in line]
    small = ("edges", "operations_failures")
    assert [line for line in read if not any(f"Seq Scan on {table}" in line for table in small)] == []


async def test_a_minute_is_kept_once_and_for_its_time(place: tuple[Database, MovedClock]) -> None:
    database, clock = place
    now = await figures.read_figures(database, ["send_mail"], 30.0)
    began = database.now
    await figures.take_sample(database, now, [])
    await figures.take_sample(database, now, [])
    kept = await figures.history(database, ["queue_waiting", "store_bytes", "edge_hits"], began)
    assert kept == {"queue_waiting": [(began, 3.0)], "store_bytes": [(began, 0.0)], "edge_hits": []}
    before = database.generation
    clock.move(hours=1)
    async with database.transaction() as transaction:
        await figure_queries.forget_samples(transaction, database.now)
        transaction.has_written = False
    assert await figures.history(database, ["queue_waiting"], began) == {"queue_waiting": []}
    assert database.generation == before, "requests remember what they did"


async def test_what_processes_count_is_added_up(place: tuple[Database, MovedClock]) -> None:
    database, _ = place
    for _ in range(2):
        await figures.keep_sample(database, {"slow_requests": 2}, sums=True)
    ((_, value),) = (await figures.history(database, ["slow_requests"], database.now))["slow_requests"]
    assert value == 4


async def test_of_edges_the_minute_is_kept(place: tuple[Database, MovedClock]) -> None:
    database, clock = place
    now = await figures.read_figures(database, [], 30.0)

    def edge(hits: int, misses: int, fetched: int) -> dict[str, Any]:
        sent = (hits + misses) * 10
        return {
            "requests": {"hit": hits, "miss": misses},
            "bytes": {"sent": sent, "from_origin": fetched},
        }

    began = database.now
    await figures.take_sample(database, now, [edge(10, 10, 100), edge(0, 0, 0)])
    clock.move(minutes=1)
    await figures.take_sample(database, now, [edge(13, 11, 110), edge(0, 0, 0)])
    clock.move(minutes=1)
    await figures.take_sample(database, now, [edge(2, 2, 20), edge(0, 0, 0)])
    kept = await figures.history(database, ["edge_hit_ratio", "edge_bytes_saved"], began)
    assert [value for _, value in kept["edge_hit_ratio"]] == [0.75, 0.5], "one that began anew counts from 0"
    assert [value for _, value in kept["edge_bytes_saved"]] == [0, 30, 20]


async def test_everything_sampled_has_a_name(place: tuple[Database, MovedClock]) -> None:
    database, _ = place
    await figures.take_sample(database, await figures.read_figures(database, [], 30.0), [])
    found = await database.value("SELECT array_agg(DISTINCT name) FROM operations_samples")
    assert set(found) <= set(figures.SAMPLE_NAMES)
