"""Jobs whose runner is gone: it fell silent, or never heard that the job is its own.

Silence counts only while somebody was there to listen. After an outage of the service or its database, runners get as
long as ever to be heard of, before a job that they may well be running is given to another.
"""

import datetime

import structlog

from api_server.ci.jobs import lost_queries as queries
from api_server.ci.pipelines import job_queries, transitions
from api_server.state.database import Database

log = structlog.get_logger(__name__)

#: Seconds between two looks.
EVERY_SECONDS = 15
#: Without a look for so long, nobody has listened.
GAP = datetime.timedelta(seconds=3 * EVERY_SECONDS)
#: Runners end jobs at their time-out themselves; after this long it is done for them.
TIMEOUT_GRACE = datetime.timedelta(seconds=60)
#: Jobs that are taken back in one look.
_AT_A_TIME = 200


async def look(database: Database, runner_timeout: float, hand_out_timeout: float) -> None:
    """Fails the jobs whose runner has not been heard of for `runner_timeout` seconds, or that run for too long, and
    takes back those whose runner was not heard of once in `hand_out_timeout` seconds. While no runner has a job, nobody
    can be silent, and nothing is written."""
    if not await queries.any_running(database):
        return
    async with database.transaction() as transaction:
        listening_since = await queries.note_look(transaction, GAP)

    def reached(patience: datetime.timedelta) -> datetime.datetime | None:
        """The moment before which nobody may have been silent; None where nobody has listened for so long."""
        moment = transaction.now - patience
        return moment if listening_since <= moment else None

    lost = await queries.lost_jobs(
        database,
        silent_since=reached(datetime.timedelta(seconds=runner_timeout)),
        over_since=reached(TIMEOUT_GRACE),
    )
    for job in lost:
        async with database.transaction() as transaction:
            moved = await transitions.advance(transaction, job.id, "drop", failure_reason=job.reason)
        if moved is not None:
            log.info("a job's runner is gone", job_id=job.id, reason=job.reason)
    since = reached(datetime.timedelta(seconds=hand_out_timeout))
    if since is not None:
        await _take_back(database, since)


async def _take_back(database: Database, since: datetime.datetime) -> None:
    """Once; a job that nobody takes twice fails."""
    for job_id in await queries.unacknowledged_jobs(database, since, _AT_A_TIME):
        async with database.transaction() as transaction:
            await job_queries.lock_pipeline_of(transaction, job_id)
            held = await queries.lock_unacknowledged(transaction, job_id, since)
            if held is None:
                continue
            await transitions.advance(
                transaction, job_id, held.event, failure_reason="stuck_or_timeout_failure"
            )
        log.warning("a job's runner was never heard of", job_id=job_id, outcome=held.event)
