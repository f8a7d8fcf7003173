# mypy: disable-error-code="empty-body"
"""Statements about jobs as parts of their pipelines: changing their states, and finding the pipelines that
bridges start."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Protocol

import attrs
import orjson

from api_server.ci.config.plan import PlannedJob, from_json
from api_server.ci.pipelines.creation_queries import PipelineSource
from api_server.ci.pipelines.states import COMPLETE, TRANSITIONS, Event, OrderedJob, Status
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Query, Statement

_ORDERED = """
    jobs.id, jobs.project_id, jobs.kind, jobs.status, jobs.name, jobs.stage_index, jobs.needs, jobs.when_run,
    jobs.allow_failure, jobs.resource_group, jobs.cancels_gracefully
"""
_COLUMNS = f"""
    {_ORDERED}, jobs.pipeline_id, jobs.failure_reason, jobs.exit_code, jobs.plan, jobs.retried, jobs.attempt,
    jobs.user_id, jobs.scheduled_at, jobs.started_at
"""


@attrs.frozen(kw_only=True)
class Job(OrderedJob):
    """A build or a bridge; `plan` is for `plan_of`."""

    pipeline_id: int
    failure_reason: str | None
    exit_code: int | None
    plan: str
    #: Whether a newer job of the same name has replaced it.
    retried: bool
    #: Automatic retries before this one.
    attempt: int
    user_id: int | None
    scheduled_at: datetime.datetime | None
    started_at: datetime.datetime | None


class HasPlan(Protocol):
    """A row with a job's `plan`."""

    @property
    def plan(self) -> str: ...


def plan_of(row: HasPlan) -> PlannedJob:
    """Return the planned job in this row."""
    return from_json(orjson.loads(row.plan))


@statement("""
    SELECT FROM pipelines
    WHERE pipelines.id = (SELECT jobs.pipeline_id FROM jobs WHERE jobs.id = %(job_id)s)
    FOR UPDATE
""")
async def lock_pipeline_of(transaction: Transaction, job_id: int) -> None:
    """Lock the job's pipeline: until the transaction ends, other transactions cannot change the job's state,
    except to hand it out to a runner."""


async def lock_job(transaction: Transaction, job_id: int) -> Job:
    """Lock the job's pipeline and return the job. Raise NotFound if both no longer exist."""
    await lock_pipeline_of(transaction, job_id)
    return await transaction.one(FIND_JOB, id=job_id)


FIND_JOB = Query(f"SELECT {_COLUMNS} FROM jobs WHERE jobs.id = %(id)s", Job)


async def find_job(database: Executor, job_id: int) -> Job | None:
    return await database.row(FIND_JOB, id=job_id)


