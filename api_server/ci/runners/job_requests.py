"""`POST /jobs/request`: a runner asks for a job, and waits a while for one."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import attrs
from aiohttp import web

from api_server.ci.config.predefined import Server
from api_server.ci.runners import choosing_queries, hand_out_queries
from api_server.ci.runners.access import runner_of_token
from api_server.ci.runners.contact import Contact, note_contact
from api_server.ci.runners.hand_out import HandOut
from api_server.ci.runners.pending_jobs import PendingJobs
from api_server.ci.runners.queries import CallingRunner
from api_server.web import context
from api_server.web.access import ANYONE
from api_server.web.answers import has_left, json_value
from api_server.web.context import DATABASE, SETTINGS
from api_server.web.params import Name
from api_server.web.routes import Routes
from common.lifecycle import BACKGROUND, SHUTDOWN

routes = Routes()

PENDING_JOBS = web.AppKey("pending_jobs", PendingJobs)
#: Hand-outs at a time in this process: when many runners ask at once, other requests still get connections.
TURNS = web.AppKey("hand_out_turns", asyncio.Semaphore)
TURNS_AT_A_TIME = 3


def setup(app: web.Application) -> None:
    """What waiting runners need; they are sent home when the server shuts down."""
    app[PENDING_JOBS] = PendingJobs()
    app[TURNS] = asyncio.Semaphore(TURNS_AT_A_TIME)
    app.cleanup_ctx.append(_listening)
    app[SHUTDOWN].at_begin(app[PENDING_JOBS].close)


async def _listening(app: web.Application) -> AsyncIterator[None]:
    database, star_is_any = app[DATABASE], app[SETTINGS].testing

    async def able(runner_ids: Sequence[int], projects: frozenset[int | None], most: int) -> list[int]:
        return await choosing_queries.able(database, runner_ids, projects, most, star_is_any=star_is_any)

    async with app[PENDING_JOBS].listening(app[SETTINGS].unpooled_url, app[BACKGROUND], able):
        yield


@attrs.frozen(kw_only=True)
class RequestJob:
    token: str | None = None
    system_id: Name | None = None
    last_update: str | None = None


@routes.post("/jobs/request", access=ANYONE)
async def request_job(request: web.Request, wanted: RequestJob) -> web.Response:
    """201 with a job, or 204. A runner that sends back the `X-GitLab-Last-Update` of its last poll waits up to setting
    `runner_poll_timeout` for a job; one that does not is answered at once."""
    runner = await runner_of_token(request, wanted.token)
    contact = await note_contact(request, runner, wanted.system_id)
    waits = context.settings(request).runner_poll_timeout if wanted.last_update else 0
    job = await _next_job(request, runner, contact, waits) if runner.active else None
    headers = _last_update(request)
    if job is None:
        if waits:
            await runner_of_token(request, wanted.token)  # whose token may have been replaced meanwhile
        return web.Response(status=204, headers=headers)
    return json_value(job, status=201, headers=headers)


async def _next_job(
    request: web.Request, runner: CallingRunner, contact: Contact, seconds: float
) -> dict[str, Any] | None:
    pending, database = request.config_dict[PENDING_JOBS], context.database(request)
    settings = context.settings(request)
    server = Server(url=settings.base_url, version=settings.dialect)
    hand_out = HandOut(database, context.vault(request), server, star_is_any=settings.testing)
    deadline = asyncio.get_running_loop().time() + seconds

    async def asked() -> dict[str, Any] | None:
        async with request.config_dict[TURNS]:
            if has_left(request) or not await hand_out_queries.any_pending(database):
                return None  # who has left would lose the job
            return await hand_out.next_job(runner, contact)

    generation = pending.generation
    job = await asked()
    if job is not None or not seconds:
        return job
    with pending.waiting(runner.id, generation) as place:
        while await pending.called(place, deadline - asyncio.get_running_loop().time()):
            job = await asked()
            if job is not None:
                place.end_turn(True)
                return job
            if has_left(request):
                break
            pending.got_nothing(place)
    return None


def _last_update(request: web.Request) -> dict[str, str]:
    value = str(request.config_dict[PENDING_JOBS].generation)
    return {"X-GitLab-Last-Update": value, "X-Service-Last-Update": value}
