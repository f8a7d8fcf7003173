# mypy: disable-error-code="empty-body"
"""Statements about jobs for runners: choosing a runner's next job, reading its description, and finding the
job of a token.

Projects take turns: the next job is the oldest one of the project with the fewest running jobs. Rows that
another hand-out has locked are skipped, so any number of runners get different jobs without waiting for each
other.

Jobs that are equal for runners (of one project, with the same tags, and all on protected refs or all not)
form a lane. Only the oldest jobs of each lane are examined, so the cost depends on the number of lanes that
the runner may take from, and not on the number of jobs in them.
"""

import datetime
from collections.abc import Collection, Sequence

import attrs

from api_server.ci.jobs.artifact_queries import ACCESS, HAS_NOT_EXPIRED
from api_server.ci.variables.queries import APPLICABLE, SealedVariable, checked, weakest_first
from api_server.state.database import Database, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Statement

#: Jobs that the first search tries; each further search tries eight times as many.
FIRST_DEPTH = 8

#: The condition of the index `jobs_waiting`, verbatim, so that PostgreSQL uses this index whatever its
#: statistics are.
_WAITS = "jobs.kind || ' ' || jobs.status = 'build pending'"


@attrs.frozen
class Choice:
    """A job whose row is locked; its id is None if others have locked all `looked_at` jobs that were
    tried."""

    id: int | None
    looked_at: int


#: The distinct requirements of jobs, each found by one index look-up.
_KINDS = f"""
        (
            SELECT tags_digest(jobs.tag_list) AS digest, jobs.tag_list, jobs.protected FROM jobs WHERE {_WAITS}
            ORDER BY tags_digest(jobs.tag_list), jobs.protected, jobs.project_id, jobs.id LIMIT 1
        )
        UNION ALL
        SELECT next.* FROM kinds CROSS JOIN LATERAL (
            SELECT tags_digest(jobs.tag_list), jobs.tag_list, jobs.protected FROM jobs WHERE {_WAITS}
                AND (tags_digest(jobs.tag_list), jobs.protected) > (kinds.digest, kinds.protected)
            ORDER BY tags_digest(jobs.tag_list), jobs.protected, jobs.project_id, jobs.id LIMIT 1
        ) next
    """

#: Whether a runner meets the requirements of a kind of job: its tags and its ref.
FITS_TAGS = """(kinds.tag_list <@ runner.tag_list OR %(star_is_any)s::boolean AND '*' = ANY (runner.tag_list))
            AND (kinds.tag_list <> '{}' OR runner.run_untagged)"""
FITS_REF = "(kinds.protected OR runner.access_level <> 'ref_protected')"
_FITS = f"""{FITS_TAGS}
            AND {FITS_REF}"""

#: Whether runners get jobs of a project at all.
OPEN = "projects.builds_access_level <> 'disabled' AND NOT projects.archived"

