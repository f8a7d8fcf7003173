"""The access log: a line for each request, with the request id that connects it with other log lines and with
the client."""

import re
import secrets
import time

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware
from prometheus_client import CollectorRegistry

from api_server.services import Key
from api_server.web.routes import CALLER
from common import logs, operations
from common.logs import AccessLines, FieldValue
from common.measures import Durations
from common.static_paths import NO_FILE

_REQUEST_ID_FORM = re.compile(r"[\w.-]{8,64}", re.ASCII)
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_CLASSES = {status: f"{status // 100}xx" for status in range(100, 600)}
#: The statuses of successful health checks, which are not logged. 404 tells an edge that its token is right.
_HEALTHY = {**dict.fromkeys(operations.ROUTES, 200), NO_FILE: 404}
#: Requests that take longer are logged as slow.
SLOW_SECONDS = 1.0
REQUESTS = Key[Durations]("requests")

write = AccessLines("access")


def request_log(registry: CollectorRegistry) -> tuple[Middleware, Durations]:
    """Return the middleware for `X-Request-Id` (a client's own is kept), the access log and the request
    metrics, and the metrics by method, route and class of the status."""
    durations = Durations(
        "forgelet_http_request_duration_seconds",
        "Seconds until requests were answered.",
        ("method", "route", "status"),
    )
    registry.register(durations)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        client_id = request.headers.get("X-Request-Id", "")
        request_id = client_id if _REQUEST_ID_FORM.fullmatch(client_id) else secrets.token_hex(16)
        started = time.perf_counter()
        status = 499  # the client went away
        token = logs.REQUEST_ID.set(request_id)
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
        except ConnectionResetError as problem:
            if problem.__cause__ is not None:  # we have cut the answer off, not the client
                status = 500
            raise
        finally:
            logs.REQUEST_ID.reset(token)
            took = time.perf_counter() - started
            durations.observe(took, _labels(request, status))
            if status != _HEALTHY.get(request.path):
                _write_line(request, request_id, status, took)

    return middleware, durations


def _labels(request: web.Request, status: int) -> tuple[str, str, str]:
    """Return the labels of a request. Strangers cannot choose any of their values."""
    method = request.method if request.method in _METHODS else "other"
    resource = request.match_info.route.resource
    return method, "none" if resource is None else resource.canonical, _CLASSES.get(status, "other")


def _write_line(request: web.Request, request_id: str, status: int, took: float) -> None:
    """Write the line. It names the user, and in a `Sudo` request also the user acted for; it names nobody if
    the route needed no credentials."""
    fields: dict[str, FieldValue] = {
        "method": request.method,
        "path": request.path_qs,
        "status": status,
        "ms": round(took * 1000, 1),
        "client": request.remote,
        "request_id": request_id,
    }
    actor = request.get(CALLER)
    if actor is not None and actor.impersonator is None:
        fields["user"] = actor.username
    elif actor is not None:
        fields["user"], fields["sudo"] = actor.impersonator.username, actor.username
    write(fields)
