"""`PUT /jobs/:id`: a runner says that its job goes on, or how it ended."""

from typing import Literal

import attrs
import structlog
from aiohttp import web

from api_server.ci.jobs.logs import queries as logs
from api_server.ci.pipelines import transitions
from api_server.ci.runners import job_token_queries
from api_server.ci.runners.failure_reasons import failure_reason
from api_server.ci.runners.job_token import OneJob, protocol_headers, running_job
from api_server.ci.runners.job_token_queries import HeldJob
from api_server.web import context
from api_server.web.routes import ANYONE, Routes

routes = Routes()
#: Windows has exit codes beyond what a job's row holds; none of them is one that a file can allow.
_MAX_EXIT_CODE = 2**31 - 1
log = structlog.get_logger(__name__)


@attrs.frozen(kw_only=True)
class Output:
    checksum: str | None = None
    bytesize: int | None = None


@attrs.frozen(kw_only=True)
class UpdateJob(OneJob):
    state: Literal["running", "success", "failed"] | None = None
    failure_reason: str | None = None
    exit_code: int | None = None
    checksum: str | None = None
    output: Output = Output()


@routes.put("/jobs/{id}", access=ANYONE)
async def update_job(request: web.Request, wanted: UpdateJob) -> web.Response:
    """200 when it is done. A job that ended is not before its log is complete: 412 asks the runner to send what is
    missing, 202 to ask again in a moment, since a piece of the log is being stored right now."""
    job = await running_job(request, wanted)
    if wanted.state not in ("success", "failed"):
        async with context.database(request).transaction() as transaction:
            await job_token_queries.note_contact(transaction, job.id)
        return _answer(job, 200, job.status)
    missing = await _what_is_missing(request, job, wanted)
    if missing is not None:
        return _answer(job, missing, job.status)
    async with context.database(request).transaction() as transaction:
        moved = await transitions.advance(
            transaction,
            job.id,
            "success" if wanted.state == "success" else "drop",
            failure_reason=failure_reason(wanted.failure_reason),
            exit_code=_kept(wanted.exit_code),
        )
    return _answer(job, 200, job.status if moved is None else moved.status)


def _kept(exit_code: int | None) -> int | None:
    return None if exit_code is None else max(-_MAX_EXIT_CODE, min(exit_code, _MAX_EXIT_CODE))


def _answer(job: HeldJob, status: int, job_status: str) -> web.Response:
    headers = protocol_headers(job) | {"Job-Status": job_status}
    return web.Response(status=status, text=str(status), headers=headers)


async def _what_is_missing(request: web.Request, job: HeldJob, wanted: UpdateJob) -> Literal[202, 412] | None:
    """The status that asks for it; None when the log is what the runner says it is, or it says nothing."""
    size, checksum = wanted.output.bytesize, wanted.output.checksum or wanted.checksum
    if size is None and checksum is None:
        return None
    async with context.database(request).transaction() as transaction:
        stored = await logs.lock_for_check(transaction, job.id)
        if stored is None:
            if await logs.find_log(transaction, job.id) is not None:
                return 202
            return 412 if size else None
        if size is not None and stored.size < size:
            return 412
        if (size is None or stored.size == size) and checksum in (None, f"crc32:{stored.checksum:08x}"):
            return None
        if stored.doubted:
            log.warning("a log differs from what its runner sent, twice", job_id=job.id)
            return None
        await logs.empty(transaction, job.id)
        return 412
