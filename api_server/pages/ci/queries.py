# mypy: disable-error-code="empty-body"
"""Statements of the pages of pipelines and jobs, for facts that the API does not show."""

import datetime

import attrs

from api_server.ci.runners.job_queries import FITS_REF, FITS_TAGS, OPEN
from api_server.state.database import Executor
from api_server.state.declarations import statement


@attrs.frozen(kw_only=True)
class PipelineJob:
    """A job on its pipeline's page: a build, a bridge (`downstream_*` is the pipeline that it has started) or a status
    set by another system (`target_url`, `description`)."""

    id: int
    kind: str
    status: str
    name: str
    stage: str
    stage_index: int
    #: The names of the jobs that it waits for, or None if it waits for all earlier stages.
    needs: list[str] | None
    #: The jobs of other pipelines whose artifacts it gets, as the CI file names them.
    gets: list[str]
    #: The project whose pipeline the bridge mirrors.
    upstream: str | None
    when_run: str
    allow_failure: bool
    failure_reason: str | None
    retried: bool
    queued_at: datetime.datetime | None
    started_at: datetime.datetime | None
    finished_at: datetime.datetime | None
    target_url: str | None
    description: str | None
    downstream_id: int | None
    downstream_status: str | None
    downstream_path: str | None


_COLUMNS = """
    jobs.id, jobs.kind, jobs.status, jobs.name, jobs.stage, jobs.stage_index, jobs.needs,
    ARRAY(
        SELECT concat(wanted ->> 'job', ' of ', coalesce(
            (wanted ->> 'project') || ' (' || (wanted ->> 'ref') || ')', 'pipeline ' || (wanted ->> 'pipeline')))
        FROM jsonb_array_elements(jobs.plan -> 'cross_dependencies') wanted) AS gets,
    jobs.plan ->> 'upstream' AS upstream,
    jobs.when_run, jobs.allow_failure, jobs.failure_reason, jobs.retried, jobs.queued_at, jobs.started_at,
    jobs.finished_at, jobs.target_url, jobs.description, downstream.id AS downstream_id,
    downstream.status AS downstream_status, downstream_project.full_path AS downstream_path
"""
_DOWNSTREAM = """
    LEFT JOIN (pipelines downstream JOIN projects downstream_project ON downstream_project.id = downstream.project_id)
        ON downstream.source_job_id = jobs.id
"""


@statement(f"""
    SELECT {_COLUMNS} FROM jobs {_DOWNSTREAM}
    WHERE jobs.pipeline_id = %(pipeline_id)s
    ORDER BY jobs.retried, jobs.id LIMIT %(limit)s
    """)
async def jobs_of_pipeline(database: Executor, pipeline_id: int, limit: int) -> list[PipelineJob]:
    """Return the first `limit` jobs of the pipeline by id, with retried ones after all others."""


@statement(f"""
    SELECT {_COLUMNS} FROM jobs {_DOWNSTREAM}
    WHERE jobs.pipeline_id = (SELECT this.pipeline_id FROM jobs this WHERE this.id = %(job_id)s)
        AND jobs.name = (SELECT this.name FROM jobs this WHERE this.id = %(job_id)s)
    ORDER BY jobs.id DESC LIMIT %(limit)s
    """)
async def attempts(database: Executor, job_id: int, limit: int) -> list[PipelineJob]:
    """Return the newest attempts at the job: itself and the jobs of the same name in its pipeline, the newest first."""


@statement(f"SELECT {_COLUMNS} FROM jobs {_DOWNSTREAM} WHERE jobs.id = %(job_id)s")
async def find_job(database: Executor, job_id: int) -> PipelineJob:
    """Return the job. Raise NotFound if it no longer exists."""


@attrs.frozen(kw_only=True)
class JobDetails:
    """Facts that the page of a job shows in addition to those of the API."""

    #: In seconds.
    timeout: int
    exit_code: int | None
    resource_group: str | None
    environment: str | None
    scheduled_at: datetime.datetime | None
    #: The question that a person is asked before starting it.
    manual_confirmation: str | None
    erased_by: str | None
    #: Whether nothing is added to its log any more. None if it has no log.
    log_closed: bool | None
    has_artifacts: bool


