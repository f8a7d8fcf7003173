"""Removing what old jobs left behind: their logs and artifacts; the jobs themselves stay."""

import datetime
from collections.abc import AsyncIterator

import attrs

from api_server.state.database import Database, Row, Statement, Transaction
from api_server.state.objects import Objects

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

DATA_OF = Statement("""
    SELECT
        (SELECT count(*) FROM unnest(%(ids)s::bigint[])) AS jobs,
        (SELECT coalesce(sum(job_artifacts.size), 0) FROM job_artifacts WHERE job_artifacts.job_id = ANY (%(ids)s))
            + (SELECT coalesce(sum(job_traces.size), 0) FROM job_traces WHERE job_traces.job_id = ANY (%(ids)s)) AS bytes,
        ARRAY(
            SELECT job_artifacts.object_key FROM job_artifacts WHERE job_artifacts.job_id = ANY (%(ids)s)
            UNION ALL
            SELECT job_traces.object_key FROM job_traces
            WHERE job_traces.job_id = ANY (%(ids)s) AND job_traces.object_key IS NOT NULL) AS object_keys
""")

DELETE_DATA = """
    WITH artifacts AS (
        DELETE FROM job_artifacts WHERE job_id = ANY (%(ids)s)
    ), logs AS (
        DELETE FROM job_traces WHERE job_id = ANY (%(ids)s)
    )
    UPDATE jobs SET artifacts_expire_at = NULL WHERE id = ANY (%(ids)s) AND artifacts_expire_at IS NOT NULL
"""


@attrs.frozen
class Removed:
    """What a batch of jobs had: how many jobs, and bytes in all."""

    jobs: int
    bytes: int


async def remove_before(
    database: Database, objects: Objects, moment: datetime.datetime, *, dry_run: bool
) -> AsyncIterator[Removed]:
    """Batch after batch of the jobs that finished before `moment`, removed when it is yielded.

    Bytes go before the rows that know where they are. So it may be stopped anywhere, and a further run finds what is
    left; until then a row whose bytes are gone is as good as expired.
    """
    after = 0
    while ids := [row.id for row in await database.rows(OLD_JOBS, after=after, before=moment, most=BATCH)]:
        after = ids[-1]
        found: Row = await database.row(DATA_OF, ids=ids)
        if not dry_run:
            await objects.delete(found.object_keys)
            async with database.transaction() as transaction:
                await _delete_rows(transaction, ids)
        yield Removed(found.jobs, int(found.bytes))


async def _delete_rows(transaction: Transaction, ids: list[int]) -> None:
    await transaction.row(DELETE_DATA, ids=ids)