#: `changes` maps the status before to the status after. The status is read and written under the row's lock,
#: so of several callers one changes the job, and the others find no row. A pending job has no runner:
#: everything about an earlier runner is deleted, including the token.
TRANSIT = Query(
    f"""
    UPDATE jobs SET
        status = (%(changes)s::jsonb) ->> status,
        queued_at = CASE
            WHEN (%(changes)s::jsonb) ->> status IN ('pending', 'waiting_for_resource', 'preparing')
                AND status IN ('created', 'skipped', 'manual', 'scheduled') THEN %(now)s
            WHEN (%(changes)s::jsonb) ->> status = 'created' THEN NULL
            ELSE queued_at END,
        started_at = CASE (%(changes)s::jsonb) ->> status WHEN 'running' THEN %(now)s
            WHEN 'pending' THEN NULL ELSE started_at END,
        finished_at = CASE
            WHEN (%(changes)s::jsonb) ->> status IN ('success', 'failed', 'canceled') THEN %(now)s END,
        contacted_at = CASE WHEN (%(changes)s::jsonb) ->> status = 'running' THEN %(now)s ELSE contacted_at END,
        scheduled_at = CASE WHEN (%(changes)s::jsonb) ->> status = 'scheduled'
            THEN %(now)s + make_interval(secs => coalesce((plan ->> 'start_in')::integer, 0)) END,
        failure_reason = CASE WHEN (%(changes)s::jsonb) ->> status = 'failed' THEN %(failure_reason)s END,
        runner_id = CASE WHEN (%(changes)s::jsonb) ->> status <> 'pending'
            THEN coalesce(%(runner_id)s, runner_id) END,
        runner_manager_id = CASE WHEN (%(changes)s::jsonb) ->> status <> 'pending'
            THEN coalesce(%(runner_manager_id)s, runner_manager_id) END,
        token_digest = CASE WHEN (%(changes)s::jsonb) ->> status <> 'pending'
            THEN coalesce(%(token_digest)s, token_digest) END,
        unacknowledged_since = CASE (%(changes)s::jsonb) ->> status
            WHEN 'running' THEN CASE WHEN %(token_digest)s::bytea IS NOT NULL THEN %(now)s::timestamptz END
            WHEN 'canceling' THEN unacknowledged_since END,
        taken_back = taken_back OR status = 'running' AND (%(changes)s::jsonb) ->> status = 'pending',
        masked_values = CASE WHEN (%(changes)s::jsonb) ->> status <> 'pending' THEN masked_values END,
        debug_trace = debug_trace AND (%(changes)s::jsonb) ->> status <> 'pending',
        cancels_gracefully = coalesce(%(cancels_gracefully)s, cancels_gracefully),
        exit_code = coalesce(%(exit_code)s, exit_code),
        allow_failure = allow_failure OR ((%(changes)s::jsonb) ->> status = 'failed'
            AND coalesce(plan -> 'allow_failure_exit_codes' @> to_jsonb(%(exit_code)s::integer), false)),
        user_id = coalesce(%(user_id)s, user_id)
    WHERE id = ANY (%(ids)s) AND (%(changes)s::jsonb) ->> status IS NOT NULL
    RETURNING {_COLUMNS}
    """,
    Job,
)


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
) -> list[Job]:
    """Apply `event` to those of the jobs whose status allows it, and return their new rows; an empty list is
    a refusal.

    Nothing else is changed. Most callers want `transitions.advance`, which also updates the pipeline's status
    and the following jobs. The exception is the hand-out to a runner, see `transitions.start_job`.
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


@statement("""
    SELECT pg_notify('jobs_pending', %(project_id)s::text)
