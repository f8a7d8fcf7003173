"""The queue: work of dead workers."""

import asyncio
import contextlib
from collections.abc import Callable
from typing import Any

import psycopg2
import pytest
from procrastinate.exceptions import ConnectorException
from procrastinate.manager import JobManager

from api_server.state import queue, queue_worker
from api_server.state.errors import Unavailable
from api_server.state.queue import Queue
from tests.support.background import watched

DEAD_WORKERS_JOB = """
    WITH dead AS (
        INSERT INTO procrastinate_workers (last_heartbeat) VALUES (now() - interval '1 hour') RETURNING id
    )
    INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args, status, worker_id)
    SELECT 'default', 'note', 'one', 'one', '{"word": "first"}', 'doing', id FROM dead
"""
WAITING_JOB = """
    INSERT INTO procrastinate_jobs (queue_name, task_name, lock, queueing_lock, args)
    VALUES ('default', 'note', 'one', 'one', '{"word": "second"}')
"""


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "POLL_SECONDS", 0.1)


async def _done(url: str, *statements: str, dead_after: float = 30) -> list[str]:
    """Return the work that a worker does in a database in which `statements` have created jobs, until none is left."""
    words: list[str] = []

    async def note(word: str) -> None:
        words.append(word)

    tasks = Queue(url, dead_after)
    tasks.add("note", note)
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)
        async with watched() as life, tasks.working(*life), asyncio.timeout(20):
            cursor.execute("SELECT count(*) FROM procrastinate_jobs")
            while cursor.fetchone() != (0,):
                await asyncio.sleep(0.05)
                cursor.execute("SELECT count(*) FROM procrastinate_jobs")
    return words


async def test_the_work_of_a_dead_worker_is_done_again(new_database: Callable[[], str]) -> None:
    assert await _done(new_database(), DEAD_WORKERS_JOB) == ["first"]


async def test_where_the_same_work_waits_already_the_dead_workers_job_gives_way(
    new_database: Callable[[], str],
) -> None:
    """Two jobs may not wait under one queueing lock, and the dead worker's job must not keep the lock."""
    assert await _done(new_database(), DEAD_WORKERS_JOB, WAITING_JOB) == ["second"]


CUT_CONNECTIONS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid()
"""


async def test_work_goes_on_after_the_database_has_cut_all_connections(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart of PostgreSQL, earlier and later work is done, and the queue can still be ended."""
    monkeypatch.setattr(queue, "RESTART_SECONDS", 0.1)
    url, words, begun = new_database(), [], asyncio.Event()

    async def note(word: str) -> None:
        begun.set()
        await asyncio.sleep(0.2)
        words.append(word)

    tasks = Queue(url)
    tasks.add("note", note)
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        async with watched() as life, tasks.working(*life), asyncio.timeout(20):
            cursor.execute(WAITING_JOB.replace("second", "before"))
            await begun.wait()
            for word in ("meanwhile", "afterwards"):
                cursor.execute(CUT_CONNECTIONS)
                await asyncio.sleep(0.3)
                cursor.execute(WAITING_JOB.replace("second", word))
                while word not in words:
                    await asyncio.sleep(0.05)
            cursor.execute(CUT_CONNECTIONS)
    assert set(words) == {"before", "meanwhile", "afterwards"}


LISTENERS = """
    SELECT count(*) AS count FROM pg_stat_activity
    WHERE datname = current_database() AND starts_with(query, 'LISTEN')
"""


async def test_an_sql_error_does_not_keep_the_listener_busy(new_database: Callable[[], str]) -> None:
    """Each connection of the pool has had an error before the listener gets one; notifications arrive all the same."""
    tasks = Queue(new_database())
    done = asyncio.Event()

    async def note() -> None:
        done.set()

    tasks.add("note", note)
    connector = tasks._app.connector
    async with tasks._app.open_async():
        for _ in range(4):
            with pytest.raises(ConnectorException):
                await connector.execute_query_async("SELECT 1 / 0")
        listener = asyncio.create_task(
            tasks._app.run_worker_async(
                wait=True, install_signal_handlers=False, fetch_job_polling_interval=600
            )
        )
        async with asyncio.timeout(20):
            while not (await connector.execute_query_one_async(LISTENERS))["count"]:
                await asyncio.sleep(0.02)
            await tasks._app.configure_task("note").defer_async()
            await done.wait()
        listener.cancel()
        await asyncio.wait_for(asyncio.gather(listener, return_exceptions=True), 20)


@pytest.mark.parametrize("question", ["get_stalled_jobs", "prune_stalled_workers"])
async def test_it_ends_when_the_driver_loses_the_cancellation(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch, question: str
) -> None:
    """asyncio.wait_for of Python 3.11 loses a cancellation that comes together with the database's answer."""
    asked = asyncio.Event()

    async def answered_at_the_same_time(*_: object, **__: object) -> list[object]:
        asked.set()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return []

    tasks = Queue(new_database(), dead_after=1)
    monkeypatch.setattr(tasks._jobs, question, answered_at_the_same_time)
    async with asyncio.timeout(20):
        async with watched() as life, tasks.working(*life):
            await asked.wait()


async def test_work_whose_end_could_not_be_written_down_is_done_again(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the living worker would hold the work's lock for as long as it runs."""
    finish, lost = JobManager.finish_job, []

    async def loses_the_first(manager: JobManager, job: Any, *arguments: Any, **options: Any) -> None:
        if not lost and job.task_name == "note":  # other servers of this process have jobs too
            lost.append(job)
            raise ConnectorException("server closed the connection unexpectedly")
        await finish(manager, job, *arguments, **options)

    monkeypatch.setattr(JobManager, "finish_job", loses_the_first)
    assert await _done(new_database(), WAITING_JOB, dead_after=0.3) == ["second", "second"]


async def test_what_the_database_kept_from_being_done_was_no_attempt(
    new_database: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queue_worker, "AGAIN_SECONDS", 0)
    tries: list[int] = []
    url, done = new_database(), asyncio.Event()
    tasks = Queue(url)

    async def note(word: str) -> None:
        tries.append(len(tries))
        if len(tries) < 5:
            raise Unavailable(word)
        done.set()

    tasks.add("note", note)
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        cursor.execute(WAITING_JOB)
    async with watched() as life, tasks.working(*life), asyncio.timeout(20):
        await done.wait()
    assert tries == [0, 1, 2, 3, 4]