#: `lanes` goes from one project to the next in the same way; the few projects of a project's runner are
#: looked up individually. Running jobs are not counted if only one project has waiting jobs. The first
#: `depth` jobs of all are among the first `depth` of the `depth` lanes that come first.
CHOOSE_JOB = Statement(
    f"""
    WITH RECURSIVE runner AS MATERIALIZED (
        SELECT * FROM runners WHERE runners.id = %(runner_id)s AND runners.active
    ),
    kinds AS ({_KINDS}),
    fitting AS MATERIALIZED (
        SELECT kinds.digest, kinds.protected FROM runner JOIN kinds
            ON {_FITS}
    ),
    lanes AS (
        SELECT fitting.digest, fitting.protected, first.project_id, first.id
        FROM runner CROSS JOIN fitting CROSS JOIN LATERAL (
            SELECT jobs.project_id, jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = fitting.digest AND jobs.protected = fitting.protected
            ORDER BY jobs.project_id, jobs.id LIMIT 1
        ) first
        WHERE runner.runner_type <> 'project_type'
        UNION ALL
        SELECT lanes.digest, lanes.protected, next.project_id, next.id
        FROM lanes CROSS JOIN LATERAL (
            SELECT jobs.project_id, jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = lanes.digest AND jobs.protected = lanes.protected
                AND jobs.project_id > lanes.project_id
            ORDER BY jobs.project_id, jobs.id LIMIT 1
        ) next
    ),
    lanes_of_runner AS MATERIALIZED (
        SELECT * FROM lanes
        UNION ALL
        SELECT fitting.digest, fitting.protected, first.project_id, first.id
        FROM runner JOIN runner_projects ON runner_projects.runner_id = runner.id
        CROSS JOIN fitting CROSS JOIN LATERAL (
            SELECT jobs.project_id, jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = fitting.digest AND jobs.protected = fitting.protected
                AND jobs.project_id = runner_projects.project_id
            ORDER BY jobs.id LIMIT 1
        ) first
        WHERE runner.runner_type = 'project_type'
    ),
    busy AS MATERIALIZED (
        SELECT waiting.project_id, (
            SELECT count(*) FROM unnest(ARRAY['running', 'canceling']) AS taken (status)
            JOIN jobs ON jobs.project_id = waiting.project_id AND jobs.status = taken.status AND jobs.kind = 'build'
        ) AS running
        FROM (SELECT DISTINCT project_id FROM lanes_of_runner) waiting
        WHERE (SELECT min(project_id) <> max(project_id) FROM lanes_of_runner)
    ),
    nearest AS MATERIALIZED (
        SELECT turns.* FROM (
            SELECT lanes_of_runner.*, coalesce(busy.running, 0) AS running
            FROM lanes_of_runner LEFT JOIN busy USING (project_id)
            ORDER BY coalesce(busy.running, 0), lanes_of_runner.id
        ) turns
        CROSS JOIN LATERAL (
            SELECT FROM runner, projects JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE projects.id = turns.project_id
                AND {OPEN}
                AND (runner.runner_type <> 'group_type' OR runner.namespace_id = ANY (namespaces.lineage))
            OFFSET 0 -- evaluated for one lane after the other, until there are enough
        ) open
        ORDER BY turns.running, turns.id LIMIT %(depth)s::integer
    ),
    candidates AS MATERIALIZED (
        SELECT nearest.running, waiting.id FROM nearest CROSS JOIN LATERAL (
            SELECT jobs.id FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = nearest.digest AND jobs.protected = nearest.protected
                AND jobs.project_id = nearest.project_id
            ORDER BY jobs.id LIMIT %(depth)s::integer
        ) waiting
        ORDER BY nearest.running, waiting.id LIMIT %(depth)s::integer
    ),
    chosen AS (
        SELECT jobs.id FROM candidates JOIN jobs ON jobs.id = candidates.id
        WHERE {_WAITS}
        ORDER BY candidates.running, candidates.id LIMIT 1
        FOR UPDATE OF jobs SKIP LOCKED
    )
    SELECT (SELECT chosen.id FROM chosen) AS id, (SELECT count(*) FROM candidates) AS looked_at
    """,
    Choice,
    planned_once=True,
)


async def choose_job(transaction: Transaction, runner_id: int, *, star_is_any: bool) -> int | None:
    """Lock the pending job that is the runner's next and return its id. Return None if there is none or the
    runner is paused.

    With `star_is_any`, a runner with the tag `*` has all tags.
    """
    depth = FIRST_DEPTH
    while True:
        choice = await transaction.one(CHOOSE_JOB, runner_id=runner_id, star_is_any=star_is_any, depth=depth)
        if choice.id is not None or choice.looked_at < depth:
            return choice.id
        depth *= 8


