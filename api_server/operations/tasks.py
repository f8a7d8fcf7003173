"""Queued tasks for operators: listing, retrying and removing them, and deleting old ones."""

import datetime

import structlog

from api_server.operations import queries
from api_server.operations.queries import QueuedTask, Status
from api_server.services import Services
from api_server.state import failures
from api_server.state.database import Database, Executor, Transaction
from api_server.state.failures import TASK_FAILURES

log = structlog.get_logger(__name__)

#: Maximum number of tasks removed in one statement.
_BATCH = 1000


class TaskRefused(Exception):
    """A task cannot be retried or removed; the text is a sentence for the operator."""


async def list_tasks(
    database: Executor,
    status: Status,
    *,
    name: str | None = None,
    beyond: int | None = None,
    limit: int = 50,
) -> list[QueuedTask]:
    """Return at most `limit` tasks that wait (`todo`), are running (`doing`) or have failed permanently
    (`failed`): the latter newest first, others oldest first. `beyond` is the id of the last one that was
    seen."""
    return await queries.list_tasks(database, status, name, beyond, limit)


async def retry(database: Database, task_id: int) -> str:
    """Make a task that has failed, or that waits for its next attempt, due at once, as if it had never been
    tried. Return its name. Raise `TaskRefused`."""
    async with database.transaction() as transaction:
        task = await _locked(transaction, task_id)
        await failures.settle(transaction, TASK_FAILURES, str(task_id))
        if task.status == "failed" and not await queries.retry_task(transaction, task_id):
            await queries.remove_task(transaction, task_id)  # the same work is already waiting
        elif task.status == "todo":
            await queries.make_due(transaction, task_id)
    log.info("a task is tried again", task=task.name, id=task_id)
    return task.name


async def cancel(database: Database, task_id: int) -> str:
    """Remove a task that waits or has failed permanently, and return its name. Raise `TaskRefused`."""
    async with database.transaction() as transaction:
        task = await _locked(transaction, task_id)
        await queries.remove_task(transaction, task_id)
        await failures.settle(transaction, TASK_FAILURES, str(task_id))
    log.info("a task was removed", task=task.name, id=task_id)
    return task.name


async def _locked(transaction: Transaction, task_id: int) -> queries.LockedTask:
    task = await queries.lock_task(transaction, task_id)
    if task is None:
        raise TaskRefused(f"There is no task {task_id}: it has been done, or was removed.")
    if task.status == "doing":
        raise TaskRefused(f"Task {task_id} ({task.name}) is running: wait until it has ended.")
    return task


def setup(services: Services) -> None:
    """Register the task that deletes old failed tasks once a day."""

    async def forget_failed_tasks() -> None:
        database, days = services.database, services.settings.failed_tasks_days
        before = database.now - datetime.timedelta(days=days)
        removed = _BATCH
        while removed == _BATCH:
            async with database.transaction() as transaction:
                removed = await queries.forget_tasks(transaction, before, _BATCH)
        async with database.transaction() as transaction:
            await queries.forget_reasons(transaction)
            await failures.forget(transaction, before)

    services.queue.add_periodic("forget_failed_tasks", "41 3 * * *", forget_failed_tasks)
