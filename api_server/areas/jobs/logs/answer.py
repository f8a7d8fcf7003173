"""A job's log as an answer, or the part of it that was asked for (endpoint 7, decision D4)."""

from aiohttp import hdrs, web

from api_server.areas.jobs.logs import queries
from api_server.areas.jobs.logs.handlers import logs_of
from api_server.web import context
from api_server.web.errors import ApiError
from api_server.web.ranges import wanted_part


async def send_log(request: web.Request, job_id: int) -> web.StreamResponse:
    """200, or 206 for `Range`, a piece at a time. Raises 404 without a log, and 416 with the size so far in
    `Content-Range` where the range begins behind it: who follows a running job asks again from there."""
    log = await queries.find_log(context.database(request), job_id)
    if log is None:
        raise ApiError(404, {"message": "404 Not Found"})
    if not log.closed:
        await queries.note_watched(context.database(request), job_id)
    part = wanted_part(request, log.size - log.held_size)
    headers = part.headers | {
        hdrs.CONTENT_TYPE: "text/plain; charset=utf-8",
        hdrs.CONTENT_DISPOSITION: f'infile; filename="{job_id}.log"',
        hdrs.CACHE_CONTROL: "no-store",
        "X-Content-Type-Options": "nosniff",
    }
    response = web.StreamResponse(status=part.status, headers=headers)
    await response.prepare(request)
    if request.method != "HEAD":
        async for piece in logs_of(request.config_dict).read(job_id, part.start, part.end):
            await response.write(piece)
    await response.write_eof()
    return response