""")
async def notify_runners(transaction: Transaction, project_id: int) -> None:
    """Wake runners that wait for jobs (LISTEN jobs_pending; the payload is the project's id) on commit."""


@statement("""
    SELECT EXISTS (SELECT FROM job_logs WHERE job_logs.job_id = %(job_id)s)
        OR EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = %(job_id)s)
""")
async def has_data(database: Executor, job_id: int) -> bool:
    """Return whether the job has a log or artifacts."""


@statement(
    f"""
    SELECT {_ORDERED} FROM jobs WHERE jobs.pipeline_id = %(pipeline_id)s AND NOT jobs.retried
    ORDER BY jobs.stage_index, jobs.id
    """,
    prepared=True,
)
async def latest_jobs(database: Executor, pipeline_id: int) -> list[OrderedJob]:
    """Return the latest job of each name, builds and bridges, in the order of stages."""


@statement(f"""
    WITH old AS (
        UPDATE jobs SET retried = true
        FROM jobs this WHERE this.id = %(job_id)s
            AND jobs.pipeline_id = this.pipeline_id AND jobs.name = this.name AND NOT jobs.retried
        RETURNING jobs.*
    ), new AS (
        INSERT INTO jobs (project_id, pipeline_id, kind, name, stage, stage_index, needs, when_run, allow_failure,
            tag_list, protected, resource_group, environment, timeout, plan, user_id, attempt, created_at)
        SELECT old.project_id, old.pipeline_id, old.kind, old.name, old.stage, old.stage_index, old.needs, old.when_run,
            coalesce((old.plan ->> 'allow_failure')::boolean, false), old.tag_list, old.protected, old.resource_group,
            old.environment, coalesce((old.plan ->> 'timeout')::integer, projects.build_timeout), old.plan, %(user_id)s,
            %(attempt)s, %(now)s
        FROM old JOIN projects ON projects.id = old.project_id
        RETURNING jobs.*
    ), variables AS (
        INSERT INTO job_variables (job_id, key, value)
        SELECT new.id, job_variables.key, job_variables.value FROM new, job_variables
        WHERE job_variables.job_id = %(job_id)s
    )
    SELECT {_COLUMNS} FROM new AS jobs
    """)
async def clone_job(transaction: Transaction, job_id: int, *, user_id: int | None, attempt: int = 0) -> Job:
    """Return a new job that replaces this one, which is marked as `retried`.

    The new job is `created`; the pipeline has to be locked.
    """


SET_JOB_VARIABLES = """
    WITH old AS (DELETE FROM job_variables WHERE job_id = %(job_id)s AND key <> ALL (%(keys)s))
    INSERT INTO job_variables (job_id, key, value)
    SELECT %(job_id)s, key, value FROM unnest(%(keys)s::text[], %(values)s::bytea[]) AS given(key, value)
    ON CONFLICT (job_id, key) DO UPDATE SET value = excluded.value
"""


async def set_job_variables(transaction: Transaction, job_id: int, variables: Mapping[str, bytes]) -> None:
    """Replace the variables given to a job when it was started; their values are encrypted."""
    await transaction.run(
        SET_JOB_VARIABLES, job_id=job_id, keys=list(variables), values=list(variables.values())
    )


@statement("""
    UPDATE jobs SET erased_at = %(now)s, erased_by_id = %(user_id)s WHERE id = %(job_id)s
""")
async def mark_erased(transaction: Transaction, job_id: int, user_id: int) -> None: ...


JOBS_WITH_DATA = """
    SELECT coalesce(array_agg(jobs.id), '{}') FROM jobs WHERE jobs.pipeline_id = %(pipeline_id)s AND (
        EXISTS (SELECT FROM job_logs WHERE job_logs.job_id = jobs.id)
        OR EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = jobs.id))
"""


async def jobs_with_data(database: Executor, pipeline_id: int) -> list[int]:
    """Return the ids of the jobs of a pipeline that have a log or artifacts."""
    return list(await database.value(JOBS_WITH_DATA, pipeline_id=pipeline_id))


DELETE_LOGS = """
    WITH logs AS (
        DELETE FROM job_logs WHERE job_id = ANY (%(ids)s) RETURNING object_key
    ), reports AS (
        DELETE FROM job_report_variables WHERE job_id = ANY (%(ids)s)
    )
    SELECT coalesce(array_agg(logs.object_key), '{}') FROM logs WHERE logs.object_key IS NOT NULL
"""
#: Locks the jobs before their artifacts, like an upload.
DELETE_ARTIFACTS = """
    WITH held AS (
        SELECT jobs.id FROM jobs WHERE jobs.id = ANY (%(ids)s) ORDER BY jobs.id FOR NO KEY UPDATE
    ), deleted AS (
        DELETE FROM job_artifacts WHERE job_id IN (SELECT held.id FROM held) RETURNING object_key
    ), jobs_without AS (
        UPDATE jobs SET artifacts_expire_at = NULL WHERE id = ANY (%(ids)s) AND artifacts_expire_at IS NOT NULL
    )
    SELECT coalesce(array_agg(deleted.object_key), '{}') FROM deleted
"""


async def delete_artifacts(transaction: Transaction, job_ids: Sequence[int]) -> list[str]:
    """Remove the artifacts of jobs, but not their logs; return the keys of the objects that hold their bytes."""
    return list(await transaction.value(DELETE_ARTIFACTS, ids=list(job_ids)))


async def delete_job_data(transaction: Transaction, job_ids: Sequence[int]) -> list[str]:
    """Remove the logs and the artifacts of jobs; return the keys of the objects that hold their bytes."""
    logs = list(await transaction.value(DELETE_LOGS, ids=list(job_ids)))
    return logs + await delete_artifacts(transaction, job_ids)


HOLD_RESOURCE_GROUP = """
    SELECT pg_advisory_xact_lock(hashtextextended(%(project_id)s || ':' || %(resource_group)s, 20))
"""

NEXT_FOR_RESOURCE = """
    SELECT jobs.id FROM jobs
    WHERE jobs.project_id = %(project_id)s AND jobs.resource_group = %(resource_group)s
        AND jobs.status = 'waiting_for_resource'
        AND NOT EXISTS (
            SELECT FROM jobs holder
            WHERE holder.project_id = %(project_id)s AND holder.resource_group = %(resource_group)s
                AND holder.status IN ('pending', 'running', 'canceling'))
    ORDER BY jobs.id
    LIMIT 1
"""


async def next_for_resource(transaction: Transaction, project_id: int, resource_group: str) -> int | None:
    """Return the oldest job that waits for a free resource, or None. Other callers wait until the transaction
    ends."""
    await transaction.run(HOLD_RESOURCE_GROUP, project_id=project_id, resource_group=resource_group)
    job_id = await transaction.value(NEXT_FOR_RESOURCE, project_id=project_id, resource_group=resource_group)
    return None if job_id is None else int(job_id)


#: Maximum number of pipelines that are followed from a mirrored one.
MAX_MIRRORS = 1000


@attrs.frozen
class Bridge:
    """A bridge with the ref or merge request for which its pipeline runs.

    `depth` counts its pipeline and that one's parents. `loops` says whether projects above it have already
    started each other in a circle. `hierarchy_id` is the first pipeline of the hierarchy.
    """

    id: int
    project_id: int
    pipeline_id: int
    status: Status
    plan: str
    retried: bool
    user_id: int | None
    pipeline_iid: int
    source: PipelineSource
    ref: str
    tag: bool
    sha: str
    before_sha: str
    depth: int
    loops: bool
    hierarchy_id: int
    merge_request_id: int | None


@statement("""
    WITH RECURSIVE above AS (
        SELECT pipelines.*, true AS is_parent FROM pipelines JOIN jobs ON jobs.pipeline_id = pipelines.id
        WHERE jobs.id = %(job_id)s
        UNION ALL
        SELECT pipelines.*, above.is_parent AND above.source = 'parent_pipeline'
        FROM above JOIN jobs ON jobs.id = above.source_job_id JOIN pipelines ON pipelines.id = jobs.pipeline_id
    )
    SELECT jobs.id, jobs.project_id, jobs.pipeline_id, jobs.status, jobs.plan, jobs.retried, jobs.user_id,
        pipelines.iid AS pipeline_iid, pipelines.source, pipelines.ref, pipelines.tag, pipelines.sha,
        pipelines.before_sha,
        (SELECT count(*) FROM above WHERE above.is_parent) AS depth,
        EXISTS (SELECT FROM above WHERE above.source <> 'parent_pipeline'
            GROUP BY above.project_id, above.ref, above.tag, above.source HAVING count(*) > 1) AS loops,
        coalesce(pipelines.hierarchy_id, pipelines.id) AS hierarchy_id, pipelines.merge_request_id
    FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id
    WHERE jobs.id = %(job_id)s AND jobs.kind = 'bridge'
    """)
async def find_bridge(database: Executor, job_id: int) -> Bridge | None: ...


@attrs.frozen
class FollowedPipeline:
    """A pipeline whose status a bridge takes over: one that it has started, or that it mirrors."""

    id: int
    status: Status
    source: str


@statement("""
    SELECT pipelines.id, pipelines.status, pipelines.source FROM pipelines WHERE pipelines.source_job_id = %(job_id)s
    """)
async def find_downstream(database: Executor, job_id: int) -> FollowedPipeline | None: ...


@statement("""
    SELECT pipelines.id, pipelines.status, pipelines.source
    FROM mirrored_pipelines JOIN pipelines ON pipelines.id = mirrored_pipelines.mirrored_id
    WHERE mirrored_pipelines.job_id = %(job_id)s
    """)
async def find_mirrored(database: Executor, job_id: int) -> FollowedPipeline | None:
    """Return the pipeline that a bridge mirrors, or None if it has been removed."""


HOLD_MIRRORS = """
    SELECT pg_advisory_xact_lock(hashtextextended('mirrored pipelines', 20))
"""
#: A pipeline leads to those that its bridges mirror, and a mirrored pipeline to its parents, so that no
#: bridge waits for a pipeline that waits for the bridge.
MIRROR = f"""
    WITH RECURSIVE newest AS (
        SELECT pipelines.id FROM pipelines
        WHERE pipelines.project_id = %(project_id)s AND pipelines.ref = %(branch)s AND NOT pipelines.tag
            AND pipelines.source <> 'parent_pipeline'
        ORDER BY pipelines.id DESC LIMIT 1
    ), reached AS (
        SELECT newest.id FROM newest
        UNION
        SELECT mirrored_pipelines.mirrored_id
        FROM reached JOIN mirrored_pipelines ON mirrored_pipelines.pipeline_id = reached.id
    ), looked_at AS (
        SELECT reached.id FROM reached LIMIT {MAX_MIRRORS}
    ), loops AS (
        SELECT count(*) = {MAX_MIRRORS} OR bool_or(
            coalesce(pipelines.hierarchy_id, pipelines.id) = coalesce(own.hierarchy_id, own.id)) AS circular
        FROM looked_at JOIN pipelines ON pipelines.id = looked_at.id
        JOIN pipelines own ON own.id = %(pipeline_id)s
    ), mirrored AS (
        INSERT INTO mirrored_pipelines (job_id, pipeline_id, mirrored_id)
        SELECT %(job_id)s, %(pipeline_id)s, newest.id FROM newest, loops WHERE NOT loops.circular
        ON CONFLICT (job_id) DO NOTHING
    )
    SELECT CASE WHEN NOT EXISTS (SELECT FROM newest) THEN 'skip' WHEN loops.circular THEN 'drop' ELSE 'run' END
    FROM loops
"""


async def mirror(transaction: Transaction, bridge: Bridge, *, project_id: int, branch: str) -> Event:
    """Let a bridge mirror the newest pipeline of a branch, and return the resulting event of the bridge: it
    is skipped if there is no pipeline, and fails if pipelines would wait for each other in a cycle."""
    await transaction.run(HOLD_MIRRORS)
    event: Event = await transaction.value(
        MIRROR, job_id=bridge.id, pipeline_id=bridge.pipeline_id, project_id=project_id, branch=branch
    )
    return event


MIRRORING = Statement("""
    SELECT ARRAY(
        SELECT mirrored_pipelines.job_id FROM mirrored_pipelines
        WHERE mirrored_pipelines.mirrored_id = %(pipeline_id)s AND mirrored_pipelines.job_id > %(after)s
        ORDER BY mirrored_pipelines.job_id LIMIT %(limit)s)
""")


async def mirroring(database: Executor, pipeline_id: int, *, after: int, limit: int = 200) -> list[int]:
    """Return the first `limit` bridges with ids above `after` that mirror a pipeline."""
    return list(await database.value(MIRRORING, pipeline_id=pipeline_id, after=after, limit=limit))


FORGOTTEN_BRIDGES = Statement("""
    SELECT ARRAY(
        SELECT jobs.id FROM jobs
        WHERE jobs.kind = 'bridge' AND jobs.status = 'running' AND NOT EXISTS (
            SELECT FROM pipelines WHERE pipelines.source_job_id = jobs.id AND pipelines.status <> ALL (%(complete)s))
            AND NOT EXISTS (
                SELECT FROM mirrored_pipelines JOIN pipelines ON pipelines.id = mirrored_pipelines.mirrored_id
                WHERE mirrored_pipelines.job_id = jobs.id AND pipelines.status <> ALL (%(complete)s))
        ORDER BY jobs.id LIMIT %(limit)s)
""")


async def forgotten_bridges(database: Executor, limit: int = 200) -> list[int]:
    """Return the first `limit` bridges that are running although they wait for no running pipeline."""
    return list(await database.value(FORGOTTEN_BRIDGES, complete=sorted(COMPLETE), limit=limit))


@attrs.frozen
class StoredArchive:
    """The archive of a job in the object store."""

    object_key: str
    size: int


@statement("""
    SELECT archive.object_key, archive.size
    FROM jobs bridge JOIN jobs ON jobs.pipeline_id = bridge.pipeline_id
    JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'archive'
    WHERE bridge.id = %(bridge_id)s AND jobs.name = %(name)s AND NOT jobs.retried AND jobs.kind = 'build'
        AND (archive.expire_at IS NULL OR archive.expire_at > %(now)s)
    """)
async def archive_beside(database: Executor, bridge_id: int, name: str) -> StoredArchive | None:
    """Return the archive of a job of that name in the bridge's own pipeline, or None if it does not exist
    (any more)."""


@attrs.frozen
class TargetProject:
    """A project that a bridge names, with the role of the user for whom the bridge runs."""

    id: int
    default_branch: str
    archived: bool
    builds_access_level: str
    admin: bool
    role: int


@statement("""
    SELECT projects.id, projects.default_branch, projects.archived, projects.builds_access_level,
        users.admin, project_role(projects, namespaces, users.id, %(now)s) AS role
    FROM routes JOIN projects ON projects.id = routes.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    JOIN users ON users.id = %(user_id)s
    WHERE routes.path = lower(%(path)s)
        AND (users.admin OR is_visible(
            projects.visibility, project_role(projects, namespaces, users.id, %(now)s) >= 10, NOT users.external))
    """)
async def project_by_path(database: Executor, path: str, user_id: int | None) -> TargetProject | None:
    """Return the project at a full path with the user's role in it, or None if the user cannot see it."""
