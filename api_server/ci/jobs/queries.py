# mypy: disable-error-code="empty-body"
"""Statements of endpoints 1 to 11."""

import datetime
from typing import Literal

import attrs

from api_server.state.database import Executor
from api_server.state.declarations import statement
from api_server.state.listing import MAX_COUNTED, ListPage, ListQuery, Page, entity_statement, read_sql

ENTITIES = read_sql("api_server.ci.jobs")
JOB = ENTITIES["job"]
BRIDGE = ENTITIES["bridge"]
ERASED_JOB = f"""
    SELECT job.id, job.position, left(job.entity, -1) || ',"download_url":null}}' AS entity
    FROM ({JOB}) job
"""

#: The columns of a job that entities need: all except the plan, which is large.
_COLUMNS = """
    jobs.id, jobs.project_id, jobs.pipeline_id, jobs.status, jobs.failure_reason, jobs.name, jobs.stage,
    jobs.allow_failure, jobs.tag_list, jobs.user_id, jobs.runner_id, jobs.runner_manager_id, jobs.coverage,
    jobs.created_at, jobs.queued_at, jobs.started_at, jobs.finished_at, jobs.erased_at, jobs.artifacts_expire_at
"""

#: Newest first only, and only up to the end of the page; sorted by -id, like the indices.
_TO_THE_PAGES_END = """
    AND -jobs.id > -coalesce(%(page_after)s::bigint, 9223372036854775807)
    ORDER BY -jobs.id
    LIMIT %(page_offset)s::bigint + %(page_size)s::bigint + 1
"""
_OF_PROJECT = "jobs.project_id = %(project_id)s AND jobs.kind = 'build'"
JOBS_OF_PROJECT = ListQuery(
    JOB,
    f"(SELECT {_COLUMNS} FROM jobs WHERE {_OF_PROJECT} {_TO_THE_PAGES_END})",
    counted=f"SELECT FROM jobs WHERE {_OF_PROJECT} ORDER BY -jobs.id",
    planned_once=True,
)
#: One index scan for each status.
JOBS_OF_PROJECT_IN_SCOPE = ListQuery(
    JOB,
    f"""
    SELECT jobs.* FROM unnest(%(scope)s::text[]) AS wanted (status) CROSS JOIN LATERAL (
        SELECT {_COLUMNS} FROM jobs WHERE {_OF_PROJECT} AND jobs.status = wanted.status {_TO_THE_PAGES_END}
    ) jobs
    """,
    counted=f"""
    SELECT FROM unnest(%(scope)s::text[]) AS wanted (status) CROSS JOIN LATERAL (
        SELECT FROM jobs WHERE {_OF_PROJECT} AND jobs.status = wanted.status
        ORDER BY -jobs.id LIMIT {MAX_COUNTED + 1}
    ) jobs
    """,
    planned_once=True,
)


async def list_project_jobs(
    database: Executor,
    page: Page,
    project_id: int,
    scope: list[str] | None,
    archived_before: datetime.datetime | None,
) -> ListPage:
    """Return a page of the builds of a project, newest first."""
    if scope is None:
        return await JOBS_OF_PROJECT.read(
            database, page, project_id=project_id, archived_before=archived_before
        )
    return await JOBS_OF_PROJECT_IN_SCOPE.read(
        database, page, project_id=project_id, scope=scope, archived_before=archived_before
    )


_OF_PIPELINE = f"""
    SELECT {_COLUMNS} FROM jobs
    WHERE jobs.pipeline_id = %(pipeline_id)s AND jobs.kind = %(kind)s AND (%(include_retried)s OR NOT jobs.retried)
        AND (%(scope)s::text[] IS NULL OR jobs.status = ANY (%(scope)s::text[]))
"""
JOBS_OF_PIPELINE = ListQuery(JOB, _OF_PIPELINE, planned_once=True)
BRIDGES_OF_PIPELINE = ListQuery(BRIDGE, _OF_PIPELINE, planned_once=True)


async def list_pipeline_jobs(
    database: Executor,
    page: Page,
    pipeline_id: int,
    kind: Literal["build", "bridge"],
    scope: list[str] | None,
    archived_before: datetime.datetime | None,
    *,
    include_retried: bool,
) -> ListPage:
    """Return a page of the builds or bridges of a pipeline, newest first."""
    listing = JOBS_OF_PIPELINE if kind == "build" else BRIDGES_OF_PIPELINE
    return await listing.read(
        database,
        page,
        pipeline_id=pipeline_id,
        kind=kind,
        scope=scope,
        include_retried=include_retried,
        archived_before=archived_before,
    )


