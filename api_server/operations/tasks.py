"""Queued tasks as operators see them: listed, tried again, removed; and forgotten in time."""

import datetime

import structlog
from aiohttp import web

from api_server.operations import queries
from api_server.operations.queries import QueuedTask, Status
from api_server.state import failures
from api_server.state.database import Database, Executor, Transaction
from api_server.state.failures import TASK_FAILURES
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE, SETTINGS

log = structlog.get_logger(__name__)

#: Removed in one statement.
_AT_A_TIME = 1000


class TaskRefused(Exception):
    """What was asked of a task cannot be done; the text is a sentence for whoever asked."""


async def list_tasks(
    database: Executor,
    status: Status,
    *,
    name: str | None = None,
    beyond: int | None = None,
    limit: int = 50,
) -> list[QueuedTask]:
    """Up to `limit` tasks that wait (`todo`), are at work (`doing`) or have failed for good (`failed`): the latter the
    newest first, others the oldest. `beyond` is the id of the last one that was seen."""
    return await queries.list_tasks(database, status, name, beyond, limit)


async def retry(database: Database, task_id: int) -> str:
    """Makes a task due at once, as if it had never been tried: one that has failed, or that waits for its next attempt.
    Gives its name. Raises `TaskRefused`."""
    async with database.transaction() as transaction:
        held = await _held(transaction, task_id)
        await failures.settle(transaction, TASK_FAILURES, str(task_id))
        if held.status == "failed" and not await queries.retry_task(transaction, task_id):
            await queries.remove_task(transaction, task_id)  # the same work waits already
        elif held.status == "todo":
            await queries.make_due(transaction, task_id)
    log.info("a task is tried again", task=held.name, id=task_id)
    return held.name


async def cancel(database: Database, task_id: int) -> str:
    """Removes a task that waits or has failed for good; gives its name. Raises `TaskRefused`."""
    async with database.transaction() as transaction:
        held = await _held(transaction, task_id)
        await queries.remove_task(transaction, task_id)
        await failures.settle(transaction, TASK_FAILURES, str(task_id))
    log.info("a task was removed", task=held.name, id=task_id)
    return held.name


async def _held(transaction: Transaction, task_id: int) -> queries.LockedTask:
    held = await queries.lock_task(transaction, task_id)
    if held is None:
        raise TaskRefused(f"There is no task {task_id}: it has been done, or was removed.")
    if held.status == "doing":
        raise TaskRefused(f"Task {task_id} ({held.name}) is at work: wait until it has ended.")
    return held


def setup(app: web.Application) -> None:
    """Forgets failed tasks once a day."""

    async def forget_failed_tasks() -> None:
        database, days = app[DATABASE], app[SETTINGS].failed_tasks_days
        before = database.now - datetime.timedelta(days=days)
        removed = _AT_A_TIME
        while removed == _AT_A_TIME:
            async with database.transaction() as transaction:
                removed = await queries.forget_tasks(transaction, before, _AT_A_TIME)
        async with database.transaction() as transaction:
            await queries.forget_reasons(transaction)
            await failures.forget(transaction, before)

    app[QUEUE].add_periodic("forget_failed_tasks", "41 3 * * *", forget_failed_tasks)
