"""Finding the job that a request names, and who may erase it."""

from aiohttp import web

from api_server.ci.jobs import queries
from api_server.ci.jobs.queries import Job
from api_server.namespaces.projects.project import Project
from api_server.web import context
from api_server.web.errors import forbidden, not_found, record_not_found
from api_server.web.routes import Role, caller


async def find_job_or_bridge(request: web.Request, project: Project, job_id: int) -> Job:
    """Raises 404 for what is not the project's."""
    found = await queries.find_job(context.database(request), project.id, job_id)
    if found is None:
        raise record_not_found()
    return found


async def find_job(request: web.Request, project: Project, job_id: int) -> Job:
    """Raises 404 for what is not the project's, and for bridges."""
    found = await find_job_or_bridge(request, project, job_id)
    if found.kind == "bridge":
        raise record_not_found()
    return found


def id_of_calling_job(request: web.Request) -> int:
    """The job whose token was sent; only for routes with `access=JOB`."""
    job_id = caller(request).job_id
    if job_id is None:
        raise not_found("Job")
    return job_id


def may_erase(request: web.Request, project: Project, job: Job) -> bool:
    """Developers only jobs of their own on refs that are not protected."""
    own = job.user_id == caller(request).user_id and not job.protected
    return project.role >= Role.MAINTAINER or own


def check_may_erase(request: web.Request, project: Project, job: Job) -> None:
    """Raises 403 unless `may_erase`."""
    if not may_erase(request, project, job):
        raise forbidden()
