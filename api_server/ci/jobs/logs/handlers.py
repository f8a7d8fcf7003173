"""A job's log as an answer, or the part of it that was asked for (endpoint 7, decision D4)."""

from aiohttp import hdrs, web

from api_server.ci.jobs.access import find_job
from api_server.ci.jobs.logs import queries
from api_server.ci.jobs.logs.queries import Log
from api_server.ci.jobs.logs.storage import logs_of
from api_server.ci.jobs.parameters import OneJob
from api_server.ci.jobs.queries import Job
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.web import context
from api_server.web.access import Role
from api_server.web.conditional import matches, not_modified
from api_server.web.errors import ApiError, forbidden
from api_server.web.ranges import wanted_part
from api_server.web.routes import Routes
from common.http_fields import rejoined

routes = Routes()


@routes.get("/projects/{id}/jobs/{job_id}/trace", access=project(opens="builds"))
async def show_log(request: web.Request, wanted: OneJob, found: Project) -> web.StreamResponse:
    """Endpoint 7. A log that may show secrets is for those who could run the job."""
    job = await find_job(request, found, wanted.job_id)
    if not may_read_log(found, job):
        raise forbidden()
    return await send_log(request, job.id)


def may_read_log(project: Project, job: Job) -> bool:
    """Whether whoever has found the `project` may read what the job says."""
    return not job.debug_trace or project.role >= Role.DEVELOPER


async def watched_log(request: web.Request, job_id: int) -> Log | None:
    """The job's log, if it has one; while it grows, its runner is told that somebody looks, and sends it sooner."""
    log = await queries.find_log(context.database(request), job_id)
    if log is not None and not (log.closed or log.watched):
        await queries.note_watched(context.database(request), job_id)
    return log


async def send_log(request: web.Request, job_id: int) -> web.StreamResponse:
    """200, or 206 for `Range`, a piece at a time. Raises 404 without a log, and 416 with the size so far in
    `Content-Range` where the range begins behind it: who follows a running job asks again from there."""
    log = await watched_log(request, job_id)
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
    if matches(request, etag):
        return not_modified(headers)
    part = wanted_part(request, size, etag)
    left = part.end - part.start if request.method != "HEAD" else 0
    pieces = logs_of(request.config_dict).read(job_id, part.start, part.end)
    first = await anext(pieces, b"") if left else b""
    if left and not first:  # erased meanwhile, or lost
        raise ApiError(404, {"message": "404 Not Found"})
    response = web.StreamResponse(status=part.status, headers=headers | part.headers)
    await response.prepare(request)
    if left:
        async for piece in rejoined(first, pieces):
            await response.write(piece)
            left -= len(piece)
    if left:  # erased meanwhile: the client must not take this for the whole
        raise ConnectionResetError
    await response.write_eof()
    return response