#: For a project runner, the jobs of those of its projects where the viewer is at least Reporter; for a group
#: runner, those of the projects below its group.
_OF_RUNNER = f"""
    SELECT {_COLUMNS} FROM jobs
    WHERE jobs.runner_id = %(runner_id)s::bigint
        AND (%(status)s::text IS NULL OR jobs.status = %(status)s)
        AND (%(system_id)s::text IS NULL OR jobs.runner_manager_id = (
            SELECT runner_managers.id FROM runner_managers
            WHERE runner_managers.runner_id = %(runner_id)s AND runner_managers.system_id = %(system_id)s))
        AND (%(sees_all)s OR jobs.project_id IN (
            SELECT projects.id FROM runner_projects
            JOIN projects ON projects.id = runner_projects.project_id
            JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE runner_projects.runner_id = %(runner_id)s
                AND project_role(projects, namespaces, %(viewer_id)s::bigint, %(now)s) >= 20
            UNION ALL
            SELECT projects.id FROM runners
            JOIN namespaces ON namespaces.lineage @> ARRAY[runners.namespace_id]
            JOIN projects ON projects.namespace_id = namespaces.id
            WHERE runners.id = %(runner_id)s))
"""
JOBS_OF_RUNNER = ListQuery(ENTITIES["runner_job"], _OF_RUNNER)


async def list_runner_jobs(
    database: Executor,
    page: Page,
    runner_id: int,
    *,
    viewer_id: int,
    sees_all: bool,
    status: str | None,
    system_id: str | None,
) -> ListPage:
    """Return the jobs of a runner that the viewer, who may manage the runner, may see."""
    return await JOBS_OF_RUNNER.read(
        database,
        page,
        runner_id=runner_id,
        viewer_id=viewer_id,
        sees_all=sees_all,
        status=status,
        system_id=system_id,
    )


_ONE = "SELECT jobs.* FROM jobs WHERE jobs.id = %(job_id)s"


@statement(entity_statement(JOB, _ONE))
async def show_job(database: Executor, job_id: int, archived_before: datetime.datetime | None) -> str: ...


@statement(entity_statement(JOB, f"SELECT {_COLUMNS} FROM jobs WHERE {_OF_PROJECT} AND id = %(job_id)s"))
async def show_job_of_project(
    database: Executor, project_id: int, job_id: int, archived_before: datetime.datetime | None
) -> str | None:
    """Return the job's entity, or None if it is not a build of the project."""


@statement(entity_statement(ERASED_JOB, _ONE))
async def show_erased_job(
    database: Executor, job_id: int, archived_before: datetime.datetime | None
) -> str: ...


@statement(entity_statement(BRIDGE, _ONE))
async def show_bridge(database: Executor, job_id: int, archived_before: datetime.datetime | None) -> str: ...


@attrs.frozen
class Job:
    """A build or a bridge that a request names; the protection of the branch or tag `ref` decides who may
    change it."""

    id: int
    pipeline_id: int
    kind: str
    name: str
    user_id: int | None
    created_at: datetime.datetime
    #: Whether CI_DEBUG_TRACE or CI_DEBUG_SERVICES is on, so that its log may show secrets.
    debug_trace: bool
    #: Whether the ref was protected when the pipeline was created.
    protected: bool
    ref: str
    tag: bool


#: The jobs of a removed project are deleted later, in steps.
@statement(
    """
    SELECT jobs.id, jobs.pipeline_id, jobs.kind, jobs.name, jobs.user_id, jobs.created_at, jobs.debug_trace,
        jobs.protected, coalesce(pipelines.source_branch, pipelines.ref) AS ref, pipelines.tag
    FROM jobs JOIN pipelines ON pipelines.id = jobs.pipeline_id JOIN projects ON projects.id = jobs.project_id
    WHERE jobs.project_id = %(project_id)s AND jobs.id = %(job_id)s AND jobs.kind <> 'external'
    """,
    prepared=True,
)
async def find_job(database: Executor, project_id: int, job_id: int) -> Job | None: ...


@attrs.frozen
class CallingJob:
    """The job of a token, with the data of its project and its user in endpoint 5."""

    id: int
    pipeline_id: int
    project_id: int
    protected: bool
    environment: str | None
    plan: str
    #: The groups that contain the project, from the outermost to the innermost.
    group_ids: list[int]
    user_id: int
    name: str
    username: str
    state: str
    web_url: str
    role: int


@statement(
    """
    SELECT jobs.id, jobs.pipeline_id, jobs.project_id, jobs.protected, jobs.environment, jobs.plan,
        CASE WHEN namespaces.kind = 'group' THEN namespaces.lineage ELSE '{}' END AS group_ids,
        users.id AS user_id, users.name, users.username, users.state, web_url(users.username) AS web_url,
        project_role(projects, namespaces, users.id, %(now)s) AS role
    FROM jobs JOIN projects ON projects.id = jobs.project_id
    JOIN namespaces ON namespaces.id = projects.namespace_id
    JOIN users ON users.id = jobs.user_id
    WHERE jobs.id = %(job_id)s
    """,
    prepared=True,
)
async def describe_job(database: Executor, job_id: int) -> CallingJob: ...
