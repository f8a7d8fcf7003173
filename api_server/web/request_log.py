"""A line for each request, and the request id that joins it with what else was logged and with the client's copy."""

import re
import secrets
import time

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry, Counter, Histogram

from api_server.web.routes import CALLER

_SENT_ID = re.compile(r"[\w.-]{8,64}", re.ASCII)
log = structlog.get_logger("access")


def request_log(registry: CollectorRegistry) -> Middleware:
    """The middleware for `X-Request-Id` (a client's own is kept), the access log and the request metrics."""
    requests = Counter("http_requests", "Requests answered", ["method", "status"], registry=registry)
    seconds = Histogram("http_request_seconds", "Time to answer", registry=registry)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        sent = request.headers.get("X-Request-Id", "")
        request_id = sent if _SENT_ID.fullmatch(sent) else secrets.token_hex(16)
        started = time.perf_counter()
        status = 499  # the client went away
        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                response = await handler(request)
                status = response.status
                if not response.prepared:
                    response.headers["X-Request-Id"] = request_id
                return response
            except web.HTTPException as error:
                status = error.status
                error.headers["X-Request-Id"] = request_id
                raise
            finally:
                took = time.perf_counter() - started
                requests.labels(request.method, str(status)).inc()
                seconds.observe(took)
                log.info(
                    "request",
                    method=request.method,
                    path=request.path_qs,
                    status=status,
                    ms=round(took * 1000, 1),
                    **_who(request),
                )

    return middleware


def _who(request: web.Request) -> dict[str, str]:
    """Who asked, and with whose rights where these are another user's (`Sudo`); nothing where no route needed it."""
    who = request.get(CALLER)
    if who is None:
        return {}
    if who.impersonator is None:
        return {"user": who.username}
    return {"user": who.impersonator.username, "sudo": who.username}
