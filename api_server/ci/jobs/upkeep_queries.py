"""Statements about jobs that are old, or whose runner is gone."""

import datetime
from collections.abc import Sequence

from api_server.state.database import Executor
from api_server.state.statements import Statement

OLD_JOBS = Statement("""
    SELECT ARRAY(
        SELECT jobs.id FROM jobs
        WHERE jobs.id > %(after)s::bigint AND jobs.finished_at < %(before)s::timestamptz
            AND jobs.status NOT IN ('running', 'canceling')
            AND (EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = jobs.id)
                OR EXISTS (SELECT FROM job_logs WHERE job_logs.job_id = jobs.id))
        ORDER BY jobs.id LIMIT %(most)s::integer)
""")


async def old_jobs(database: Executor, *, after: int, before: datetime.datetime, most: int) -> list[int]:
    """Jobs with a log or artifacts that finished before a moment: the first `most` of them behind the id `after`."""
    return list(await database.value(OLD_JOBS, after=after, before=before, most=most))


SIZE_OF_DATA = Statement("""
    SELECT coalesce(sum(data.size), 0) FROM (
        SELECT job_artifacts.size FROM job_artifacts WHERE job_artifacts.job_id = ANY (%(ids)s::bigint[])
        UNION ALL
        SELECT job_logs.size FROM job_logs WHERE job_logs.job_id = ANY (%(ids)s::bigint[])) data
""")


async def size_of_data(database: Executor, job_ids: Sequence[int]) -> int:
    """Bytes of the logs and artifacts of these jobs."""
    return int(await database.value(SIZE_OF_DATA, ids=list(job_ids)))
