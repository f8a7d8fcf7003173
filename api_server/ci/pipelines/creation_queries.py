# mypy: disable-error-code="empty-body"
"""Statements for creating a pipeline: its user and its subject, its variables and its jobs."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import attrs
import orjson

from api_server.ci.config.plan import PlannedJob, to_json
from api_server.ci.config.variables import Variable
from api_server.git.ref_names import NO_COMMIT
from api_server.namespaces.resources import OverrideRole, may_give_variables
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement

PipelineSource = Literal[
    "push", "web", "api", "trigger", "schedule", "pipeline", "parent_pipeline", "merge_request_event"
]


@attrs.frozen(kw_only=True)
class MergeRequest:
    """The current state of a merge request for which a pipeline is created; `base_sha` is the merge base of
    its branches."""

    id: int
    iid: int
    project_id: int
    project_path: str
    title: str
    description: str
    draft: bool
    labels: list[str]
    source_branch: str
    source_protected: bool
    target_branch: str
    target_protected: bool
    state: str
    mergeability: str
    head_sha: str
    base_sha: str | None


@statement("""
    SELECT m.id, m.iid, m.project_id, projects.full_path AS project_path, m.title, m.description,
        is_draft(m.title) AS draft, m.labels,
        m.source_branch, is_protected_branch(m.project_id, m.source_branch) AS source_protected,
        m.target_branch, is_protected_branch(m.project_id, m.target_branch) AS target_protected,
        m.state, m.mergeability, m.head_sha, m.base_sha
    FROM merge_requests m JOIN projects ON projects.id = m.project_id
    WHERE m.id = %(merge_request_id)s
    """)
async def find_merge_request(database: Executor, merge_request_id: int | None) -> MergeRequest | None:
    """Return the merge request, or None without an id or if it does not exist."""


#: The attributes of a `creation.PipelineRequest` that are columns of pipelines.
COLUMNS = frozenset(
    {
        "project_id",
        "user_id",
        "source",
        "ref",
        "tag",
        "sha",
        "before_sha",
        "origin",
        "source_job_id",
        "hierarchy_id",
        "schedule_id",
    }
)
#: Defaults of these columns.
_USUAL = {
    "name": None,
    "before_sha": NO_COMMIT,
    "tag_message": None,
    "yaml_errors": None,
    "origin": None,
    "source_job_id": None,
    "hierarchy_id": None,
    "schedule_id": None,
    "merge_request_id": None,
    "source_branch": None,
    "auto_cancel_on_new_commit": "conservative",
    "auto_cancel_on_job_failure": "none",
}
#: Statuses of jobs that occupy a runner, or will do so without further action.
ACTIVE = ["created", "waiting_for_resource", "preparing", "scheduled", "pending", "running", "canceling"]


@attrs.frozen
class Subject:
    """A project, a branch of it and the user who starts a pipeline there, from which the pipeline's variables
    are made."""

    id: int
    namespace_id: int
    full_path: str
    name: str
    description: str | None
    visibility: str
    default_branch: str
    ci_config_path: str | None
    next_iid: int
    #: Those from the branch, at most `MAX_OPEN_MERGE_REQUESTS`: `group/app!2,group/app!1`.
    open_merge_requests: str | None
    user_id: int | None
    username: str | None
    user_name: str | None
    email: str | None
    #: Whether the user is active; False without one.
    active: bool
    admin: bool
    ci_pipeline_variables_minimum_override_role: OverrideRole
    role: int | None

    @property
    def takes_variables(self) -> bool:
        """Whether the user who starts the pipeline may give it variables."""
        return may_give_variables(self.ci_pipeline_variables_minimum_override_role, self.role)


#: Maximum number of open merge requests of a branch that its jobs get.
MAX_OPEN_MERGE_REQUESTS = 4


@statement(f"""
    SELECT projects.id, projects.namespace_id, projects.full_path, projects.name, projects.description,
        projects.visibility, projects.default_branch, projects.ci_config_path,
        coalesce((SELECT pipeline_iids.last FROM pipeline_iids WHERE pipeline_iids.project_id = projects.id), 0) + 1
            AS next_iid,
        (SELECT string_agg(projects.full_path || '!' || newest.iid, ',' ORDER BY newest.iid DESC) FROM (
            SELECT merge_requests.iid FROM merge_requests
            WHERE merge_requests.project_id = projects.id AND merge_requests.source_branch = %(branch)s
                AND merge_requests.state = 'opened'
            ORDER BY merge_requests.iid DESC LIMIT {MAX_OPEN_MERGE_REQUESTS}) newest) AS open_merge_requests,
        users.id AS user_id, users.username, users.name AS user_name, users.email,
        coalesce(users.state = 'active', false) AS active, coalesce(users.admin, false) AS admin,
        projects.ci_pipeline_variables_minimum_override_role,
        CASE WHEN users.admin THEN 50 ELSE project_role(projects, namespaces, users.id, %(now)s) END AS role
    FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
    LEFT JOIN users ON users.id = %(user_id)s
    WHERE projects.id = %(project_id)s
    """)
async def subject(database: Executor, project_id: int, user_id: int | None, branch: str | None) -> Subject:
    """Return the project and the user. Raise NotFound without the project; `branch` is None for a tag."""


@attrs.frozen
class ReleaseCommit:
    """The commit that a tag pointed to when its release was created."""

    tag: str
    sha: str


@statement("""
    SELECT releases.tag, releases.sha FROM releases WHERE releases.project_id = %(project_id)s
    ORDER BY releases.released_at DESC, releases.id DESC LIMIT %(limit)s