#: Checks one runner after the other, until there are enough.
ABLE_RUNNERS = Statement(
    f"""
    WITH RECURSIVE kinds AS ({_KINDS}),
    wanting AS MATERIALIZED (
        SELECT kinds.tag_list, kinds.protected, projects.id AS project_id, namespaces.lineage
        FROM unnest(%(project_ids)s::bigint[]) AS told (id)
        JOIN projects ON projects.id = told.id JOIN namespaces ON namespaces.id = projects.namespace_id
        CROSS JOIN kinds CROSS JOIN LATERAL (
            SELECT FROM jobs WHERE {_WAITS}
                AND tags_digest(jobs.tag_list) = kinds.digest AND jobs.protected = kinds.protected
                AND jobs.project_id = projects.id
            LIMIT 1
        ) one
        WHERE {OPEN}
    )
    SELECT ARRAY(SELECT asking.id FROM (
        SELECT one.id, one.place FROM unnest(%(runner_ids)s::bigint[]) WITH ORDINALITY AS one (id, place)
        WHERE EXISTS (SELECT FROM wanting)
        ORDER BY one.place
    ) asking
    CROSS JOIN LATERAL (
        SELECT FROM runners runner JOIN wanting kinds ON {_FITS}
        WHERE runner.id = asking.id AND runner.active AND CASE runner.runner_type
            WHEN 'instance_type' THEN true
            WHEN 'group_type' THEN runner.namespace_id = ANY (kinds.lineage)
            ELSE EXISTS (
                SELECT FROM runner_projects
                WHERE runner_projects.runner_id = runner.id AND runner_projects.project_id = kinds.project_id) END
        LIMIT 1
    ) able
    ORDER BY asking.place LIMIT %(limit)s::integer)
    """,
    planned_once=True,
)


PROJECTS_THAT_WAIT = Statement(f"SELECT ARRAY(SELECT DISTINCT jobs.project_id FROM jobs WHERE {_WAITS})")


async def able_runners(
    database: Executor,
    runner_ids: Sequence[int],
    project_ids: Collection[int | None],
    limit: int,
    *,
    star_is_any: bool,
) -> list[int]:
    """Return the first `limit` runners that may take a pending job of these projects, even if the job is
    locked.

    If the projects include None, consider the jobs of all projects.
    """
    ids: list[int] = [project_id for project_id in project_ids if project_id is not None]
    if len(ids) < len(project_ids):
        ids = await database.value(PROJECTS_THAT_WAIT)
    runners: list[int] = await database.value(
        ABLE_RUNNERS, runner_ids=list(runner_ids), project_ids=ids, limit=limit, star_is_any=star_is_any
    )
    return runners


HOLD_RUNNER = Statement("""
    SELECT runners.id FROM runners WHERE runners.id = %(runner_id)s AND runners.token_digest = %(token_digest)s
    FOR KEY SHARE
""")


async def hold_runner(transaction: Transaction, runner_id: int, token_digest: bytes) -> bool:
    """Prevent changes of the runner until the transaction ends. Return False if it has been removed, or has
    another token by now."""
    return await transaction.value(HOLD_RUNNER, runner_id=runner_id, token_digest=token_digest) is not None


@attrs.frozen(kw_only=True)
class StartedJob:
    """A job that a runner has got, with its pipeline."""

    id: int
    project_id: int
    pipeline_id: int
    user_id: int | None
    name: str
    stage: str
    stage_index: int
    #: Whether the ref was protected when the pipeline was created.
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
    #: The ref as answers show it; for a merge request's pipeline, that of its head.
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
    #: Settings of the project.
    default_depth: int
    git_strategy: str
    ci_id_token_sub_claim_components: list[str]


@statement(
    """
    SELECT jobs.id, jobs.project_id, jobs.pipeline_id, jobs.user_id, jobs.name, jobs.stage, jobs.stage_index,
        jobs.protected, jobs.environment, jobs.timeout, jobs.plan, jobs.started_at,
        pipelines.iid AS pipeline_iid, pipelines.status AS pipeline_status, pipelines.name AS pipeline_name,
        pipelines.source, pipelines.ref, coalesce(pipelines.source_branch, pipelines.ref) AS short_ref, pipelines.tag,
        pipelines.merge_request_id, pipelines.sha, pipelines.before_sha,
        coalesce(pipelines.tag_message, '') AS tag_message, pipelines.commit, pipelines.committed_at,
        pipelines.created_at AS pipeline_created_at, projects.ci_default_git_depth AS default_depth,
        projects.build_git_strategy AS git_strategy, projects.ci_id_token_sub_claim_components
    FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id JOIN projects ON projects.id = jobs.project_id
    WHERE jobs.id = %(job_id)s
    """,
    prepared=True,
)
async def started_job(database: Database, job_id: int) -> StartedJob: ...


