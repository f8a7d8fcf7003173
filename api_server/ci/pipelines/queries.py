"""Statements that move jobs from state to state, and what those who move them ask about pipelines."""

from collections.abc import Mapping, Sequence

import orjson

from api_server.ci.config.plan import PlannedJob, from_json
from api_server.ci.pipelines.states import TRANSITIONS, Event, Status
from api_server.state.database import Executor, Row, Transaction
from api_server.state.statements import Statement

LOCK_PIPELINE = """
    SELECT pipelines.* FROM pipelines WHERE pipelines.id = %(id)s FOR UPDATE
"""


async def lock_pipeline(transaction: Transaction, pipeline_id: int) -> Row | None:
    """The pipeline's row. Whoever moves its jobs holds it first, so that each sees what the others did."""
    return await transaction.row(LOCK_PIPELINE, id=pipeline_id)


LOCK_PIPELINE_OF_JOB = """
    SELECT FROM pipelines
    WHERE pipelines.id = (SELECT jobs.pipeline_id FROM jobs WHERE jobs.id = %(id)s)
    FOR UPDATE
"""


async def lock_job(transaction: Transaction, job_id: int) -> Row | None:
    """The job's row as it stands once its pipeline is locked: until the transaction ends nobody else moves it, but for
    handing it out to a runner."""
    await transaction.row(LOCK_PIPELINE_OF_JOB, id=job_id)
    return await find_job(transaction, job_id)


FIND_JOB = """
    SELECT jobs.* FROM jobs WHERE jobs.id = %(id)s
"""


async def find_job(database: Executor, job_id: int) -> Row | None:
    """A job's whole row."""
    return await database.row(FIND_JOB, id=job_id)


#: `changes` maps the status before to the status after. The status is read and written under the row's lock, so of
#: any number of callers one moves the job, and the others find no row.
TRANSIT = """
    UPDATE jobs SET
        status = (%(changes)s::jsonb) ->> status,
        queued_at = CASE
            WHEN (%(changes)s::jsonb) ->> status IN ('pending', 'waiting_for_resource', 'preparing')
                AND status IN ('created', 'skipped', 'manual', 'scheduled') THEN now()
            WHEN (%(changes)s::jsonb) ->> status = 'created' THEN NULL
            ELSE queued_at END,
        started_at = CASE WHEN (%(changes)s::jsonb) ->> status = 'running' THEN now() ELSE started_at END,
        finished_at = CASE
            WHEN (%(changes)s::jsonb) ->> status IN ('success', 'failed', 'canceled') THEN now() END,
        contacted_at = CASE WHEN (%(changes)s::jsonb) ->> status = 'running' THEN now() ELSE contacted_at END,
        scheduled_at = CASE WHEN (%(changes)s::jsonb) ->> status = 'scheduled'
            THEN now() + make_interval(secs => coalesce((plan ->> 'start_in')::integer, 0)) END,
        failure_reason = CASE WHEN (%(changes)s::jsonb) ->> status = 'failed' THEN %(failure_reason)s END,
        runner_id = coalesce(%(runner_id)s, runner_id),
        runner_manager_id = coalesce(%(runner_manager_id)s, runner_manager_id),
        token_digest = coalesce(%(token_digest)s, token_digest),
        cancels_gracefully = coalesce(%(cancels_gracefully)s, cancels_gracefully),
        exit_code = coalesce(%(exit_code)s, exit_code),
        allow_failure = allow_failure OR ((%(changes)s::jsonb) ->> status = 'failed'
            AND coalesce(plan -> 'allow_failure_exit_codes' @> to_jsonb(%(exit_code)s::integer), false)),
        user_id = coalesce(%(user_id)s, user_id)
    WHERE id = ANY (%(ids)s) AND (%(changes)s::jsonb) ->> status IS NOT NULL
    RETURNING jobs.*
"""


async def transit(
    transaction: Transaction,
    job_ids: Sequence[int],
    event: Event,
    *,
    failure_reason: str | None = None,
    runner_id: int | None = None,
    runner_manager_id: int | None = None,
    token_digest: bytes | None = None,
    cancels_gracefully: bool | None = None,
    exit_code: int | None = None,
    user_id: int | None = None,
) -> list[Row]:
    """Moves those of the jobs that `event` applies to, and gives their new rows: an empty list is a refusal.

    Changes nothing else: the pipeline's status and what follows are `transitions.advance`'s, which most callers want.
    The exception is the hand-out to a runner, see `transitions.start`.
    """
    return await transaction.rows(
        TRANSIT,
        ids=list(job_ids),
        changes=orjson.dumps(TRANSITIONS[event]).decode(),
        failure_reason=failure_reason,
        runner_id=runner_id,
        runner_manager_id=runner_manager_id,
        token_digest=token_digest,
        cancels_gracefully=cancels_gracefully,
        exit_code=exit_code,
        user_id=user_id,
    )


NOTIFY_RUNNERS = """
    SELECT pg_notify('jobs_pending', %(project_id)s::text)
"""


async def notify_runners(transaction: Transaction, project_id: int) -> None:
    """Wakes those who wait for jobs (LISTEN jobs_pending; the payload is the project's id) on commit."""
    await transaction.row(NOTIFY_RUNNERS, project_id=project_id)


HAS_DATA = """
    SELECT EXISTS (SELECT FROM job_logs WHERE job_logs.job_id = %(id)s)
        OR EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = %(id)s)
"""