""")
async def release_commits(database: Executor, project_id: int, limit: int) -> list[ReleaseCommit]:
    """Return the tags and commits of the newest releases of a project."""


@attrs.frozen
class ActiveUser:
    admin: bool


@statement("SELECT users.admin FROM users WHERE users.id = %(user_id)s AND users.state = 'active'")
async def active_user(database: Executor, user_id: int | None) -> ActiveUser | None:
    """Return the user, or None if the user has been removed or blocked."""


PIPELINE_OF_ORIGIN = """
    SELECT pipelines.id FROM pipelines
    WHERE pipelines.origin = %(origin)s OR pipelines.source_job_id = %(source_job_id)s
"""


async def pipeline_of_origin(database: Executor, *, origin: str | None, source_job_id: int | None) -> int:
    """Return the id of the pipeline that was created for this origin or bridge; 0 if there is none."""
    return int(await database.value(PIPELINE_OF_ORIGIN, origin=origin, source_job_id=source_job_id) or 0)


CREATE_PIPELINE = """
    WITH counted AS (
        INSERT INTO pipeline_iids (project_id, last) VALUES (%(project_id)s, 1)
        ON CONFLICT (project_id) DO UPDATE SET last = pipeline_iids.last + 1
        RETURNING last
    )
    INSERT INTO pipelines (project_id, iid, user_id, status, source, name, ref, tag, protected, sha, before_sha, commit,
        tag_message, yaml_errors, origin, source_job_id, hierarchy_id, schedule_id, merge_request_id, source_branch,
        auto_cancel_on_new_commit, auto_cancel_on_job_failure, committed_at, created_at, updated_at, finished_at)
    SELECT %(project_id)s, counted.last, %(user_id)s, %(status)s, %(source)s, %(name)s, %(ref)s, %(tag)s, %(protected)s,
        %(sha)s, %(before_sha)s, %(commit)s, %(tag_message)s, %(yaml_errors)s, %(origin)s, %(source_job_id)s,
        %(hierarchy_id)s, %(schedule_id)s, %(merge_request_id)s, %(source_branch)s, %(auto_cancel_on_new_commit)s,
        %(auto_cancel_on_job_failure)s, %(committed_at)s, %(now)s, %(now)s,
        CASE WHEN %(status)s IN ('failed', 'skipped') THEN %(now)s END
    FROM counted
    RETURNING id
"""


async def create_pipeline(transaction: Transaction, **values: Any) -> int:
    """Create a pipeline and return its id. Raise Conflict on `pipelines_origin` and
    `pipelines_source_job`."""
    return int(await transaction.value(CREATE_PIPELINE, **_USUAL | values))


@statement("""
    UPDATE pipelines SET hierarchy_size = hierarchy_size + 1 WHERE id = %(hierarchy_id)s AND hierarchy_size < %(limit)s
