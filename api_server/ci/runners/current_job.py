"""The job that a runner speaks for, by the job's token, and the headers that every answer to it has."""

from aiohttp import web

from api_server.ci.pipelines.states import EXECUTING
from api_server.state.database import Row
from api_server.state.secrets import digest
from api_server.state.statements import Statement
from api_server.web import context
from api_server.web.errors import ApiError

#: Seconds between two pieces of a log: while somebody watches it, and otherwise.
WATCHED_INTERVAL, INTERVAL = 3, 60

FIND_JOB = Statement("""
    SELECT jobs.id, jobs.project_id, jobs.pipeline_id, jobs.status, jobs.token_digest, jobs.erased_at,
        jobs.masked_values,
        coalesce(job_logs.size, 0) AS size, coalesce(job_logs.checksum, 0) AS checksum, job_logs.held,
        coalesce(job_logs.watched_at > now() - interval '1 minute', false) AS watched
    FROM jobs LEFT JOIN job_logs ON job_logs.job_id = jobs.id
    WHERE jobs.id = %(id)s
""")


async def job_of_token(request: web.Request, job_id: int, token: str | None) -> Row:
    """The job whose token it is. Raises 403, also where there is no such job."""
    sent = request.headers.get("JOB-TOKEN") or token
    job = await context.database(request).row(FIND_JOB, id=job_id) if job_id <= 2**63 - 1 else None
    if job is None or not sent or job.token_digest is None or bytes(job.token_digest) != digest(sent):
        raise _refused("403 Forbidden")
    return job


async def running_job(request: web.Request, job_id: int, token: str | None) -> Row:
    """Likewise, where the job is in the runner's hands. Raises 403 with the reason, and the status in `Job-Status`."""
    job = await job_of_token(request, job_id, token)
    if job.erased_at is not None:
        raise _refused("403 Forbidden - Job has been erased!", job)
    if job.status not in EXECUTING:
        raise _refused("403 Forbidden - Job is not running", job)
    return job


def protocol_headers(job: Row) -> dict[str, str]:
    """What runners read beside the answer: the job's status (a runner stops a canceled one), and how often to write."""
    interval = str(WATCHED_INTERVAL if job.watched else INTERVAL)
    return {
        "Job-Status": job.status,
        "X-GitLab-Trace-Update-Interval": interval,
        "X-Service-Trace-Update-Interval": interval,
    }


def _refused(text: str, job: Row | None = None) -> ApiError:
    return ApiError(403, {"message": text}, {"Job-Status": job.status} if job is not None else {})
