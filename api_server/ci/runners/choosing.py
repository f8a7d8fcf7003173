"""Statements of the hand-out: which pending job is a runner's next, and what belongs to a job."""

from collections.abc import Sequence

from api_server.ci.variables.queries import APPLICABLE
from api_server.state.database import Database, Executor, Row, Transaction
from api_server.state.statements import Statement

#: Projects take turns: first the one with the fewest jobs in runners' hands, then the oldest job. Rows that another
#: hand-out holds are passed over, so that of any number of runners each gets another job, and none waits for one.
CHOOSE = Statement("""
    WITH busy AS (
        SELECT jobs.project_id, count(*) AS running FROM jobs
        WHERE jobs.status IN ('running', 'canceling') GROUP BY jobs.project_id
    )
    SELECT jobs.id FROM runners
    JOIN jobs ON jobs.tag_list <@ runners.tag_list
        AND (jobs.tag_list <> '{}' OR runners.run_untagged)
        AND (jobs.protected OR runners.access_level <> 'ref_protected')
    JOIN projects ON projects.id = jobs.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    LEFT JOIN busy ON busy.project_id = jobs.project_id
    WHERE runners.id = %(runner_id)s AND runners.active
        AND jobs.status = 'pending' AND jobs.kind = 'build'
        AND projects.builds_access_level <> 'disabled' AND NOT projects.archived
        AND CASE runners.runner_type
            WHEN 'instance_type' THEN true
            WHEN 'group_type' THEN runners.namespace_id = ANY (namespaces.lineage)
            ELSE EXISTS (
                SELECT FROM runner_projects
                WHERE runner_projects.runner_id = runners.id AND runner_projects.project_id = jobs.project_id) END
    ORDER BY coalesce(busy.running, 0), jobs.id
    LIMIT 1
    FOR UPDATE OF jobs SKIP LOCKED
""")


async def choose(transaction: Transaction, runner_id: int) -> int | None:
    """The id of the pending job that is the runner's next, its row locked; None too for a paused runner."""
    found = await transaction.value(CHOOSE, runner_id=runner_id)
    return None if found is None else int(found)


PIPELINE = Statement("""
    SELECT pipelines.* FROM pipelines WHERE pipelines.id = %(id)s
""")


async def pipeline(database: Database, pipeline_id: int) -> Row:
    return await database.row(PIPELINE, id=pipeline_id)


DEPENDENCIES = Statement("""
    SELECT jobs.id, jobs.name, archive.filename, archive.size FROM jobs
    LEFT JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'archive'
        AND (archive.expire_at IS NULL OR archive.expire_at > now() OR archive.locked)
    WHERE jobs.pipeline_id = %(pipeline_id)s AND NOT jobs.retried AND jobs.kind = 'build'
        AND CASE WHEN %(names)s::text[] IS NULL THEN jobs.stage_index < %(stage_index)s::integer
            ELSE jobs.name = ANY (%(names)s::text[]) END
    ORDER BY jobs.stage_index, jobs.id
""")


async def dependencies(database: Database, job: Row, names: Sequence[str] | None) -> list[Row]:
    """id and name of the jobs whose results this one gets (None: those of all earlier stages), with filename and size
    of their archive, null without one."""
    return await database.rows(
        DEPENDENCIES,
        pipeline_id=job.pipeline_id,
        stage_index=job.stage_index,
        names=None if names is None else list(names),
    )


GIVEN_VARIABLES = Statement(f"""
    SELECT key, value, file, raw, masked FROM (
        SELECT ARRAY[0, job_id] AS rank, key, value, false AS file, true AS raw, false AS masked
        FROM job_report_variables WHERE job_report_variables.job_id = ANY (%(earlier)s::bigint[])
        UNION ALL
        {APPLICABLE}
        UNION ALL
        SELECT ARRAY[2, id], key, value, variable_type = 'file', false, false FROM pipeline_variables
        WHERE pipeline_variables.pipeline_id = %(pipeline_id)s
        UNION ALL
        SELECT ARRAY[3, id], key, value, false, false, false FROM job_variables
        WHERE job_variables.job_id = %(job_id)s
    ) layers ORDER BY rank, key
""")


async def given_variables(database: Database, job: Row, earlier: Sequence[int]) -> list[Row]:
    """key, value (encrypted), file, raw, masked: reports of the jobs `earlier`, then what groups and the project have
    for such jobs, then what was given to the pipeline, then to this job, weakest first."""
    return await database.rows(
        GIVEN_VARIABLES,
        job_id=job.id,
        pipeline_id=job.pipeline_id,
        project_id=job.project_id,
        protected=job.protected,
        environment=job.environment,
        earlier=list(earlier),
    )


MARK_DEBUG_TRACE = """
    UPDATE jobs SET debug_trace = true WHERE id = %(id)s
"""


async def mark_debug_trace(transaction: Transaction, job_id: int) -> None:
    """The job's log may show secrets: fewer people may read it."""
    await transaction.row(MARK_DEBUG_TRACE, id=job_id)


SET_MASKED_VALUES = """
    UPDATE jobs SET masked_values = %(sealed)s WHERE id = %(id)s
"""


async def set_masked_values(transaction: Transaction, job_id: int, sealed: bytes) -> None:
    """What the job's log must not show (encrypted)."""
    await transaction.row(SET_MASKED_VALUES, id=job_id, sealed=sealed)


ANY_PENDING = Statement("""
    SELECT EXISTS (SELECT FROM jobs WHERE jobs.status = 'pending' AND jobs.kind = 'build')
""")


async def any_pending(database: Executor) -> bool:
    """Whether there is a job for anybody at all."""
    return bool(await database.value(ANY_PENDING))