@attrs.frozen
class EarlierJob:
    """A job whose results another one gets, with its archive; null if it has none."""

    id: int
    name: str
    filename: str | None
    size: int | None


@statement(
    f"""
    SELECT jobs.id, jobs.name, archive.filename, archive.size FROM jobs
    LEFT JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'archive'
        AND {HAS_NOT_EXPIRED}
    WHERE jobs.pipeline_id = %(pipeline_id)s AND NOT jobs.retried AND jobs.kind = 'build'
        AND CASE WHEN %(names)s::text[] IS NULL THEN jobs.stage_index < %(stage_index)s::integer
            ELSE jobs.name = ANY (%(names)s::text[]) END
    ORDER BY jobs.stage_index, jobs.id
    """,
    prepared=True,
)
async def dependencies(database: Database, job: StartedJob, names: Sequence[str] | None) -> list[EarlierJob]:
    """Return the jobs of these names; for None, those of all earlier stages."""


@attrs.frozen
class OfferedJob(EarlierJob):
    """A job of another project. `access` is a value of `artifacts:access`, which says who may read its
    artifacts."""

    access: str


#: Number of pipelines of a ref that are searched for the last success of a job, which limits the time of a
#: search.
MAX_PIPELINES = 1000


@statement(
    f"""
    SELECT jobs.id, jobs.name, archive.filename, archive.size, {ACCESS} AS access
    FROM (
        SELECT max(successful.id) AS id FROM (
            SELECT pipelines.id FROM pipelines
            WHERE pipelines.project_id = %(project_id)s AND pipelines.ref = %(ref)s
            ORDER BY pipelines.id DESC LIMIT {MAX_PIPELINES}) newest
        CROSS JOIN LATERAL (
            SELECT jobs.id FROM jobs
            WHERE jobs.pipeline_id = newest.id AND jobs.name = %(name)s AND NOT jobs.retried
                AND jobs.kind = 'build' AND jobs.status = 'success'
            LIMIT 1) successful) last
    JOIN jobs ON jobs.id = last.id
    LEFT JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'archive'
        AND {HAS_NOT_EXPIRED}
    """
)
async def last_success(database: Executor, project_id: int, *, ref: str, name: str) -> OfferedJob | None:
    """Return the last job of that name that succeeded on a branch or tag, in one of its newest pipelines, or
    None."""


#: The pipelines %(pipeline_id)s and %(other_id)s with their parents; `own` are those of the first.
_PARENTS = """
    WITH RECURSIVE above AS (
        SELECT pipelines.id, pipelines.source, pipelines.source_job_id, pipelines.id = %(pipeline_id)s AS own
        FROM pipelines WHERE pipelines.id IN (%(pipeline_id)s, %(other_id)s)
        UNION ALL
        SELECT pipelines.id, pipelines.source, pipelines.source_job_id, above.own
        FROM above JOIN jobs ON jobs.id = above.source_job_id JOIN pipelines ON pipelines.id = jobs.pipeline_id
        WHERE above.source = 'parent_pipeline'
    )
"""
_ARE_RELATED = """
    EXISTS (SELECT FROM above JOIN above others ON others.id = above.id WHERE above.own AND NOT others.own)
"""


@statement(
    f"""
    {_PARENTS}
    SELECT jobs.id, jobs.name, archive.filename, archive.size FROM jobs
    LEFT JOIN job_artifacts archive ON archive.job_id = jobs.id AND archive.file_type = 'archive'
        AND {HAS_NOT_EXPIRED}
    WHERE jobs.pipeline_id = %(other_id)s AND jobs.name = %(name)s AND NOT jobs.retried
        AND jobs.kind = 'build' AND jobs.status = 'success' AND {_ARE_RELATED}
    """
)
async def success_of_relative(
    database: Executor, *, pipeline_id: int, other_id: int, name: str
) -> EarlierJob | None:
    """Return the job of that name of another pipeline if it succeeded and both pipelines belong to the same
    parent pipeline, or one to the other (`parent_pipeline`); otherwise None."""


