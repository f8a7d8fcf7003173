"""`PATCH /jobs/:id/trace`: a runner adds to the log of its job."""

import re
from collections.abc import AsyncIterator

from aiohttp import web

from api_server.ci.jobs.logs.storage import CHUNK, End, logs_of
from api_server.ci.pipelines import transitions
from api_server.ci.runners.job_token import OneJob, job_token, protocol_headers, running_job
from api_server.ci.runners.job_token_queries import HeldJob
from api_server.web import context, request_data
from api_server.web.errors import ApiError
from api_server.web.routes import ANYONE, Routes

routes = Routes()

_CONTENT_RANGE = re.compile(r"(?:bytes[ =])?(\d{1,18})-(-?\d*)(?:/.*)?", re.ASCII)


@routes.patch("/jobs/{id}/trace", access=ANYONE, streams_body="application/octet-stream")
async def append_log(request: web.Request, wanted: OneJob) -> web.Response:
    """202 once the bytes are durable, with the log's size in `Range`; 416 where `Content-Range` does not begin at that
    size. Of `Content-Range` the start alone counts: runners disagree on what the end means."""
    job = await running_job(request, wanted)
    start = _start(request)
    if start < job.size == start + (request.content_length or 0):
        return _accepted(job, job.size)  # this has come before, and the answer was lost
    if start != job.size:
        raise _not_there(job, job.size)
    return _accepted(job, await _append(request, job, job_token(request, wanted)))


async def _append(request: web.Request, job: HeldJob, token: str) -> int:
    """The log's size after the body has been added. Raises 416 where somebody else has added to it meanwhile, and 403
    where it has become too long."""
    logs = logs_of(request.config_dict)
    end = End(job.size, job.checksum, logs.opened(job.held))
    secrets = (token.encode(), *logs.masked_values(job.masked_values))
    async for piece in _pieces(request):
        if end.size + len(piece) > context.settings(request).log_limit:
            raise await _too_long(request, job)
        appended = await logs.append(job.id, end, piece, secrets)
        if appended is None:
            raise _not_there(job, await logs.size(job.id))
        end = appended
    return end.size


def _start(request: web.Request) -> int:
    match = _CONTENT_RANGE.fullmatch(request.headers.get("Content-Range", ""))
    if match is None:
        raise ApiError(400, {"message": "400 Missing header Content-Range"})
    return int(match[1])


async def _pieces(request: web.Request) -> AsyncIterator[bytes]:
    """The body in pieces of at most CHUNK bytes, each stored as soon as it is there."""
    piece = bytearray()
    async for data in request_data.pieces(request):
        piece += data
        while len(piece) >= CHUNK:
            yield bytes(piece[:CHUNK])
            del piece[:CHUNK]
    if piece:
        yield bytes(piece)


def _accepted(job: HeldJob, size: int) -> web.Response:
    return web.Response(status=202, text="202", headers=protocol_headers(job) | {"Range": f"0-{size}"})


def _not_there(job: HeldJob, size: int) -> ApiError:
    return ApiError(
        416, {"message": "416 Range Not Satisfiable"}, protocol_headers(job) | {"Range": f"0-{size}"}
    )


async def _too_long(request: web.Request, job: HeldJob) -> ApiError:
    """The job fails: a log without end would fill the disk."""
    async with context.database(request).transaction() as transaction:
        await transitions.advance(transaction, job.id, "drop", failure_reason="trace_size_exceeded")
    return ApiError(403, {"message": "403 Forbidden - Job is not running"}, {"Job-Status": "failed"})
