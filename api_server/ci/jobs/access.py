"""Parameters of requests about jobs, lookup of the job that they name, and the rules for reading and erasing
it."""

from typing import Any

import attrs
from attrs import field

from api_server.ci.jobs import queries
from api_server.ci.jobs.queries import Job
from api_server.ci.pipelines.states import STATUSES, Status
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.listing import ListQuery, Page
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, forbidden, not_found, record_not_found
from api_server.web.pagination import Paginated, requested_page
from api_server.web.params import Name
from api_server.web.routes import Role

#: The values that the converters accept, for the description of the API.
_STATUSES = {"takes": list[Status] | None}


def scope_of(value: Any) -> list[str] | None:
    """Return the statuses without duplicates, given as one text, a list, or (by old clients) a hash, whose
    values count. None stands for all, and so does an empty list."""
    if value is None:
        return None
    return scope_of_list(list(value.values()) if isinstance(value, dict) else value)


def scope_of_list(value: Any) -> list[str] | None:
    """Return the statuses like `scope_of`, without accepting a hash."""
    if value is None:
        return None
    statuses = value if isinstance(value, list) else [value]
    if not all(isinstance(status, str) and status in STATUSES for status in statuses):
        raise ValueError("scope does not have a valid value")
    return list(dict.fromkeys(statuses)) or None


@attrs.frozen(kw_only=True)
class ListProjectJobs(Paginated):
    id: str
    scope: Any = field(default=None, converter=scope_of, metadata=_STATUSES)


@attrs.frozen(kw_only=True)
class ListPipelineJobs(Paginated):
    id: str
    pipeline_id: int
    scope: Any = field(default=None, converter=scope_of_list, metadata=_STATUSES)
    include_retried: bool = False


@attrs.frozen(kw_only=True)
class OneJob:
    id: str
    job_id: int


@attrs.frozen(kw_only=True)
class CancelJob(OneJob):
    force: bool = False


@attrs.frozen(kw_only=True)
class JobVariable:
    key: Name = field(metadata={"present": True})
    value: str


@attrs.frozen(kw_only=True)
class PlayJob(OneJob):
    job_variables_attributes: list[JobVariable] = field(factory=list)


def requested_jobs(parameters: Paginated, listing: ListQuery) -> Page:
    """Return the page: jobs are always sorted newest first. Offset pagination ignores another order, keyset
    pagination refuses it with 405."""
    if parameters.pagination != "keyset":
        return requested_page(attrs.evolve(parameters, order_by=None, sort=None), listing)
    if (parameters.order_by or "id") != "id" or (parameters.sort or "desc").lower() != "desc":
        raise ApiError(405, {"error": "Keyset pagination is not yet available for this type of request"})
    return requested_page(parameters, listing)


async def find_job_or_bridge(services: Services, project: Project, job_id: int) -> Job:
    """Return the job. Raise 404 if it does not belong to the project."""
    job = await queries.find_job(services.database, project.id, job_id)
    if job is None:
        raise record_not_found()
    return job


async def find_job(services: Services, project: Project, job_id: int) -> Job:
    """Return the job. Raise 404 if it does not belong to the project or is a bridge."""
    job = await find_job_or_bridge(services, project, job_id)
    if job.kind == "bridge":
        raise record_not_found()
    return job


_LEAST_ROLE = {"all": Role.NO_ACCESS, "developer": Role.DEVELOPER, "maintainer": Role.MAINTAINER}


def may_read_artifacts(project: Project, access: str) -> bool:
    """Return whether `artifacts:access` of a job's file lets the caller read them; `none` excludes
    everybody."""
    least = _LEAST_ROLE.get(access)
    return least is not None and project.role >= least


def id_of_calling_job(actor: Actor) -> int:
    """Return the id of the job whose token was sent; only for routes with `access=JOB`."""
    job_id = actor.job_id
    if job_id is None:
        raise not_found("Job")
    return job_id


def may_erase(actor: Actor, project: Project, job: Job) -> bool:
    """Return whether the caller may erase the job. Developers may only erase their own jobs on refs that are
    not protected."""
    is_own = job.user_id == actor.user_id and not job.protected
    return project.role >= Role.MAINTAINER or is_own


def check_may_erase(actor: Actor, project: Project, job: Job) -> None:
    """Raise 403 unless `may_erase`."""
    if not may_erase(actor, project, job):
        raise forbidden()
