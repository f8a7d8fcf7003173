# mypy: disable-error-code="empty-body"
"""Statements about jobs whose runner has disappeared, and about the data of old jobs."""

import datetime
from collections.abc import Sequence
from typing import Literal

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Statement


@statement(
    "SELECT EXISTS (SELECT FROM jobs WHERE jobs.status IN ('running', 'canceling') AND jobs.kind = 'build')"
)
async def any_running(database: Executor) -> bool:
    """Return whether any runner has a job."""


NOTE_LOOK = """
    INSERT INTO runner_watch AS known (looked_at, listening_since) VALUES (%(now)s, %(now)s)
    ON CONFLICT (one) DO UPDATE SET
        listening_since = CASE
            WHEN known.looked_at BETWEEN %(now)s::timestamptz - %(gap)s::interval AND %(now)s::timestamptz
            THEN known.listening_since ELSE excluded.listening_since END,
        looked_at = excluded.looked_at
    RETURNING listening_since
"""


async def record_check(transaction: Transaction, gap: datetime.timedelta) -> datetime.datetime:
    """Record a check, and return the beginning of the current series of checks without a `gap`."""
    since: datetime.datetime = await transaction.value(NOTE_LOOK, gap=gap)
    return since


@attrs.frozen
class LostJob:
    """A job that has to fail, and the reason."""

    id: int
    reason: str


@statement("""
    SELECT jobs.id, CASE
        WHEN jobs.contacted_at < %(silent_since)s::timestamptz THEN 'stuck_or_timeout_failure'
        ELSE 'job_execution_timeout' END AS reason
    FROM jobs LEFT JOIN runners ON runners.id = jobs.runner_id
    WHERE jobs.status IN ('running', 'canceling') AND jobs.kind = 'build' AND (
        jobs.contacted_at < %(silent_since)s::timestamptz
        OR jobs.started_at < %(over_since)s::timestamptz
            - make_interval(secs => least(jobs.timeout, runners.maximum_timeout)))
    ORDER BY jobs.id
    """)
async def lost_jobs(
    database: Executor, *, silent_since: datetime.datetime | None, over_since: datetime.datetime | None
) -> list[LostJob]:
    """Return the jobs whose runner has been silent since a moment, or whose time had run out at a moment;
    None disables that condition."""


UNACKNOWLEDGED_JOBS = Statement("""
    SELECT ARRAY(
        SELECT jobs.id FROM jobs WHERE jobs.unacknowledged_since < %(since)s::timestamptz
        ORDER BY jobs.unacknowledged_since LIMIT %(limit)s::integer)
""")


async def unacknowledged_jobs(database: Executor, since: datetime.datetime, limit: int) -> list[int]:
    """Return the first `limit` jobs that were handed out before a moment and have not been acknowledged by
    their runners."""
    return list(await database.value(UNACKNOWLEDGED_JOBS, since=since, limit=limit))


@attrs.frozen
class UnacknowledgedJob:
    """A job that its runner has not acknowledged, with the event to apply."""

    event: Literal["take_back", "drop"]


@statement("""
    SELECT CASE WHEN jobs.status = 'running' AND NOT jobs.taken_back THEN 'take_back' ELSE 'drop' END AS event
    FROM jobs WHERE jobs.id = %(job_id)s AND jobs.unacknowledged_since < %(since)s::timestamptz
    FOR UPDATE
    """)
async def lock_unacknowledged(
    transaction: Transaction, job_id: int, since: datetime.datetime
) -> UnacknowledgedJob | None:
    """Lock the job, so that its runner cannot acknowledge it until the transaction ends. Return None if it
    has done so meanwhile."""


OLD_JOBS = Statement("""
    SELECT ARRAY(
        SELECT jobs.id FROM jobs
        WHERE jobs.id > %(after)s::bigint AND jobs.finished_at < %(before)s::timestamptz
            AND jobs.status NOT IN ('running', 'canceling')
            AND (EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = jobs.id)
                OR EXISTS (SELECT FROM job_logs WHERE job_logs.job_id = jobs.id))
        ORDER BY jobs.id LIMIT %(limit)s::integer)
""")


async def old_jobs(database: Executor, *, after: int, before: datetime.datetime, limit: int) -> list[int]:
    """Return the first `limit` jobs, with ids above `after`, that have a log or artifacts and finished before
    a moment."""
    return list(await database.value(OLD_JOBS, after=after, before=before, limit=limit))


@statement(
    """
    SELECT coalesce(sum(data.size), 0)::bigint FROM (
        SELECT job_artifacts.size FROM job_artifacts WHERE job_artifacts.job_id = ANY (%(job_ids)s::bigint[])
        UNION ALL
        SELECT job_logs.size FROM job_logs WHERE job_logs.job_id = ANY (%(job_ids)s::bigint[])) data
""",
    prepared=True,
)
async def size_of_data(database: Executor, job_ids: Sequence[int]) -> int:
    """Return the bytes of the logs and artifacts of these jobs."""
