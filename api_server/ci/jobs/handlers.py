"""Endpoints 1 to 11: list jobs and bridges, read their logs, and cancel, retry, erase and play them."""

from typing import Any, Literal

import orjson
from aiohttp import hdrs, web

from api_server.ci.agents import queries as agents
from api_server.ci.config import predefined
from api_server.ci.jobs import log_queries, queries
from api_server.ci.jobs.access import (
    CancelJob,
    ListPipelineJobs,
    ListProjectJobs,
    OneJob,
    PlayJob,
    check_may_erase,
    find_job,
    find_job_or_bridge,
    id_of_calling_job,
    requested_jobs,
)
from api_server.ci.jobs.log_queries import Log
from api_server.ci.jobs.logs import logs_of
from api_server.ci.jobs.queries import CallingJob, Job
from api_server.ci.pipelines import transitions
from api_server.ci.pipelines.access import (
    archived_before,
    check_keys,
    check_may_change,
    check_may_give,
    check_not_archived,
    find_pipeline,
)
from api_server.ci.pipelines.job_queries import plan_of
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Key, Services
from api_server.state import audit_trail
from api_server.state.database import Executor
from api_server.web import context
from api_server.web.answers import json_text, json_value, matches_etag, not_modified, requested_part
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, bad_request, forbidden, record_not_found, too_many_requests
from api_server.web.pagination import paginated
from api_server.web.rate_limits import RateLimiter
from api_server.web.routes import JOB, License, Role, Routes
from common.http_fields import rejoined

routes = Routes()


@routes.get("/projects/{id}/jobs/{job_id}/trace", access=project(feature="builds"), answers="200 text")
async def show_log(
    request: web.Request, services: Services, params: OneJob, project: Project
) -> web.StreamResponse:
    """Endpoint 7. Show the log of a job. A log that may contain secrets is shown only to callers who could
    run the job."""
    job = await find_job(services, project, params.job_id)
    if not may_read_log(project, job):
        raise forbidden()
    return await send_log(request, job.id)


def may_read_log(project: Project, job: Job) -> bool:
    """Return whether a caller who can see the `project` may read the log of the job."""
    return not job.debug_trace or project.role >= Role.DEVELOPER


async def watched_log(services: Services, job_id: int) -> Log | None:
    """Return the job's log, or None. If it is still growing, record that somebody is watching it, so that its
    runner sends it more often."""
    log = await log_queries.find_log(services.database, job_id)
    if log is not None and not (log.closed or log.watched):
        await log_queries.note_watched(services.database, job_id)
    return log


async def send_log(request: web.Request, job_id: int) -> web.StreamResponse:
    """Send the log, or with 206 a range of it, piece by piece. Raise 404 without a log, and 416, with the
    current size in `Content-Range`, if the range begins behind its end: a client that follows a running job
    then asks again from there."""
    services = context.services(request)
    log = await watched_log(services, job_id)
    if log is None:
        raise ApiError(404, {"message": "404 Not Found"})
    size = log.size - log.held_size
    etag = f'"{job_id}-{size}-{log.checksum:08x}"'
    headers = {
        hdrs.ETAG: etag,
        hdrs.CONTENT_TYPE: "text/plain; charset=utf-8",
        hdrs.CONTENT_DISPOSITION: f'infile; filename="{job_id}.log"',
        hdrs.CACHE_CONTROL: "private, no-cache",
        "X-Content-Type-Options": "nosniff",
    }
    if matches_etag(request, etag):
        return not_modified(headers)
    part = requested_part(request, size, etag)
    remaining = part.end - part.start if request.method != "HEAD" else 0
    chunks = logs_of(services).read(job_id, part.start, part.end)
    first = await anext(chunks, b"") if remaining else b""
    if remaining and not first:  # erased meanwhile, or lost
        raise ApiError(404, {"message": "404 Not Found"})
    response = web.StreamResponse(status=part.status, headers=headers | part.headers)
    await response.prepare(request)
    if remaining:
        async for chunk in rejoined(first, chunks):
            await response.write(chunk)
            remaining -= len(chunk)
    if remaining:  # erased meanwhile: the client must not take this for the whole log
        raise ConnectionResetError
    await response.write_eof()
    return response


