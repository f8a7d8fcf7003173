"""The endpoints with which runners execute jobs: `POST /jobs/request` waits for one, `PATCH /jobs/:id/trace`
appends to its log, `/jobs/:id/artifacts` uploads and downloads artifacts, and `PUT /jobs/:id` reports how it
ended."""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from typing import Any, Literal

import attrs
import structlog
from aiohttp import web

from api_server.ci.config.predefined import Server
from api_server.ci.jobs import log_queries
from api_server.ci.jobs.artifact_handlers import archive_of, send_artifact
from api_server.ci.jobs.artifact_queries import Artifact
from api_server.ci.jobs.logs import CHUNK, Tail, logs_of
from api_server.ci.pipelines import transitions
from api_server.ci.pipelines.states import EXECUTING
from api_server.ci.runners import job_queries
from api_server.ci.runners.access import (
    Contact,
    HeldJobParams,
    job_of_token,
    job_token,
    note_contact,
    protocol_headers,
    runner_of_token,
    running_job,
)
from api_server.ci.runners.dependencies import may_download
from api_server.ci.runners.hand_out import HandOut
from api_server.ci.runners.job_queries import AssignedJob
from api_server.ci.runners.job_response import failure_reason
from api_server.ci.runners.pending_jobs import PendingJobs
from api_server.ci.runners.queries import CallingRunner
from api_server.ci.runners.uploads import store_artifact, too_large, upload_quota
from api_server.services import Key, Services
from api_server.state.secrets import digest
from api_server.web import context, request_data
from api_server.web.answers import has_left, json_value
from api_server.web.auth import acknowledge_job
from api_server.web.errors import ApiError, forbidden
from api_server.web.params import Name
from api_server.web.routes import ANYONE, Routes

routes = Routes()

PENDING_JOBS = Key[PendingJobs]("pending_jobs")
#: Concurrent hand-outs in this process: when many runners ask at once, other requests still get connections.
TURNS = Key[asyncio.Semaphore]("hand_out_turns")
TURNS_AT_A_TIME = 3


def setup(services: Services) -> None:
    """Prepare for waiting runners; they are sent away when the server shuts down."""
    services[PENDING_JOBS] = PendingJobs()
    services[TURNS] = asyncio.Semaphore(TURNS_AT_A_TIME)
    services.while_running(_listening)
    services.shutdown.at_begin(services[PENDING_JOBS].close)


async def _listening(services: Services) -> AsyncIterator[None]:
    database, star_is_any = services.database, services.settings.testing

    async def able(runner_ids: Sequence[int], projects: frozenset[int | None], limit: int) -> list[int]:
        return await job_queries.able_runners(database, runner_ids, projects, limit, star_is_any=star_is_any)

    async with services[PENDING_JOBS].listening(services.settings.unpooled_url, services.background, able):
        yield


@attrs.frozen(kw_only=True)
class RequestJob:
    token: str | None = None
    system_id: Name | None = None
    last_update: str | None = None


@routes.post("/jobs/request", access=ANYONE, answers="201 JobRequest, 204")
async def request_job(request: web.Request, services: Services, params: RequestJob) -> web.Response:
    """Answer 201 with a job, or 204. A runner that sends back the `X-GitLab-Last-Update` of its last poll
    waits up to the setting `runner_poll_timeout` for a job; any other runner is answered at once."""
    runner = await runner_of_token(request, params.token)
    contact = await note_contact(request, runner, params.system_id)
    waits = services.settings.runner_poll_timeout if params.last_update else 0
    job = await _next_job(request, runner, contact, waits) if runner.active else None
    headers = _last_update(services)
    if job is None:
        if waits:
            await runner_of_token(request, params.token)  # its token may have been replaced meanwhile
        return web.Response(status=204, headers=headers)
    return json_value(job, status=201, headers=headers)


async def _next_job(
    request: web.Request, runner: CallingRunner, contact: Contact, seconds: float
) -> dict[str, Any] | None:
    services = context.services(request)
    pending, database = services[PENDING_JOBS], services.database
    settings = services.settings
    server = Server(url=settings.base_url, version=settings.dialect)
    hand_out = HandOut(database, services.vault, server, star_is_any=settings.testing)
    deadline = asyncio.get_running_loop().time() + seconds

    async def next_job() -> dict[str, Any] | None:
        async with services[TURNS]:
            if has_left(request) or not await job_queries.any_pending(database):
                return None  # a client that has gone would lose the job
            return await hand_out.next_job(runner, contact)

    generation = pending.generation
    job = await next_job()
    if job is not None or not seconds:
        return job
    with pending.waiting(runner.id, generation) as waiter:
        while await pending.called(waiter, deadline - asyncio.get_running_loop().time()):
            job = await next_job()
            if job is not None:
                waiter.end_turn(True)
                return job
            if has_left(request):
                break
            pending.got_nothing(waiter)
    return None


