"""The queue: what becomes of work that a worker has died with."""

import asyncio
import contextlib
from collections.abc import Callable

import psycopg2

from api_server.state.queue import Queue

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


async def _done(url: str, *statements: str) -> list[str]:
    """What a worker does in a database where `statements` have left jobs, until none is left."""
    words: list[str] = []

    async def note(word: str) -> None:
        words.append(word)

    queue = Queue(url)
    queue.add("note", note)
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        connection.autocommit = True
        for statement in statements:
            cursor.execute(statement)
        async with queue.working(), asyncio.timeout(20):
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
    """Two may not wait under one queueing lock; the dead worker's must not go on holding the lock either."""
    assert await _done(new_database(), DEAD_WORKERS_JOB, WAITING_JOB) == ["second"]