""")
async def grow_hierarchy(transaction: Transaction, hierarchy_id: int, limit: int) -> bool:
    """Count one more pipeline below the first one. Return False if there are `limit` already, or the first one
    no longer exists."""


ACTIVE_JOBS = """
    SELECT count(*) FROM unnest(%(statuses)s::text[]) wanted(status) CROSS JOIN LATERAL (
        SELECT jobs.created_at FROM jobs
        WHERE jobs.project_id = %(project_id)s AND jobs.kind = 'build' AND jobs.status = wanted.status
        ORDER BY -jobs.id LIMIT %(limit)s
    ) newest
    WHERE newest.created_at > %(now)s::timestamptz - interval '1 day'
"""


async def active_jobs(transaction: Transaction, project_id: int, limit: int) -> int:
    """Return the number of builds of the last day that are waiting or running; each status is counted up to
    `limit`."""
    return int(await transaction.value(ACTIVE_JOBS, project_id=project_id, statuses=ACTIVE, limit=limit))


CREATE_VARIABLES = """
    INSERT INTO pipeline_variables (pipeline_id, key, value, variable_type)
    SELECT %(pipeline_id)s, key, value, variable_type
    FROM unnest(%(keys)s::text[], %(values)s::bytea[], %(types)s::text[]) AS given(key, value, variable_type)
"""


async def create_variables(
    transaction: Transaction, pipeline_id: int, variables: Sequence[Variable], sealed: Mapping[str, bytes]
) -> None:
    """Add the variables of a pipeline; `sealed` are their encrypted values by key."""
    unique = {variable.key: variable for variable in variables}
    await transaction.run(
        CREATE_VARIABLES,
        pipeline_id=pipeline_id,
        keys=list(unique),
        values=[sealed[key] for key in unique],
        types=["file" if variable.file else "env_var" for variable in unique.values()],
    )


@statement("""
    INSERT INTO jobs (project_id, pipeline_id, kind, name, stage, stage_index, needs, when_run, allow_failure, tag_list,
        protected, resource_group, environment, timeout, plan, user_id, created_at)
    SELECT pipelines.project_id, pipelines.id, planned.kind, planned.name, planned.stage, planned.stage_index,
        planned.needs, planned.when_run, planned.allow_failure, planned.tag_list, pipelines.protected,
        planned.resource_group, planned.environment, coalesce(planned.timeout, projects.build_timeout), planned.plan,
        %(user_id)s, %(now)s
    FROM pipelines JOIN projects ON projects.id = pipelines.project_id,
        ROWS FROM (jsonb_to_recordset(%(jobs)s::jsonb) AS (kind text, name text, stage text, stage_index integer,
        needs text[], when_run text, allow_failure boolean, tag_list text[], resource_group text,
        environment text, timeout integer, plan jsonb)) WITH ORDINALITY
        AS planned (kind, name, stage, stage_index, needs, when_run, allow_failure, tag_list, resource_group,
            environment, timeout, plan, position)
    WHERE pipelines.id = %(pipeline_id)s
    ORDER BY planned.position
""")
async def create_jobs(transaction: Transaction, pipeline_id: int, jobs: str, *, user_id: int | None) -> None:
    """Add the jobs of a plan, in the form of `columns_of`, all in status `created`, with ids in the plan's
    order."""


def columns_of(jobs: Sequence[PlannedJob]) -> str:
    """Return the rows of these jobs as JSON. This is slow for many jobs."""
    return orjson.dumps([_columns(job) for job in jobs]).decode()


def _columns(job: PlannedJob) -> dict[str, Any]:
    return {
        "kind": job.kind,
        "name": job.name,
        "stage": job.stage,
        "stage_index": job.stage_index,
        "needs": None if job.needs is None else [need.job for need in job.needs],
        "when_run": job.when,
        "allow_failure": job.allow_failure,
        "tag_list": sorted(job.tags),
        "resource_group": job.resource_group,
        "environment": None if job.environment is None else job.environment.name,
        "timeout": job.timeout,
        "plan": to_json(job),
    }
