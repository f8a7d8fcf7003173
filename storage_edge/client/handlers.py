"""The handlers for static objects, on every path."""

import asyncio
import time
from http import HTTPStatus

import structlog
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from common.concurrency import Rates
from storage_edge import request_rules
from storage_edge.cache.cache import Cache
from storage_edge.cache.origin import OriginError
from storage_edge.client import answers, callers
from storage_edge.client.answers import Sender
from storage_edge.client.callers import CALLER, REQUEST_ID, Proxies, ProxyFields
from storage_edge.client.connections import Connections
from storage_edge.metrics import CLIENT_GONE, Metrics
from storage_edge.request_rules import EdgeRequest, Options, Refusal, Rules
from storage_edge.settings import Settings
from storage_edge.storage.bodies import TruncatedBodyError
from storage_edge.storage.store import Store

log = structlog.get_logger(__name__)

RULES = web.AppKey("rules", Rules)
CACHE = web.AppKey("cache", Cache)
STORE = web.AppKey("store", Store)
SENDER = web.AppKey("sender", Sender)
CONNECTIONS = web.AppKey("connections", Connections)
METRICS = web.AppKey("metrics", Metrics)
PROXIES = web.AppKey("proxies", Proxies)
RATES = web.AppKey("rates", Rates)
SETTINGS = web.AppKey("settings", Settings)


async def static_object(http: web.Request) -> web.StreamResponse:
    """Answer GET and HEAD from the cache or the origin, and OPTIONS by the edge itself (the contract, "Static
    objects with external storage").

    A failure has the error's status, or 500.
    """
    status, start = CLIENT_GONE, time.perf_counter()
    try:
        response = await _response(http)
        await response.prepare(http)
        await response.write_eof()
        status = response.status
    except ConnectionError as error:
        _log_gone(http, time.perf_counter() - start)
        # The frames of the traceback would keep the body, and its mapped file, until the next garbage collection.
        raise error.with_traceback(None) from None
    except asyncio.CancelledError:
        _log_gone(http, time.perf_counter() - start)
        raise
    finally:
        http.app[METRICS].sent(status, http.writer.output_size)
    http.app[CONNECTIONS].answered(http)
    return response


def _log_gone(http: web.Request, seconds: float) -> None:
    """Log a client that did not receive its answer. aiohttp logs nothing then."""
    if http.app[SETTINGS].access_log:
        callers.log_request(
            http[CALLER],
            http.method,
            http.raw_path,
            CLIENT_GONE,
            None,
            http.writer.output_size,
            seconds,
            http.headers.get(hdrs.USER_AGENT),
        )


@web.middleware
async def identified(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Identify the client, and refuse requests of our own that came back. `OPTIONS *` and CONNECT have no path, so
    no route matches them; they are refused like other invalid targets."""
    app, proxy_fields = request.app, ProxyFields.by(request.headers)
    request[CALLER] = app[PROXIES].caller(app[CONNECTIONS].of(request).address, proxy_fields)
    if proxy_fields.loop and app[PROXIES].name in proxy_fields.loop:
        app[METRICS].failed(HTTPStatus.LOOP_DETECTED)
        return answers.failure(HTTPStatus.LOOP_DETECTED, "The origin of this edge leads back to it.")
    return await (handler(request) if request.path.startswith("/") else static_object(request))


async def name_request(request: web.Request, response: web.StreamResponse) -> None:
    """Add to the answer the id under which it is logged."""
    if CALLER in request:
        response.headers[REQUEST_ID] = request[CALLER].request_id


async def _response(http: web.Request) -> web.StreamResponse:
    app, caller = http.app, http[CALLER]
    client = caller.client
    wait = app[RATES].wait(client, time.monotonic())
    if wait:
        app[METRICS].limited("requests")
        return answers.failure(429, "You ask too often; try again later.", str(wait))
    request = app[RULES].read(http.method, http.raw_path, http.headers, client, caller.fields)
    if isinstance(request, Refusal):
        return _refused(http, request)
    if isinstance(request, Options):
        return answers.options(preflight=request.is_preflight)
    return await _answered(http, request)


def _refused(http: web.Request, refusal: Refusal) -> web.Response:
    http.app[METRICS].refused(refusal.status)
    allow = {"Allow": request_rules.ALLOWED_METHODS} if refusal.status == 405 else None
    return answers.empty(refusal.status, headers=allow)


async def _answered(http: web.Request, request: EdgeRequest) -> web.StreamResponse:
    metrics = http.app[METRICS]
    retry_after: str | None = None
    try:
        answer = await http.app[CACHE].answer(request)
        metrics.answered(request.kind, answer.outcome)
        return await http.app[SENDER].send(http, request, answer)
    except OriginError as error:
        status, sentence, retry_after = error.status, str(error), error.retry_after
        # The exception may be that of a fetch, whose frames hold it, and of many clients, which would all add frames.
        error.__traceback__ = None
    except TruncatedBodyError:
        status, sentence = 502, "The origin stopped before the end of its answer."
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("request failed", target=request.target, request_id=http[CALLER].request_id)
        status, sentence = 500, "The edge failed."
    metrics.failed(status)
    return answers.failure(status, sentence, retry_after)
