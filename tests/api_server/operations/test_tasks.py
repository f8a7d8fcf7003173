"""Queued tasks and recorded figures: lists, repetition, removal, and expiry."""

import datetime
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from api_server.operations import failing as operations_failing
from api_server.operations import figure_queries, figures, queries, tasks
from api_server.operations.failing import failing
from api_server.operations.tasks import TaskRefused
from api_server.operations.watch import problem_of_edge
from api_server.state import failures
from api_server.state.database import Database, Executor, connect
from api_server.state.queue import Queue, enqueue
from api_server.web.context import SERVICES
from tests.api_server.test_many_rows import Explaining
from tests.support.clock import MovedClock, forge_with_clock

FAIL = "UPDATE procrastinate_jobs SET status = 'doing'; UPDATE procrastinate_jobs SET status = 'failed'"


@pytest.fixture
async def place(new_database: Any) -> AsyncIterator[tuple[Database, MovedClock]]:
    clock = MovedClock()
    async with connect(new_database(), base_url="http://forge.example.org", clock=clock) as database:
        yield database, clock


async def failed_task(database: Database, name: str = "send_mail", **options: Any) -> int:
    async with database.transaction() as transaction:
        await enqueue(transaction, name, **options)
        await transaction.run(FAIL)
        task_id = int(await transaction.value("SELECT max(id) FROM procrastinate_jobs"))
        await failures.note(transaction, "task", str(task_id), "OSError: no route")
    return task_id


async def test_a_failed_task_is_listed_with_its_reason_and_tried_again(
    place: tuple[Database, MovedClock],
) -> None:
    database, _ = place
    task_id = await failed_task(database, mail=1)
    (listed,) = await tasks.list_tasks(database, "failed")
    assert (listed.id, listed.name, listed.reason) == (task_id, "send_mail", "OSError: no route")
    assert listed.arguments == '{"mail": 1}'
    assert [one.name for one in await failing(database, database.now)] == ["send_mail"]
    assert await tasks.retry(database, task_id) == "send_mail"
    assert await tasks.list_tasks(database, "failed") == await failing(database, database.now) == []
    (waiting,) = await tasks.list_tasks(database, "todo", name="send_mail")
    assert (waiting.id, waiting.attempts, waiting.due_at) == (task_id, 0, None)


async def test_a_failed_task_whose_work_waits_already_is_not_queued_twice(
    place: tuple[Database, MovedClock],
) -> None:
    database, _ = place
    task_id = await failed_task(database, queueing_lock="one")
    async with database.transaction() as transaction:
        await enqueue(transaction, "send_mail", queueing_lock="one")
    await tasks.retry(database, task_id)
    assert await tasks.list_tasks(database, "failed") == []
    assert len(await tasks.list_tasks(database, "todo")) == 1


async def test_a_periodic_task_that_succeeds_again_has_no_failures(
    place: tuple[Database, MovedClock],
) -> None:
    database, _ = place
    works = False

    async def hourly() -> None:
        if not works:
            raise OSError("no route")

    queue = Queue("")
    queue.failures = failures.Failures(database)
    queue.add_periodic("hourly", "0 * * * *", hourly)
    for name in ("hourly", "send_mail", "hourly"):
        await failed_task(database, name)
    with pytest.raises(OSError, match="no route"):
        await queue._app.tasks["hourly"].func(timestamp=0)
    assert [one.name for one in await failing(database, database.now)] == ["hourly", "send_mail"]
    works = True
    await queue._app.tasks["hourly"].func(timestamp=0)
    assert [one.name for one in await failing(database, database.now)] == ["send_mail"]


async def test_pages_of_tasks_go_on_beyond_the_last(place: tuple[Database, MovedClock]) -> None:
    database, _ = place
    ids = [await failed_task(database) for _ in range(3)]
    first = await tasks.list_tasks(database, "failed", limit=2)
    second = await tasks.list_tasks(database, "failed", limit=2, beyond=first[-1].id)
    assert [one.id for one in [*first, *second]] == ids[::-1]


async def test_what_waits_can_be_removed_and_what_is_at_work_not(place: tuple[Database, MovedClock]) -> None:
    database, _ = place
    async with database.transaction() as transaction:
        await enqueue(transaction, "send_mail", at=database.now + datetime.timedelta(days=1))
    (waiting,) = await tasks.list_tasks(database, "todo")
    await tasks.retry(database, waiting.id)
    assert (await tasks.list_tasks(database, "todo"))[0].due_at is None
    await tasks.cancel(database, waiting.id)
    with pytest.raises(TaskRefused, match=f"There is no task {waiting.id}: "):
        await tasks.retry(database, waiting.id)
    async with database.transaction() as transaction:
        await enqueue(transaction, "send_mail")
        await transaction.run("UPDATE procrastinate_jobs SET status = 'doing'")
    (at_work,) = await tasks.list_tasks(database, "doing")
    with pytest.raises(TaskRefused, match="is running"):
        await tasks.cancel(database, at_work.id)