#: Limits requests to endpoint 1, by user.
JOBS_LIMIT = Key[RateLimiter]("jobs_limit")


@routes.get("/projects/{id}/jobs", access=project(feature="builds"), answers="200 [Job]")
async def list_project_jobs(
    request: web.Request, services: Services, actor: Actor, params: ListProjectJobs, project: Project
) -> web.Response:
    """Endpoint 1. List the jobs of a project, newest first."""
    if wait := services[JOBS_LIMIT].retry_after(actor.user_id):
        raise too_many_requests(wait)
    page = requested_jobs(params, queries.JOBS_OF_PROJECT)
    rows = await queries.list_project_jobs(
        services.database, page, project.id, params.scope, archived_before(services)
    )
    return await paginated(request, page, rows)


@routes.get(
    "/projects/{id}/pipelines/{pipeline_id}/jobs", access=project(feature="builds"), answers="200 [Job]"
)
async def list_pipeline_jobs(
    request: web.Request, params: ListPipelineJobs, project: Project
) -> web.Response:
    """Endpoint 2. List the jobs of a pipeline, newest first; retried ones only with `include_retried`."""
    return await _jobs_of_pipeline(request, params, project, "build")


@routes.get(
    "/projects/{id}/pipelines/{pipeline_id}/bridges", access=project(feature="builds"), answers="200 [Bridge]"
)
async def list_bridges(request: web.Request, params: ListPipelineJobs, project: Project) -> web.Response:
    """Endpoint 3. List the jobs of a pipeline that start other pipelines, newest first."""
    return await _jobs_of_pipeline(request, params, project, "bridge")


async def _jobs_of_pipeline(
    request: web.Request, params: ListPipelineJobs, project: Project, kind: Literal["build", "bridge"]
) -> web.Response:
    services = context.services(request)
    pipeline = await find_pipeline(services, project, params.pipeline_id)
    page = requested_jobs(
        params, queries.JOBS_OF_PIPELINE if kind == "build" else queries.BRIDGES_OF_PIPELINE
    )
    rows = await queries.list_pipeline_jobs(
        services.database,
        page,
        pipeline.id,
        kind,
        params.scope,
        archived_before(services),
        include_retried=params.include_retried,
    )
    return await paginated(request, page, rows)


@routes.get("/job", access=JOB, answers="200 Job")
async def show_own_job(services: Services, actor: Actor) -> web.Response:
    """Endpoint 4. Show the job whose token is sent."""
    return json_text(await _job_json(services, id_of_calling_job(actor)))


@routes.get("/projects/{id}/jobs/{job_id}", access=project(feature="builds"), answers="200 Job")
async def show_job(services: Services, params: OneJob, project: Project) -> web.Response:
    """Endpoint 6. Show one job."""
    entity = await queries.show_job_of_project(
        services.database, project.id, params.job_id, archived_before(services)
    )
    if entity is None:
        raise record_not_found()
    return json_text(entity)


@routes.post(
    "/projects/{id}/jobs/{job_id}/cancel", access=project(Role.DEVELOPER, feature="builds"), answers="201 Job"
)
async def cancel_job(services: Services, params: CancelJob, project: Project) -> web.Response:
    """Endpoint 8. Cancel a job. `force` is for Maintainers."""
    if params.force and project.role < Role.MAINTAINER:
        raise forbidden()
    job = await find_job(services, project, params.job_id)
    await check_may_change(services, project, job.ref, tag=job.tag)
    async with services.database.transaction() as transaction:
        await transitions.cancel_job(transaction, job.id, force=params.force)
    return json_text(await _job_json(services, job.id), status=201)


@routes.post(
    "/projects/{id}/jobs/{job_id}/retry", access=project(Role.DEVELOPER, feature="builds"), answers="201 Job"
)
async def retry_job(services: Services, actor: Actor, params: OneJob, project: Project) -> web.Response:
    """Endpoint 9. Retry a job and answer the new one."""
    job = await find_job_or_bridge(services, project, params.job_id)
    await check_may_change(services, project, job.ref, tag=job.tag)
    check_not_archived(services, job.created_at)
    async with services.database.transaction() as transaction:
        again = await transitions.retry_job(transaction, job.id, actor.user_id)
    if again is None:
        raise forbidden("Job is not retryable")
    return json_text(await _job_json(services, again.id), status=201)