@statement(f"{_PARENTS} SELECT {_ARE_RELATED}")
async def are_related(database: Executor, *, pipeline_id: int, other_id: int) -> bool:
    """Return whether one of two pipelines is a parent of the other, or both have the same parent, at any
    depth."""


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
    """Return the variables that the job is given, weakest first. Raise `TooManyBytes`.

    The order is: reports of the `earlier` jobs, variables of groups and the project for such jobs, variables
    given to the pipeline, variables given to this job.
    """
    return checked(
        await database.rows(
            GIVEN_VARIABLES,
            job_id=job.id,
            pipeline_id=job.pipeline_id,
            project_id=job.project_id,
            protected=job.protected,
            environment=job.environment,
            earlier=[job.id for job in earlier],
        )
    )


@statement("""
    UPDATE jobs SET debug_trace = %(debug_trace)s, masked_values = %(masked_values)s WHERE id = %(job_id)s
""")
async def note_secrets(
    transaction: Transaction, job_id: int, *, debug_trace: bool, masked_values: bytes | None
) -> None:
    """Store the values that the job's log must not show (encrypted), and whether it may show secrets, which
    restricts who may read it."""


@statement(
    """
    SELECT EXISTS (SELECT FROM jobs WHERE jobs.status = 'pending' AND jobs.kind = 'build')
""",
    prepared=True,
)
async def any_pending(database: Executor) -> bool:
    """Return whether any job is pending."""


@attrs.frozen(kw_only=True)
class AssignedJob:
    """A job that a runner executes or has executed, with the end of its log."""

    id: int
    project_id: int
    status: str
    token_digest: bytes | None
    #: Whether its runner has not yet responded since it got the job.
    unacknowledged: bool
    erased_at: datetime.datetime | None
    #: The encrypted secrets that its log must not show.
    masked_values: bytes | None
    #: Bytes of its log; 0 without one.
    size: int
    checksum: int
    #: The last bytes of the log, encrypted, if they may be the beginning of a secret.
    held: bytes | None
    #: Whether somebody has read the log within the last minute.
    watched: bool


@statement(
    """
    SELECT jobs.id, jobs.project_id, jobs.status, jobs.token_digest,
        jobs.unacknowledged_since IS NOT NULL AS unacknowledged, jobs.erased_at, jobs.masked_values,
        coalesce(job_logs.size, 0) AS size, coalesce(job_logs.checksum, 0) AS checksum, job_logs.held,
        coalesce(job_logs.watched_at > %(now)s::timestamptz - interval '1 minute', false) AS watched
    FROM jobs LEFT JOIN job_logs ON job_logs.job_id = jobs.id
    WHERE jobs.id = %(job_id)s
    """,
    prepared=True,
)
async def find_assigned_job(database: Executor, job_id: int) -> AssignedJob | None: ...


@attrs.frozen(kw_only=True)
class RequestingJob:
    """The job, identified by its token, that asks for the artifacts of another one."""

    project_id: int
    pipeline_id: int
    user_id: int | None
    status: str
    unacknowledged: bool
    asked_project_id: int
    asked_pipeline_id: int
    #: A value of `artifacts:access`.
    asked_access: str


@statement(
    f"""
    SELECT asking.project_id, asking.pipeline_id, asking.user_id, asking.status,
        asking.unacknowledged_since IS NOT NULL AS unacknowledged, jobs.project_id AS asked_project_id,
        jobs.pipeline_id AS asked_pipeline_id, {ACCESS} AS asked_access
    FROM jobs asking JOIN jobs ON jobs.id = %(job_id)s
    WHERE asking.token_digest = %(token_digest)s AND asking.erased_at IS NULL AND asking.id <> jobs.id
        AND (jobs.pipeline_id = asking.pipeline_id OR asking.plan ? 'cross_dependencies')
    """,
    prepared=True,
)
async def find_requesting_job(database: Executor, token_digest: bytes, job_id: int) -> RequestingJob | None:
    """Return the job with that token if it belongs to the pipeline of job `job_id`, or if its file names jobs
    of other pipelines; otherwise None."""


@statement("""
    UPDATE jobs SET contacted_at = %(now)s WHERE id = %(job_id)s
""")
async def note_job_contact(transaction: Transaction, job_id: int) -> None:
    """Record that the job's runner has responded."""