async def has_data(database: Executor, job_id: int) -> bool:
    """Whether the job has a log or artifacts."""
    return bool(await database.value(HAS_DATA, id=job_id))


def plan_of(row: Row) -> PlannedJob:
    """What the file said about the job of this row."""
    return from_json(orjson.loads(row.plan))


LATEST_JOBS = Statement("""
    SELECT jobs.id, jobs.name, jobs.kind, jobs.stage_index, jobs.status, jobs.when_run, jobs.allow_failure, jobs.needs,
        jobs.resource_group, jobs.cancels_gracefully, jobs.project_id
    FROM jobs WHERE jobs.pipeline_id = %(pipeline_id)s AND NOT jobs.retried
    ORDER BY jobs.stage_index, jobs.id
""")


async def latest_jobs(database: Executor, pipeline_id: int) -> list[Row]:
    """The jobs that count: of each name the newest, builds and bridges, in the order of stages."""
    return await database.rows(LATEST_JOBS, pipeline_id=pipeline_id)


SET_PIPELINE_STATUS = """
    UPDATE pipelines SET
        status = %(status)s,
        updated_at = now(),
        started_at = CASE WHEN %(status)s IN ('running', 'success', 'failed')
            THEN coalesce(started_at, now()) ELSE started_at END,
        finished_at = CASE WHEN %(status)s IN ('success', 'failed', 'canceled', 'skipped') THEN now() END
    WHERE id = %(id)s AND status <> %(status)s
    RETURNING status, source_job_id
"""


async def set_pipeline_status(transaction: Transaction, pipeline_id: int, status: Status) -> Row | None:
    """status and source_job_id where the status is new, None where the pipeline had it already."""
    return await transaction.row(SET_PIPELINE_STATUS, id=pipeline_id, status=status)


CLONE_JOB = """
    WITH old AS (
        UPDATE jobs SET retried = true
        FROM jobs this WHERE this.id = %(id)s
            AND jobs.pipeline_id = this.pipeline_id AND jobs.name = this.name AND NOT jobs.retried
        RETURNING jobs.*
    ), new AS (
        INSERT INTO jobs (project_id, pipeline_id, kind, name, stage, stage_index, needs, when_run, allow_failure,
            tag_list, protected, resource_group, environment, timeout, plan, user_id, attempt)
        SELECT old.project_id, old.pipeline_id, old.kind, old.name, old.stage, old.stage_index, old.needs, old.when_run,
            coalesce((old.plan ->> 'allow_failure')::boolean, false), old.tag_list, old.protected, old.resource_group,
            old.environment, old.timeout, old.plan, %(user_id)s, %(attempt)s
        FROM old
        RETURNING jobs.*
    ), variables AS (
        INSERT INTO job_variables (job_id, key, value)
        SELECT new.id, job_variables.key, job_variables.value FROM new, job_variables
        WHERE job_variables.job_id = %(id)s
    )
    SELECT new.* FROM new
"""


async def clone_job(transaction: Transaction, job_id: int, *, user_id: int | None, attempt: int) -> Row:
    """A new job like this one, which is `retried` from now on."""
    return await transaction.row(CLONE_JOB, id=job_id, user_id=user_id, attempt=attempt)


SET_VARIABLES = """
    WITH old AS (DELETE FROM job_variables WHERE job_id = %(job_id)s AND key <> ALL (%(keys)s))
    INSERT INTO job_variables (job_id, key, value)
    SELECT %(job_id)s, key, value FROM unnest(%(keys)s::text[], %(values)s::bytea[]) AS given(key, value)
    ON CONFLICT (job_id, key) DO UPDATE SET value = excluded.value
"""


async def set_job_variables(transaction: Transaction, job_id: int, variables: Mapping[str, bytes]) -> None:
    """The variables given to a job when it was started, encrypted; they replace those it had."""
    await transaction.row(SET_VARIABLES, job_id=job_id, keys=list(variables), values=list(variables.values()))


JOB_VARIABLES = """
    SELECT job_variables.key, job_variables.value FROM job_variables
    WHERE job_variables.job_id = %(job_id)s ORDER BY job_variables.id
"""


async def job_variables(database: Executor, job_id: int) -> list[Row]:
    """key and value (encrypted) of the variables that somebody gave to this job."""
    return await database.rows(JOB_VARIABLES, job_id=job_id)


MARK_ERASED = """
    UPDATE jobs SET erased_at = now(), erased_by_id = %(user_id)s, artifacts_expire_at = NULL WHERE id = %(id)s
"""


async def mark_erased(transaction: Transaction, job_id: int, user_id: int) -> None:
    await transaction.row(MARK_ERASED, id=job_id, user_id=user_id)


JOBS_WITH_DATA = """
    SELECT jobs.id FROM jobs WHERE jobs.pipeline_id = %(pipeline_id)s AND (
        EXISTS (SELECT FROM job_logs WHERE job_logs.job_id = jobs.id)
        OR EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = jobs.id))
"""


async def jobs_with_data(database: Executor, pipeline_id: int) -> list[int]:
    """Ids of the jobs of a pipeline that have a log or artifacts."""
    return [row.id for row in await database.rows(JOBS_WITH_DATA, pipeline_id=pipeline_id)]


DELETE_PIPELINE = """
    DELETE FROM pipelines WHERE id = %(id)s
"""


async def delete_pipeline(transaction: Transaction, pipeline_id: int) -> None:
    await transaction.row(DELETE_PIPELINE, id=pipeline_id)