@routes.post(
    "/projects/{id}/jobs/{job_id}/erase",
    access=project(Role.DEVELOPER, feature="builds"),
    answers="201 ErasedJob",
)
async def erase_job(services: Services, actor: Actor, params: OneJob, project: Project) -> web.Response:
    """Endpoint 10. Erase the log and artifacts of a job, but keep the job."""
    job = await find_job(services, project, params.job_id)
    await check_may_change(services, project, job.ref, tag=job.tag)
    check_may_erase(actor, project, job)
    check_not_archived(services, job.created_at)
    async with services.database.transaction() as transaction:
        if not await transitions.erase_job(transaction, job.id, actor.user_id):
            raise forbidden("Job is not erasable!")
        target = project.entity.target(job.id, job.name)
        await audit_trail.record(transaction, "job_erased", actor.author, target, pipeline_id=job.pipeline_id)
    entity = await queries.show_erased_job(services.database, job.id, archived_before(services))
    return json_text(entity, status=201)


@routes.post(
    "/projects/{id}/jobs/{job_id}/play",
    access=project(Role.DEVELOPER, feature="builds"),
    answers="200 Job | Bridge",
)
async def play_job(services: Services, actor: Actor, params: PlayJob, project: Project) -> web.Response:
    """Endpoint 11. Start a manual job or bridge."""
    job = await find_job_or_bridge(services, project, params.job_id)
    await check_may_change(services, project, job.ref, tag=job.tag)
    check_not_archived(services, job.created_at)
    check_may_give(project, params.job_variables_attributes)
    check_keys(variable.key for variable in params.job_variables_attributes)
    vault = services.vault
    variables = {variable.key: vault.encrypt(variable.value) for variable in params.job_variables_attributes}
    async with services.database.transaction() as transaction:
        played = await transitions.play_job(transaction, job.id, actor.user_id, variables)
    if played is None:
        raise bad_request("Unplayable Job")
    if job.kind == "bridge":
        return json_text(await queries.show_bridge(services.database, played, archived_before(services)))
    return json_text(await _job_json(services, played))


async def _job_json(services: Services, job_id: int) -> str:
    return await queries.show_job(services.database, job_id, archived_before(services))


@routes.get(
    "/job/allowed_agents",
    access=JOB,
    license=License("Agent access for CI jobs", "premium"),
    answers="200 AllowedAgents",
)
async def show_allowed_agents(services: Services, actor: Actor) -> web.Response:
    """Endpoint 5. List the cluster agents that the calling job may use."""
    return json_value(await describe_allowed_agents(services.database, id_of_calling_job(actor)))


async def describe_allowed_agents(database: Executor, job_id: int) -> dict[str, Any]:
    """Return the answer in the document's form, with GitLab's additional keys; `environment` only for jobs
    that have one."""
    job = await queries.describe_job(database, job_id)
    allowed = await agents.allowed_agents(
        database, job.project_id, environment=job.environment, protected=job.protected
    )
    return {
        "allowed_agents": orjson.Fragment(allowed),
        "job": {"id": job.id},
        "pipeline": {"id": job.pipeline_id},
        "project": {"id": job.project_id, "groups": [{"id": group_id} for group_id in job.group_ids]},
        "user": _user_of_job(job),
        **_environment_of_job(job),
    }


def _user_of_job(job: CallingJob) -> dict[str, Any]:
    roles = (Role.GUEST, Role.REPORTER, Role.DEVELOPER, Role.MAINTAINER, Role.OWNER)
    return {
        "id": job.user_id,
        "name": job.name,
        "username": job.username,
        "state": job.state,
        "avatar_url": None,
        "web_url": job.web_url,
        "roles_in_project": [role.name.lower() for role in roles if job.role >= role],
    }


def _environment_of_job(job: CallingJob) -> dict[str, Any]:
    environment = plan_of(job).environment
    if environment is None:
        return {}
    tier = environment.tier or predefined.tier(environment.name)
    return {"environment": {"slug": predefined.environment_slug(environment.name), "tier": tier}}
