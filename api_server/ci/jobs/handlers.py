"""Endpoints 1 to 4, 6 and 8 to 11: jobs and bridges are listed, read, canceled, retried, erased and played."""

from aiohttp import web

from api_server.ci.jobs import queries
from api_server.ci.jobs.access import check_may_erase, find_job, find_job_or_bridge, id_of_calling_job
from api_server.ci.jobs.parameters import (
    CancelJob,
    ListPipelineJobs,
    ListProjectJobs,
    OneJob,
    PlayJob,
    wanted_jobs,
)
from api_server.ci.pipelines import actions
from api_server.ci.pipelines.access import (
    archived_before,
    check_may_change,
    check_not_archived,
    find_pipeline,
)
from api_server.ci.pipelines.given_variables import check_keys, check_may_give
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.state import audit_trail
from api_server.web import context
from api_server.web.answers import json_text
from api_server.web.errors import bad_request, forbidden, record_not_found, too_many_requests
from api_server.web.pagination import paginated
from api_server.web.rate_limits import RateLimiter
from api_server.web.routes import JOB, Role, Routes, author, caller

routes = Routes()

#: Of endpoint 1, by user.
JOBS_LIMIT = web.AppKey("jobs_limit", RateLimiter)


@routes.get("/projects/{id}/jobs", access=project(opens="builds"))
async def list_project_jobs(request: web.Request, wanted: ListProjectJobs, found: Project) -> web.Response:
    """Endpoint 1. Newest first."""
    if wait := request.config_dict[JOBS_LIMIT].retry_after(caller(request).user_id):
        raise too_many_requests(wait)
    page = wanted_jobs(wanted, queries.JOBS_OF_PROJECT)
    listed = await queries.list_project_jobs(
        context.database(request), page, found.id, wanted.scope, archived_before(request)
    )
    return await paginated(request, page, listed)


@routes.get("/projects/{id}/pipelines/{pipeline_id}/jobs", access=project(opens="builds"))
async def list_pipeline_jobs(request: web.Request, wanted: ListPipelineJobs, found: Project) -> web.Response:
    """Endpoint 2. Newest first; without retried ones, unless `include_retried`."""
    pipeline = await find_pipeline(request, found, wanted.pipeline_id)
    page = wanted_jobs(wanted, queries.JOBS_OF_PIPELINE)
    listed = await queries.list_pipeline_jobs(
        context.database(request),
        page,
        pipeline.id,
        wanted.scope,
        archived_before(request),
        include_retried=wanted.include_retried,
    )
    return await paginated(request, page, listed)


@routes.get("/projects/{id}/pipelines/{pipeline_id}/bridges", access=project(opens="builds"))
async def list_bridges(request: web.Request, wanted: ListPipelineJobs, found: Project) -> web.Response:
    """Endpoint 3. Jobs that start other pipelines, newest first."""
    pipeline = await find_pipeline(request, found, wanted.pipeline_id)
    page = wanted_jobs(wanted, queries.BRIDGES_OF_PIPELINE)
    listed = await queries.list_bridges(
        context.database(request),
        page,
        pipeline.id,
        wanted.scope,
        archived_before(request),
        include_retried=wanted.include_retried,
    )
    return await paginated(request, page, listed)


@routes.get("/job", access=JOB)
async def show_own_job(request: web.Request) -> web.Response:
    """Endpoint 4. The job whose token is sent."""
    return json_text(await _shown(request, id_of_calling_job(request)))


@routes.get("/projects/{id}/jobs/{job_id}", access=project(opens="builds"))
async def show_job(request: web.Request, wanted: OneJob, found: Project) -> web.Response:
    """Endpoint 6. One job."""
    shown = await queries.show_job_of_project(
        context.database(request), found.id, wanted.job_id, archived_before(request)
    )
    if shown is None:
        raise record_not_found()
    return json_text(shown)


@routes.post("/projects/{id}/jobs/{job_id}/cancel", access=project(Role.DEVELOPER, opens="builds"))
async def cancel_job(request: web.Request, wanted: CancelJob, found: Project) -> web.Response:
    """Endpoint 8. `force` is for Maintainers."""
    if wanted.force and found.role < Role.MAINTAINER:
        raise forbidden()
    job = await find_job(request, found, wanted.job_id)
    await check_may_change(request, found, job.ref, tag=job.tag)
    async with context.database(request).transaction() as transaction:
        await actions.cancel(transaction, job.id, force=wanted.force)
    return json_text(await _shown(request, job.id), status=201)


@routes.post("/projects/{id}/jobs/{job_id}/retry", access=project(Role.DEVELOPER, opens="builds"))
async def retry_job(request: web.Request, wanted: OneJob, found: Project) -> web.Response:
    """Endpoint 9. Answers the new job."""
    job = await find_job_or_bridge(request, found, wanted.job_id)
    await check_may_change(request, found, job.ref, tag=job.tag)
    check_not_archived(request, job.created_at)
    async with context.database(request).transaction() as transaction:
        again = await actions.retry(transaction, job.id, caller(request).user_id)
    if again is None:
        raise forbidden("Job is not retryable")
    return json_text(await _shown(request, again.id), status=201)


@routes.post("/projects/{id}/jobs/{job_id}/erase", access=project(Role.DEVELOPER, opens="builds"))
async def erase_job(request: web.Request, wanted: OneJob, found: Project) -> web.Response:
    """Endpoint 10. Its log and artifacts go; what it was stays."""
    job = await find_job(request, found, wanted.job_id)
    await check_may_change(request, found, job.ref, tag=job.tag)
    check_may_erase(request, found, job)
    check_not_archived(request, job.created_at)
    async with context.database(request).transaction() as transaction:
        if not await actions.erase(transaction, job.id, caller(request).user_id):
            raise forbidden("Job is not erasable!")
        await audit_trail.record(
            transaction,
            "job_erased",
            author=author(request),
            entity=found.entity,
            target_id=job.id,
            target_details=job.name,
            message=f"Erased the log and the artifacts of job {job.id}",
            pipeline_id=job.pipeline_id,
        )
    shown = await queries.show_erased_job(context.database(request), job.id, archived_before(request))
    return json_text(shown, status=201)


@routes.post("/projects/{id}/jobs/{job_id}/play", access=project(Role.DEVELOPER, opens="builds"))
async def play_job(request: web.Request, wanted: PlayJob, found: Project) -> web.Response:
    """Endpoint 11. Answers a bridge as one."""
    job = await find_job_or_bridge(request, found, wanted.job_id)
    await check_may_change(request, found, job.ref, tag=job.tag)
    check_not_archived(request, job.created_at)
    check_may_give(found, wanted.job_variables_attributes)
    check_keys(one.key for one in wanted.job_variables_attributes)
    vault = context.vault(request)
    variables = {one.key: vault.encrypt(one.value) for one in wanted.job_variables_attributes}
    async with context.database(request).transaction() as transaction:
        played = await actions.play(transaction, job.id, caller(request).user_id, variables)
    if played is None:
        raise bad_request("Unplayable Job")
    if job.kind == "bridge":
        return json_text(
            await queries.show_bridge(context.database(request), played, archived_before(request))
        )
    return json_text(await _shown(request, played))


async def _shown(request: web.Request, job_id: int) -> str:
    return await queries.show_job(context.database(request), job_id, archived_before(request))
