"""Queued tasks: listed with the reason of their failure, tried again, removed, forgotten."""

import datetime
from collections.abc import AsyncIterator
from typing import Any

import pytest

from api_server.operations import tasks
from api_server.operations.failing import failing
from api_server.operations.tasks import TaskRefused
from api_server.state import failures
from api_server.state.database import Database, connect
from api_server.state.queue import enqueue
from api_server.web.context import SERVICES
from tests.support.clock import MovedClock, forge_with_clock

FAIL = "UPDATE procrastinate_jobs SET status = 'doing'; UPDATE procrastinate_jobs SET status = 'failed'"


@pytest.fixture
async def place(new_database: Any) -> AsyncIterator[tuple[Database, MovedClock]]:
    clock = MovedClock()
    async with connect(new_database(), base_url="http://forge.example.org", clock=clock) as database:
        yield database, clock


async def failed_task(database: Database, **options: Any) -> int:
    async with database.transaction() as transaction:
        await enqueue(transaction, "send_mail", **options)
        await transaction.run(FAIL)
        task_id = int(await transaction.value("SELECT max(id) FROM procrastinate_jobs"))
        await failures.note(transaction, "task", str(task_id), "OSError: no route")
    return task_id


async def test_a_failed_task_is_listed_with_its_reason_and_tried_again(
    place: tuple[Database, MovedClock],
) -> None:
    database, _ = place
    task_id = await failed_task(database, letter=1)
    (listed,) = await tasks.list_tasks(database, "failed")
    assert (listed.id, listed.name, listed.reason) == (task_id, "send_mail", "OSError: no route")
    assert listed.arguments == '{"letter": 1}'
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
    with pytest.raises(TaskRefused, match="is at work"):
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