async def test_failed_tasks_are_forgotten_in_time(new_database: Any, tmp_path: Any) -> None:
    async with forge_with_clock(new_database(), tmp_path, failed_tasks_days=3) as (forge, clock):
        database = forge.database
        old = await failed_task(database)
        clock.move(days=2)
        new = await failed_task(database)
        clock.move(days=2)
        await forge.server.app[SERVICES].queue._app.tasks["forget_failed_tasks"].func(timestamp=0)
        assert [one.id for one in await tasks.list_tasks(database, "failed")] == [new]
        assert await database.value("SELECT array_agg(subject) FROM operations_failures") == [str(new)]
        assert old != new


Read = Callable[[Executor], Awaitable[Any]]


@pytest.fixture(scope="module")
async def moved_database(new_database: Any) -> AsyncIterator[tuple[Database, MovedClock]]:
    clock = MovedClock()
    async with connect(new_database(), base_url="http://forge.example.org", clock=clock, size=1) as database:
        async with database.transaction() as transaction:
            for _ in range(3):
                await enqueue(transaction, "send_mail")
            await transaction.rows("SET enable_seqscan = off")
        yield database, clock


CHEAP: dict[str, Read] = {
    "what fails": lambda d: operations_failing.failing(d, d.now),
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
async def test_no_figure_reads_a_whole_table(moved_database: tuple[Database, MovedClock], name: str) -> None:
    explaining = Explaining(moved_database[0])
    await CHEAP[name](explaining)
    read = [line for line in explaining.plan.splitlines() if "Seq Scan on" in line]
    small = ("edges", "operations_failures")
    assert [line for line in read if not any(f"Seq Scan on {table}" in line for table in small)] == []


async def test_a_minute_is_kept_once_and_for_its_time(moved_database: tuple[Database, MovedClock]) -> None:
    database, clock = moved_database
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


async def test_what_processes_count_is_added_up(moved_database: tuple[Database, MovedClock]) -> None:
    database, _ = moved_database
    for _ in range(2):
        await figures.keep_sample(database, {"slow_requests": 2}, sums=True)
    ((_, value),) = (await figures.history(database, ["slow_requests"], database.now))["slow_requests"]
    assert value == 4


async def test_a_process_that_returns_has_new_failures(place: tuple[Database, MovedClock]) -> None:
    database, clock = place
    began = database.now
    for minutes in (0, 0.5, 2, 0.5):
        clock.move(minutes=minutes)
        async with database.transaction() as transaction:
            await failures.note(transaction, "disk", "/data", "It is full", "vm:8080")
    (found,) = await failing(database, database.now)
    assert found.since == began + datetime.timedelta(minutes=2.5)


async def test_the_remedy_of_an_edge_is_about_its_reason(
    place: tuple[Database, MovedClock],
) -> None:
    database, _ = place
    reasons = {
        "a": "It does not answer (ClientConnectorError)",
        "b": problem_of_edge({"origin": {"token": "wrong"}}),
        "c": problem_of_edge({"origin": {"token": "unknown", "reachable": False}}),
    }
    async with database.transaction() as transaction:
        for url, reason in reasons.items():
            await failures.note(transaction, "edge", url, str(reason))
    found = await failing(database, database.now)
    assert [(one.name, one.remedy) for one in found] == [
        (
            "a",
            "Check that the edge runs at this URL and that its `purge_token` is this service's `edge_purge_token`.",
        ),
        ("b", "Enter its `storage_token` in Admin → Settings → Repository → External storage."),
        ("c", "Check that this service runs, and that the edge's `origin` leads to it."),
    ]


async def test_of_edges_the_minute_is_kept(moved_database: tuple[Database, MovedClock]) -> None:
    database, clock = moved_database
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


async def test_everything_sampled_has_a_name(moved_database: tuple[Database, MovedClock]) -> None:
    database, _ = moved_database
    await figures.take_sample(database, await figures.read_figures(database, [], 30.0), [])
    found = await database.value("SELECT array_agg(DISTINCT name) FROM operations_samples")
    assert set(found) <= set(figures.SAMPLE_NAMES)
