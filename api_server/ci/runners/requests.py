"""`POST /jobs/request`: a runner asks for a job, and waits a while for one."""

import asyncio
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.ci.runners import choosing, queries
from api_server.ci.runners.access import machine, runner_of_token
from api_server.ci.runners.handout import HandOut
from api_server.ci.runners.waiting import PendingJobs
from api_server.state.database import Row
from api_server.web import context
from api_server.web.access import ANYONE
from api_server.web.params import parse
from api_server.web.request_data import merged
from api_server.web.routes import Routes

routes = Routes()

PENDING_JOBS = web.AppKey("pending_jobs", PendingJobs)
#: Hand-outs at a time in this process: when a notice wakes many runners, other requests still get connections.
TURNS = web.AppKey("hand_out_turns", asyncio.Semaphore)
TURNS_AT_A_TIME = 3


@attrs.frozen(kw_only=True)
class RequestJob:
    token: str | None = None
    system_id: str | None = None
    last_update: str | None = None


@routes.post("/jobs/request", access=ANYONE)
async def request_job(request: web.Request) -> web.Response:
    """201 with a job, or 204. A runner that sends back the `X-GitLab-Last-Update` of its last poll waits up to setting
    `runner_poll_timeout` for a job; one that does not is answered at once."""
    wanted = await parse(request, RequestJob)
    runner = await runner_of_token(request, wanted.token)
    info = (await merged(request)).get("info")
    told: dict[str, Any] = info if isinstance(info, dict) else {}
    manager_id = await queries.note_contact(
        context.database(request), runner.id, **machine(request, wanted.system_id, told)
    )
    waits = context.settings(request).runner_poll_timeout if wanted.last_update else 0
    features = told.get("features")
    graceful = isinstance(features, dict) and features.get("cancel_gracefully") is True
    job = (
        await _next_job(request, runner, manager_id, waits, cancels_gracefully=graceful)
        if runner.active
        else None
    )
    headers = _last_update(request)
    if job is None:
        return web.Response(status=204, headers=headers)
    return web.Response(status=201, body=orjson.dumps(job), content_type="application/json", headers=headers)


async def _next_job(
    request: web.Request, runner: Row, manager_id: int, seconds: float, *, cancels_gracefully: bool
) -> dict[str, Any] | None:
    pending, database = request.config_dict[PENDING_JOBS], context.database(request)
    hand_out = HandOut(database, context.vault(request), context.settings(request).base_url)
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        generation = pending.generation
        async with request.config_dict[TURNS]:
            if _has_left(request):
                return None
            job = None
            if await choosing.any_pending(database):
                job = await hand_out.next_job(runner, manager_id, cancels_gracefully=cancels_gracefully)
        left = deadline - asyncio.get_running_loop().time()
        if job is not None or left <= 0 or not await pending.after(generation, left):
            return job


def _has_left(request: web.Request) -> bool:
    """A job for a runner that does not listen any more would be lost."""
    return request.transport is None or request.transport.is_closing()


def _last_update(request: web.Request) -> dict[str, str]:
    value = str(request.config_dict[PENDING_JOBS].generation)
    return {"X-GitLab-Last-Update": value, "X-Service-Last-Update": value}
