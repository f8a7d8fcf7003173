"""The edge's routes: static objects on every path, and purges."""

import asyncio
import hmac

import orjson
import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from common.connection import BodyTooSlow, ask_for_body
from storage_edge import request_rules
from storage_edge.cache.cache import Cache
from storage_edge.cache.origin import RETRY_AFTER, OriginError
from storage_edge.client import answers
from storage_edge.client.answers import Sender
from storage_edge.client.connections import Connections
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest, Options, Refusal, Rules
from storage_edge.settings import Settings
from storage_edge.tiers import purges
from storage_edge.tiers.bodies import TruncatedBodyError
from storage_edge.tiers.store import Store

log = structlog.get_logger(__name__)

RULES = web.AppKey("rules", Rules)
CACHE = web.AppKey("cache", Cache)
STORE = web.AppKey("store", Store)
SENDER = web.AppKey("sender", Sender)
CONNECTIONS = web.AppKey("connections", Connections)
METRICS = web.AppKey("metrics", Metrics)
SETTINGS = web.AppKey("settings", Settings)


async def static_object(http: web.Request) -> web.StreamResponse:
    """Static objects with external storage: GET and HEAD from the cache or the origin, OPTIONS by the edge itself.

    A failure has the error's status, or 500.
    """
    try:
        response = await _response(http)
        await response.prepare(http)
        await response.write_eof()
    except ConnectionError as error:
        # The frames of its traceback would hold the body, and its file mapped, until garbage is collected.
        raise error.with_traceback(None) from None
    finally:
        http.app[METRICS].sent.inc(http.writer.output_size)
    http.app[CONNECTIONS].answered(http, response)
    return response


@web.middleware
async def without_path(request: web.Request, handler: Handler) -> web.StreamResponse:
    """`OPTIONS *` and CONNECT name no path, so that no route finds them: refused as other targets are."""
    return await (handler(request) if request.path.startswith("/") else static_object(request))


async def _response(http: web.Request) -> web.StreamResponse:
    client = http.app[CONNECTIONS].client(http)
    request = http.app[RULES].read(http.method, http.raw_path, http.headers, client)
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
    except TruncatedBodyError:
        status, sentence = 502, "The origin stopped before the end of its answer."
    except (ConnectionError, asyncio.CancelledError):
        raise
    except Exception:
        log.exception("request failed", target=request.target)
        status, sentence = 500, "The edge failed."
    metrics.failed(status)
    return answers.failure(status, sentence, retry_after)


async def purge(http: web.Request) -> web.Response:
    """POST /-/purge: JSON `{"keys": [...], "urls": [...], "prefixes": [...], "soft": false}` -> `{"purged": n}`.

    401 without the purge token, 400 for a body that is not such a document. When it has answered 200, nothing that
    was stored before is served any more, nor after a crash, whatever state the disk is in: a full one takes purges as
    well, and what it cannot take becomes a purge of everything. 503 when it holds but may not outlive a crash of the
    machine; whoever asked should ask again.
    """
    scheme, _, given = http.headers.get("Authorization", "").partition(" ")
    right = hmac.compare_digest(
        given.strip().encode(errors="replace"), str(http.app[SETTINGS].purge_token).encode()
    )
    if scheme.lower() != "bearer" or not right:
        return web.json_response({"message": "401 Unauthorized"}, status=401)
    try:
        await ask_for_body(http)
        wanted = purges.parse(orjson.loads(await http.read()), http.app[RULES].origin)
    except BodyTooSlow as error:
        return web.json_response({"error": str(error)}, status=408)
    except orjson.JSONDecodeError:
        return web.json_response({"error": "The body is not JSON."}, status=400)
    except purges.PurgeRequestError as error:
        return web.json_response({"error": str(error)}, status=400)
    try:
        count = await http.app[STORE].purge(wanted)
    except OSError as error:
        log.warning("a purge may not outlive a crash", reason=error.strerror)
        message = {"message": "The purge may not outlive a crash of the machine."}
        return web.json_response(message, status=503, headers={"Retry-After": RETRY_AFTER})
    http.app[METRICS].purged.inc(count)
    log.info("purged", responses=count, soft=wanted.soft)
    return web.json_response({"purged": count})
