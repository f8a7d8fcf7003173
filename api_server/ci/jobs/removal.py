"""Removing what old jobs left behind: their logs and artifacts; the jobs themselves stay."""

import datetime
from collections.abc import AsyncIterator

import attrs

from api_server.ci.pipelines.data import delete_job_data
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, SYSTEM
from api_server.state.database import Database, Row, Transaction
from api_server.state.statements import Statement

#: Jobs whose data is removed in one transaction.
BATCH = 100

OLD_JOBS = Statement("""
    SELECT jobs.id FROM jobs
    WHERE jobs.id > %(after)s::bigint AND jobs.finished_at < %(before)s::timestamptz
        AND jobs.status NOT IN ('running', 'canceling')
        AND (EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = jobs.id)
            OR EXISTS (SELECT FROM job_traces WHERE job_traces.job_id = jobs.id))
    ORDER BY jobs.id LIMIT %(most)s::integer
""")

SIZE_OF_DATA = Statement("""
    SELECT coalesce(sum(data.size), 0) FROM (
        SELECT job_artifacts.size FROM job_artifacts WHERE job_artifacts.job_id = ANY (%(ids)s::bigint[])
        UNION ALL
        SELECT job_traces.size FROM job_traces WHERE job_traces.job_id = ANY (%(ids)s::bigint[])) data
""")


@attrs.frozen
class Removed:
    """What a batch had: how many jobs, and bytes in all."""

    jobs: int
    bytes: int


async def remove_before(
    database: Database, moment: datetime.datetime, *, dry_run: bool
) -> AsyncIterator[Removed]:
    """Batch after batch of the jobs that finished before `moment`, removed when it is yielded.

    Each batch is one transaction, so it may be stopped anywhere, and a further run finds what is left.
    """
    after = 0
    while rows := await _old_jobs(database, after, moment):
        ids = [row.id for row in rows]
        after = ids[-1]
        size = int(await database.value(SIZE_OF_DATA, ids=ids))
        if not dry_run:
            async with database.transaction() as transaction:
                await delete_job_data(transaction, *ids)
                await _record(transaction, len(ids), moment)
        yield Removed(len(ids), size)


async def _old_jobs(database: Database, after: int, moment: datetime.datetime) -> list[Row]:
    return await database.rows(OLD_JOBS, after=after, before=moment, most=BATCH)


async def _record(transaction: Transaction, jobs: int, before: datetime.datetime) -> None:
    await audit_trail.record(
        transaction,
        "job_data_removed",
        author=SYSTEM,
        entity=INSTANCE,
        target_id=None,
        target_details="logs and artifacts",
        message=f"Removed the logs and artifacts of {jobs} jobs",
        before=before.isoformat(),
        jobs=jobs,
    )