def _last_update(services: Services) -> dict[str, str]:
    value = str(services[PENDING_JOBS].generation)
    return {"X-GitLab-Last-Update": value, "X-Service-Last-Update": value}


_CONTENT_RANGE = re.compile(r"(?:bytes[ =])?(\d{1,18})-(-?\d*)(?:/.*)?", re.ASCII)


@routes.patch("/jobs/{id}/trace", access=ANYONE, streams_body="application/octet-stream", answers="202 text")
async def append_log(request: web.Request, params: HeldJobParams) -> web.Response:
    """Append to the log of a job: 202, with the log's size in `Range`, once the bytes are durable; 416 if
    `Content-Range` does not begin at that size. Only the start of `Content-Range` counts: runners disagree on
    the meaning of its end."""
    job = await running_job(request, params)
    start = _start_of_range(request)
    if start < job.size == start + (request.content_length or 0):
        return _log_accepted(job, job.size)  # this is a repetition, and the first answer was lost
    if start != job.size:
        raise _range_not_satisfiable(job, job.size)
    return _log_accepted(job, await _append_body(request, job, job_token(request, params)))


async def _append_body(request: web.Request, job: AssignedJob, token: str) -> int:
    """Append the body and return the log's new size.

    Raise 416 if another request has appended to the log meanwhile, and 403 if the log has become too long.
    """
    services = context.services(request)
    logs = logs_of(services)
    end = Tail(job.size, job.checksum, logs.opened(job.held))
    secrets = (token.encode(), *logs.masked_values(job.masked_values))
    async for chunk in _chunks(request):
        if end.size + len(chunk) > services.settings.log_limit:
            raise await _log_too_long(services, job)
        appended = await logs.append(job.id, end, chunk, secrets)
        if appended is None:
            raise _range_not_satisfiable(job, await logs.size(job.id))
        end = appended
    return end.size


def _start_of_range(request: web.Request) -> int:
    match = _CONTENT_RANGE.fullmatch(request.headers.get("Content-Range", ""))
    if match is None:
        raise ApiError(400, {"message": "400 Missing header Content-Range"})
    return int(match[1])


async def _chunks(request: web.Request) -> AsyncIterator[bytes]:
    """Yield the body in chunks of at most CHUNK bytes, each as soon as it has arrived."""
    chunk = bytearray()
    async for data in request_data.chunks(request):
        chunk += data
        while len(chunk) >= CHUNK:
            yield bytes(chunk[:CHUNK])
            del chunk[:CHUNK]
    if chunk:
        yield bytes(chunk)


def _log_accepted(job: AssignedJob, size: int) -> web.Response:
    return web.Response(status=202, text="202", headers=protocol_headers(job) | {"Range": f"0-{size}"})


def _range_not_satisfiable(job: AssignedJob, size: int) -> ApiError:
    return ApiError(
        416, {"message": "416 Range Not Satisfiable"}, protocol_headers(job) | {"Range": f"0-{size}"}
    )


async def _log_too_long(services: Services, job: AssignedJob) -> ApiError:
    """Fail the job, since an endless log would fill the disk, and return the error."""
    async with services.database.transaction() as transaction:
        await transitions.advance(transaction, job.id, "drop", failure_reason="trace_size_exceeded")
    return ApiError(403, {"message": "403 Forbidden - Job is not running"}, {"Job-Status": "failed"})


#: Windows has exit codes that a job's row cannot hold; a file cannot allow any of them.
_MAX_EXIT_CODE = 2**31 - 1
log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class Output:
    checksum: str | None = None
    bytesize: int | None = None


@attrs.frozen(kw_only=True)
class UpdateJob(HeldJobParams):
    state: Literal["running", "success", "failed"] | None = None
    failure_reason: str | None = None
    exit_code: int | None = None
    checksum: str | None = None
    output: Output = Output()


