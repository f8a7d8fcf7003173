"""Statements about reports."""

import attrs

from api_server.ci.jobs.artifacts.queries import HAS_NOT_EXPIRED
from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen
class StoredReport:
    """A job's report of its tests in the object store."""

    job_id: int
    #: Of the job.
    name: str
    #: One of the jobs that `parallel` makes of one.
    parallel: bool
    object_key: str
    size: int


REPORTS = Query(
    f"""
    SELECT jobs.id AS job_id, jobs.name, coalesce((jobs.plan ->> 'node_total')::integer, 1) > 1 AS parallel,
        archive.object_key, archive.size
    FROM jobs JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'junit'
    WHERE jobs.pipeline_id = %(pipeline_id)s AND jobs.kind = 'build' AND NOT jobs.retried AND {HAS_NOT_EXPIRED}
    ORDER BY jobs.id
    """,
    StoredReport,
)


async def reports_of(database: Executor, pipeline_id: int) -> list[StoredReport]:
    """Those of the builds that count."""
    return await database.rows(REPORTS, pipeline_id=pipeline_id)
