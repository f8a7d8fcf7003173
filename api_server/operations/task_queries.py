"""Statements about queued tasks: their list, and what operators do to them."""

import datetime
from typing import Literal

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query

Status = Literal["todo", "doing", "failed"]


@attrs.frozen
class QueuedTask:
    """A task in the queue. `due_at` is null where it is due at once, `arguments` JSON, `reason` why the last attempt
    has failed, `failed_at` when."""

    id: int
    name: str
    status: str
    attempts: int
    due_at: datetime.datetime | None
    lock: str | None
    arguments: str
    reason: str | None
    failed_at: datetime.datetime | None


def _list(order: str, beyond: str) -> Query[QueuedTask]:
    return Query(
        f"""
        SELECT jobs.id, jobs.task_name AS name, jobs.status::text AS status, jobs.attempts,
            jobs.scheduled_at AS due_at, jobs.lock, left(jobs.args::text, 1000) AS arguments,
            known.reason, known.last_at AS failed_at
        FROM (
            SELECT * FROM procrastinate_jobs jobs
            WHERE jobs.status = %(status)s AND (%(name)s::text IS NULL OR jobs.task_name = %(name)s)
                AND (%(beyond)s::bigint IS NULL OR jobs.id {beyond} %(beyond)s)
            ORDER BY jobs.id {order} LIMIT %(limit)s::integer
        ) jobs
        LEFT JOIN operations_failures known
            ON known.part = 'task' AND known.subject = jobs.id::text AND known.source = ''
        ORDER BY jobs.id {order}
        """,
        QueuedTask,
    )


OLDEST_FIRST, NEWEST_FIRST = _list("ASC", ">"), _list("DESC", "<")


async def list_tasks(
    database: Executor, status: Status, name: str | None, beyond: int | None, limit: int
) -> list[QueuedTask]:
    """Those of a status, and of a name where one is given: failed ones the newest first, others the oldest, from
    beyond the id of the last one seen."""
    statement = NEWEST_FIRST if status == "failed" else OLDEST_FIRST
    return await database.rows(statement, status=status, name=name, beyond=beyond, limit=limit)


@attrs.frozen
class Locked:
    name: str
    status: str


LOCK = Query(
    """
    SELECT task_name AS name, status::text AS status FROM procrastinate_jobs WHERE id = %(id)s FOR UPDATE
    """,
    Locked,
)


async def lock(transaction: Transaction, task_id: int) -> Locked | None:
    """Holds a task until the transaction ends; None where it is gone."""
    return await transaction.row(LOCK, id=task_id)


RETRY = """
    UPDATE procrastinate_jobs SET status = 'todo', attempts = 0, scheduled_at = NULL
    WHERE id = %(id)s AND NOT EXISTS (
        SELECT FROM procrastinate_jobs other
        WHERE other.queueing_lock = procrastinate_jobs.queueing_lock AND other.status = 'todo')
"""


async def retry(transaction: Transaction, task_id: int) -> bool:
    """Due at once, as if it had never been tried. False where the same work waits already."""
    return await transaction.run(RETRY, id=task_id) > 0


MAKE_DUE = "UPDATE procrastinate_jobs SET scheduled_at = NULL WHERE id = %(id)s"


async def make_due(transaction: Transaction, task_id: int) -> None:
    """It does not wait any longer."""
    await transaction.run(MAKE_DUE, id=task_id)


REMOVE = "DELETE FROM procrastinate_jobs WHERE id = %(id)s"


async def remove(transaction: Transaction, task_id: int) -> None:
    await transaction.run(REMOVE, id=task_id)


FORGET = """
    DELETE FROM procrastinate_jobs WHERE id IN (
        SELECT jobs.id FROM procrastinate_jobs jobs
        LEFT JOIN operations_failures known
            ON known.part = 'task' AND known.subject = jobs.id::text AND known.source = ''
        WHERE jobs.status = 'failed' AND coalesce(known.last_at, (
            SELECT max(events.at) FROM procrastinate_events events WHERE events.job_id = jobs.id
        ), '-infinity') < %(before)s::timestamptz
        ORDER BY jobs.id LIMIT %(most)s::integer
    )
"""


async def forget(transaction: Transaction, before: datetime.datetime, most: int) -> int:
    """Removes up to `most` tasks that have failed for good before a moment; how many."""
    return await transaction.run(FORGET, before=before, most=most)


FORGET_REASONS = """
    DELETE FROM operations_failures known WHERE known.part = 'task' AND NOT EXISTS (
        SELECT FROM procrastinate_jobs WHERE procrastinate_jobs.id = known.subject::bigint)
"""


async def forget_reasons(transaction: Transaction) -> None:
    """Removes the reasons of tasks that are gone."""
    await transaction.run(FORGET_REASONS)
