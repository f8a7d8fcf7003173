"""The job that a runner speaks for, by the job's token, and the headers that every answer to it has."""

import attrs
from aiohttp import web

from api_server.ci.pipelines.states import EXECUTING
from api_server.ci.runners import job_token_queries as queries
from api_server.ci.runners.job_token_queries import HeldJob
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.auth import acknowledge_job
from api_server.web.errors import ApiError

#: Seconds between two pieces of a log: while somebody watches it, and otherwise.
WATCHED_INTERVAL, INTERVAL = 3, 60


@attrs.frozen(kw_only=True)
class OneJob:
    """What all requests for a job carry; the token may stand in `JOB-TOKEN` instead."""

    id: int
    token: str | None = None


def job_token(request: web.Request, wanted: OneJob) -> str:
    """The token that was sent; empty without one."""
    return request.headers.get("JOB-TOKEN") or wanted.token or ""


async def job_of_token(request: web.Request, wanted: OneJob) -> HeldJob:
    """The job whose token it is, of which its runner has been heard by this. Raises 403, also where there is no such
    job, and where it has been taken back."""
    token = digest(job_token(request, wanted))
    job = await queries.find_held_job(context.database(request), wanted.id)
    if job is None or job.token_digest != token:
        raise _refused("403 Forbidden")
    if job.unacknowledged and not await acknowledge_job(request, token):
        raise _refused("403 Forbidden")
    return job


async def running_job(request: web.Request, wanted: OneJob) -> HeldJob:
    """Likewise, where the job is in the runner's hands. Raises 403 with the reason, and the status in `Job-Status`."""
    job = await job_of_token(request, wanted)
    if job.erased_at is not None:
        raise _refused("403 Forbidden - Job has been erased!", job)
    if job.status not in EXECUTING:
        raise _refused("403 Forbidden - Job is not running", job)
    return job


def protocol_headers(job: HeldJob) -> dict[str, str]:
    """What runners read beside the answer: the job's status (a runner stops a canceled one), and how often to write."""
    interval = str(WATCHED_INTERVAL if job.watched else INTERVAL)
    return {
        "Job-Status": job.status,
        "X-GitLab-Trace-Update-Interval": interval,
        "X-Service-Trace-Update-Interval": interval,
    }


def _refused(text: str, job: HeldJob | None = None) -> ApiError:
    return ApiError(403, {"message": text}, {"Job-Status": job.status} if job is not None else {})
