"""Running schedules: every minute those whose moment has come are queued, in the transaction that notes their next one.

So any number of processes run each once, and what was missed while nobody looked is run once, not as often as it was
missed.
"""

import uuid

import structlog
from aiohttp import web

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines import creation
from api_server.ci.pipelines.creation import Maker, NotAllowed, NotMade, Wanted, maker
from api_server.ci.schedules import changes, cron, queries
from api_server.ci.schedules.queries import Schedule
from api_server.state.database import Database, Transaction
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import DATABASE, App

log = structlog.get_logger(__name__)

RUN = "run_pipeline_schedule"
#: Schedules that are taken in one transaction.
BATCH = 100


def setup(app: web.Application) -> None:
    """Has this application run its schedules."""

    async def queue_due() -> None:
        await queue_due_schedules(app[DATABASE])

    async def run(schedule_id: int, origin: str, user_id: int | None = None) -> None:
        await run_schedule(app, schedule_id, origin, user_id)

    app[QUEUE].add_periodic("queue_due_schedules", "* * * * *", queue_due)
    app[QUEUE].add(RUN, run, attempts=5)


async def queue_due_schedules(database: Database) -> None:
    """Queues what is due."""
    taken = BATCH
    while taken == BATCH:
        async with database.transaction() as transaction:
            due = await queries.lock_due(transaction, BATCH)
            for schedule in due:
                await _queue_due(transaction, schedule)
        taken = len(due)


async def _queue_due(transaction: Transaction, schedule: Schedule) -> None:
    try:
        next_run_at = cron.next_run(schedule.cron, schedule.cron_timezone, transaction.now)
    except ValueError:  # its time zone is no more
        await changes.deactivate(transaction, schedule)
        return
    await queries.set_next_run(transaction, schedule.id, next_run_at)
    origin = f"schedule:{schedule.id}:{schedule.next_run_at.isoformat()}"
    await enqueue(transaction, RUN, schedule_id=schedule.id, origin=origin)


async def queue_now(transaction: Transaction, schedule_id: int, user_id: int) -> None:
    """Queues a run beside those that are due, for whoever asks for it."""
    await enqueue(transaction, RUN, schedule_id=schedule_id, user_id=user_id, origin=uuid.uuid4().hex)


async def run_schedule(app: App, schedule_id: int, origin: str, user_id: int | None = None) -> None:
    """Makes the pipeline, with the rights that the user has by now: who asked for it, or else the owner. A schedule
    whose owner has lost hers runs no more until somebody takes it over."""
    making = maker(app)
    schedule = await queries.find_by_id(making.database, schedule_id)
    if schedule is None or (user_id is None and not schedule.active):
        return
    by = schedule.owner_id if user_id is None else user_id
    try:
        await _make(making, schedule, by, origin)
    except NotMade as refused:
        reason = "; ".join(refused.errors)
        log.info("no pipeline for a schedule", schedule_id=schedule_id, reason=reason)
        if isinstance(refused, NotAllowed) and by == schedule.owner_id:
            async with making.database.transaction() as transaction:
                await changes.deactivate(transaction, schedule)


async def _make(making: Maker, schedule: Schedule, user_id: int | None, origin: str) -> int:
    """Raises `NotMade`."""
    on = making.resolve(schedule.project_id, schedule.ref)
    rows = await queries.variables(making.database, schedule.id)
    return await creation.make_with_rights(
        making,
        Wanted(
            project_id=schedule.project_id,
            ref=on.name,
            tag=on.kind == "tag",
            sha=on.commit,
            source="schedule",
            user_id=user_id,
            origin=origin,
            schedule_id=schedule.id,
            variables=tuple(
                Variable(row.key, making.vault.decrypt(row.value), file=row.variable_type == "file")
                for row in rows
            ),
        ),
    )