@statement("""
    SELECT jobs.timeout, jobs.exit_code, jobs.resource_group, jobs.environment, jobs.scheduled_at,
        jobs.plan ->> 'manual_confirmation' AS manual_confirmation, eraser.name AS erased_by,
        job_logs.closed AS log_closed,
        EXISTS (SELECT FROM job_artifacts WHERE job_artifacts.job_id = jobs.id) AS has_artifacts
    FROM jobs LEFT JOIN users eraser ON eraser.id = jobs.erased_by_id
    LEFT JOIN job_logs ON job_logs.job_id = jobs.id
    WHERE jobs.id = %(job_id)s
    """)
async def job_details(database: Executor, job_id: int) -> JobDetails:
    """Return the facts about the job. Raise NotFound if it no longer exists."""


@attrs.frozen
class Parent:
    """The pipeline that has started a child pipeline, and the job by which it did so."""

    id: int
    job_id: int
    job_name: str


@statement("""
    SELECT parent.id, jobs.id AS job_id, jobs.name AS job_name
    FROM pipelines JOIN jobs ON jobs.id = pipelines.source_job_id JOIN pipelines parent ON parent.id = jobs.pipeline_id
    WHERE pipelines.id = %(pipeline_id)s AND parent.project_id = pipelines.project_id
    """)
async def parent_of(database: Executor, pipeline_id: int) -> Parent | None:
    """Return the parent, or None if no pipeline of the same project has started this one."""


@attrs.frozen(kw_only=True)
class WaitingJob:
    """A pending job with the numbers of runners of its project: of all, of those that also have its tags, also take
    jobs of its ref, also are not paused, and also have been heard of lately. Each number counts some of those before
    it."""

    job_id: int
    ref: str
    tag_list: list[str]
    #: Whether any runner gets jobs of the project.
    is_open: bool
    runners: int
    with_tags: int
    of_ref: int
    active: int
    online: int
    #: When any of the `active` ones was last heard of.
    last_seen: datetime.datetime | None


@statement(f"""
    SELECT kinds.id AS job_id, pipelines.ref, kinds.tag_list, {OPEN} AS is_open, serving.runners, serving.with_tags,
        serving.of_ref, serving.active, serving.online, serving.last_seen
    FROM jobs kinds JOIN pipelines ON pipelines.id = kinds.pipeline_id
    JOIN projects ON projects.id = kinds.project_id JOIN namespaces ON namespaces.id = projects.namespace_id
    CROSS JOIN LATERAL (
        SELECT count(*) AS runners,
            count(*) FILTER (WHERE {FITS_TAGS}) AS with_tags,
            count(*) FILTER (WHERE {FITS_TAGS} AND {FITS_REF}) AS of_ref,
            count(*) FILTER (WHERE {FITS_TAGS} AND {FITS_REF} AND runner.active) AS active,
            count(*) FILTER (WHERE {FITS_TAGS} AND {FITS_REF} AND runner.active
                AND contact_status(runner.contacted_at, runner.created_at, %(now)s) = 'online') AS online,
            max(runner.contacted_at) FILTER (WHERE {FITS_TAGS} AND {FITS_REF} AND runner.active) AS last_seen
        FROM runners runner
        WHERE runner.runner_type = 'instance_type' OR runner.namespace_id = ANY (namespaces.lineage)
            OR runner.id IN (
                SELECT runner_projects.runner_id FROM runner_projects WHERE runner_projects.project_id = projects.id)
    ) serving
    WHERE kinds.id = ANY (%(job_ids)s::bigint[]) AND kinds.kind = 'build' AND kinds.status = 'pending'
    """)
async def waiting_jobs(database: Executor, job_ids: list[int], *, star_is_any: bool) -> list[WaitingJob]:
    """Return those of the jobs that are pending builds."""
