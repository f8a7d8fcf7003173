"""Has the requests fail that were ordered to."""

import asyncio
import contextlib
from typing import Any

import orjson
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.code.git_http.credentials import git_caller
from api_server.state.errors import Unavailable
from api_server.testing.cutting import CutWriter, reset
from api_server.testing.failures import FAILURES_TO_COME, Failure
from api_server.testing.path_patterns import sent_path
from api_server.testing.recording import ENTRY
from api_server.testing.steering import is_about_us
from api_server.web import auth
from api_server.web.auth import Anonymous, Caller
from api_server.web.errors import REASONS, ApiError, BodyRefused
from api_server.web.request_data import pieces
from common.connections import BodyTooSlow

_MET = web.RequestKey("failure_met", Failure)


@web.middleware
async def failing(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Lets a request meet the first failure that it fits."""
    if is_about_us(request):
        return await handler(request)

    async def whose() -> str | None:
        return await _whose(request)

    path = sent_path(request.raw_path)
    failure = await request.app[FAILURES_TO_COME].take(request.method, path, whose)
    if failure is None:
        return await handler(request)
    request[_MET] = failure
    request[ENTRY].failure = failure.id
    await asyncio.sleep(failure.delay)
    if failure.cut is True:
        await _whose(request)
        reset(request)
    if failure.cut is not False:
        request._payload_writer = CutWriter(request, failure.cut)
    if failure.status is None:
        return await handler(request)
    await _whose(request)
    await _read_body(request)
    return _answer(failure, failure.status)


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """A signal of the application: those of the failure that the request has met."""
    if (failure := request.get(_MET)) is not None:
        response.headers.update(failure.headers)


def _answer(failure: Failure, status: int) -> web.Response:
    body: Any = failure.body
    if body is None:
        body = {"message": f"{status} {REASONS.get(status, '')}".rstrip()}
    if isinstance(body, str):
        return web.Response(status=status, text=body)
    return web.Response(status=status, body=orjson.dumps(body), content_type="application/json")


async def _read_body(request: web.Request) -> None:
    """As somebody does who means to answer, so that the client hears the answer, and the journal the body."""
    with contextlib.suppress(BodyRefused, BodyTooSlow):
        async for _ in pieces(request):
            pass


async def _whose(request: web.Request) -> str | None:
    """The name of the user whose token the request has, in whichever way."""
    with contextlib.suppress(ApiError, web.HTTPException, Unavailable):
        who: Caller | Anonymous | None
        who = await auth.authenticate(request, takes_job_token=True, reads_body=False)
        who = who or await git_caller(request)
        return who.username if isinstance(who, Caller) else None
    return None
