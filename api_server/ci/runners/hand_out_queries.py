"""Statements of the hand-out: what makes a runner hold still, and what it is told about its job."""

import datetime
from collections.abc import Sequence

import attrs

from api_server.ci.jobs.artifacts.queries import HAS_NOT_EXPIRED
from api_server.ci.variables.queries import APPLICABLE, SealedVariable, checked, weakest_first
from api_server.state.database import Database, Executor, Transaction
from api_server.state.statements import Statement

HOLD = Statement("""
    SELECT runners.id FROM runners WHERE runners.id = %(runner_id)s AND runners.token_digest = %(token_digest)s
    FOR KEY SHARE
""")


async def hold(transaction: Transaction, runner_id: int, token_digest: bytes) -> bool:
    """Until the transaction ends nobody changes the runner. False where it is gone, or has another token by now."""
    return await transaction.value(HOLD, runner_id=runner_id, token_digest=token_digest) is not None


@attrs.frozen(kw_only=True)
class StartedJob:
    """A job in a runner's hands, with the pipeline that it is of."""

    id: int
    project_id: int
    pipeline_id: int
    user_id: int | None
    name: str
    stage: str
    stage_index: int
    #: Of the job as of its pipeline: the ref was protected when the pipeline was made.
    protected: bool
    environment: str | None
    #: Seconds.
    timeout: int
    plan: str
    started_at: datetime.datetime
    pipeline_iid: int
    pipeline_status: str
    pipeline_name: str | None
    source: str
    #: As answers show it; of a merge request's pipeline that of its head.
    ref: str
    #: The branch or tag that it runs on.
    short_ref: str
    tag: bool
    merge_request_id: int | None
    sha: str
    before_sha: str
    tag_message: str
    #: JSON, as answers show it.
    commit: str
    committed_at: datetime.datetime
    pipeline_created_at: datetime.datetime
    #: Of the project.
    default_depth: int
    git_strategy: str


STARTED_JOB = Statement(
    """
    SELECT jobs.id, jobs.project_id, jobs.pipeline_id, jobs.user_id, jobs.name, jobs.stage, jobs.stage_index,
        jobs.protected, jobs.environment, jobs.timeout, jobs.plan, jobs.started_at,
        pipelines.iid AS pipeline_iid, pipelines.status AS pipeline_status, pipelines.name AS pipeline_name,
        pipelines.source, pipelines.ref, coalesce(pipelines.source_branch, pipelines.ref) AS short_ref, pipelines.tag,
        pipelines.merge_request_id, pipelines.sha, pipelines.before_sha,
        coalesce(pipelines.tag_message, '') AS tag_message, pipelines.commit, pipelines.committed_at,
        pipelines.created_at AS pipeline_created_at, projects.ci_default_git_depth AS default_depth,
        projects.build_git_strategy AS git_strategy
    FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id JOIN projects ON projects.id = jobs.project_id
    WHERE jobs.id = %(id)s
    """,
    StartedJob,
)


async def started_job(database: Database, job_id: int) -> StartedJob:
    return await database.one(STARTED_JOB, id=job_id)


@attrs.frozen
class EarlierJob:
    """A job whose results another one gets, with its archive; null without one."""

    id: int
    name: str
    filename: str | None
    size: int | None


DEPENDENCIES = Statement(
    f"""
    SELECT jobs.id, jobs.name, archive.filename, archive.size FROM jobs
    LEFT JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'archive'
        AND {HAS_NOT_EXPIRED}
    WHERE jobs.pipeline_id = %(pipeline_id)s AND NOT jobs.retried AND jobs.kind = 'build'
        AND CASE WHEN %(names)s::text[] IS NULL THEN jobs.stage_index < %(stage_index)s::integer
            ELSE jobs.name = ANY (%(names)s::text[]) END
    ORDER BY jobs.stage_index, jobs.id
    """,
    EarlierJob,
)


async def dependencies(database: Database, job: StartedJob, names: Sequence[str] | None) -> list[EarlierJob]:
    """The jobs of these names; for None, those of all earlier stages."""
    return await database.rows(
        DEPENDENCIES,
        pipeline_id=job.pipeline_id,
        stage_index=job.stage_index,
        names=None if names is None else list(names),
    )


GIVEN_VARIABLES = Statement(
    weakest_first(f"""
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
    """),
    SealedVariable,
)


async def given_variables(
    database: Database, job: StartedJob, earlier: Sequence[EarlierJob]
) -> list[SealedVariable]:
    """Reports of the jobs `earlier`, then what groups and the project have for such jobs, then what was given to the
    pipeline, then to this job: weakest first. Raises `TooManyBytes`."""
    return checked(
        await database.rows(
            GIVEN_VARIABLES,
            job_id=job.id,
            pipeline_id=job.pipeline_id,
            project_id=job.project_id,
            protected=job.protected,
            environment=job.environment,
            earlier=[one.id for one in earlier],
        )
    )


NOTE_SECRETS = """
    UPDATE jobs SET debug_trace = %(debug_trace)s, masked_values = %(masked_values)s WHERE id = %(id)s
"""


async def note_secrets(
    transaction: Transaction, job_id: int, *, debug_trace: bool, masked_values: bytes | None
) -> None:
    """What the job's log must not show (encrypted), and whether it may show secrets: then fewer people may read it."""
    await transaction.run(NOTE_SECRETS, id=job_id, debug_trace=debug_trace, masked_values=masked_values)


ANY_PENDING = Statement("""
    SELECT EXISTS (SELECT FROM jobs WHERE jobs.status = 'pending' AND jobs.kind = 'build')
""")


async def any_pending(database: Executor) -> bool:
    """Whether there is a job for anybody at all."""
    return bool(await database.value(ANY_PENDING))