@routes.put("/jobs/{id}", access=ANYONE, answers="200 text, 202 text, 412 text")
async def update_job(request: web.Request, services: Services, params: UpdateJob) -> web.Response:
    """Report the state of a job: 200 when it is recorded. The end of a job is recorded only when its log is
    complete: 412 asks the runner to send the missing part, 202 to ask again in a moment, since a piece of the
    log is being stored."""
    job = await running_job(request, params)
    if params.state not in ("success", "failed"):
        async with services.database.transaction() as transaction:
            await job_queries.note_job_contact(transaction, job.id)
        return _update_answer(job, 200, job.status)
    missing = await _missing_log(services, job, params)
    if missing is not None:
        return _update_answer(job, missing, job.status)
    async with services.database.transaction() as transaction:
        moved = await transitions.advance(
            transaction,
            job.id,
            "success" if params.state == "success" else "drop",
            failure_reason=failure_reason(params.failure_reason),
            exit_code=_stored_exit_code(params.exit_code),
        )
    return _update_answer(job, 200, job.status if moved is None else moved.status)


def _stored_exit_code(exit_code: int | None) -> int | None:
    return None if exit_code is None else max(-_MAX_EXIT_CODE, min(exit_code, _MAX_EXIT_CODE))


def _update_answer(job: AssignedJob, status: int, job_status: str) -> web.Response:
    headers = protocol_headers(job) | {"Job-Status": job_status}
    return web.Response(status=status, text=str(status), headers=headers)


async def _missing_log(services: Services, job: AssignedJob, params: UpdateJob) -> Literal[202, 412] | None:
    """Return the status that asks for the rest of the log; None if the log is complete, or if the runner does
    not report its size."""
    size, checksum = params.output.bytesize, params.output.checksum or params.checksum
    if size is None and checksum is None:
        return None
    async with services.database.transaction() as transaction:
        stored = await log_queries.lock_for_check(transaction, job.id)
        if stored is None:
            if await log_queries.find_log(transaction, job.id) is not None:
                return 202
            return 412 if size else None
        if size is not None and stored.size < size:
            return 412
        if (size is None or stored.size == size) and checksum in (None, f"crc32:{stored.checksum:08x}"):
            return None
        if stored.doubted:
            log.warning("a log differs twice from what its runner sent", job_id=job.id)
            return None
        await log_queries.empty(transaction, job.id)
        return 412


@attrs.frozen(kw_only=True)
class Authorize(HeldJobParams):
    filesize: int | None = None


@routes.post("/jobs/{id}/artifacts/authorize", access=ANYONE, answers="200 UploadLimit")
async def authorize_upload(request: web.Request, services: Services, params: Authorize) -> web.Response:
    """Tell whether a file of `filesize` bytes would be accepted."""
    job = await running_job(request, params)
    limit = services.settings.artifact_limit
    if (params.filesize or 0) > limit:
        raise too_large()
    with await upload_quota(services, job.project_id) as quota:
        quota.grow(params.filesize or 0)
    max_size = limit if quota.bytes_left is None else min(limit, quota.bytes_left)
    return json_value({"MaximumSize": max_size}, headers=protocol_headers(job))


@routes.post("/jobs/{id}/artifacts", access=ANYONE, streams_body="multipart/form-data", answers="201 text")
async def upload_artifact(request: web.Request, params: HeldJobParams) -> web.Response:
    """Upload an artifact: 201, also if the job has the same file already; 400 for a different file of a type
    that the job already has."""
    job = await running_job(request, params)
    await store_artifact(request, job)
    return web.Response(status=201, text="201", headers=protocol_headers(job))


@routes.get("/jobs/{id}/artifacts", access=ANYONE, answers="200 bytes")
async def download_artifacts(
    request: web.Request, services: Services, params: HeldJobParams
) -> web.StreamResponse:
    """Download the archive of a job with the token of the job itself, of a running job of the same pipeline,
    or of one that names it in `needs`."""
    archive = await _archive_to_download(request, services, params)
    return await send_artifact(request, archive)


async def _archive_to_download(request: web.Request, services: Services, params: HeldJobParams) -> Artifact:
    """Return the archive. Raise 403 for other jobs, and 404 without an archive."""
    token = digest(job_token(request, params))
    requester = await job_queries.find_requesting_job(services.database, token, params.id)
    if requester is None:
        await job_of_token(request, params)
        return await archive_of(services, params.id)
    if requester.status not in EXECUTING:
        raise forbidden("Job is not running")
    if requester.unacknowledged and not await acknowledge_job(services, token):
        raise forbidden()
    if not await may_download(services.database, requester):
        raise forbidden()
    return await archive_of(services, params.id)
