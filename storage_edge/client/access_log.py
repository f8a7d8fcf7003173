"""One line for one request, without tokens."""

import structlog
from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from common.logs import redact

log = structlog.get_logger(__name__)


def write(
    method: str,
    target: str,
    status: int,
    cache: str | None,
    body_bytes: int,
    seconds: float,
    remote: str | None,
) -> None:
    """The line about one request that was answered."""
    log.info(
        "request",
        method=method,
        target=redact(target),
        status=status,
        cache=cache,
        bytes=body_bytes,
        seconds=round(seconds, 6),
        remote=remote,
    )


class AccessLog(AbstractAccessLogger):
    """The lines about requests that aiohttp has read."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """`time` is seconds since the request came in."""
        write(
            request.method,
            request.raw_path,
            response.status,
            response.headers.get("Cache-Status"),
            response.body_length,
            time,
            request.remote,
        )
