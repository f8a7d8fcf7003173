"""One line for one request, without tokens."""

from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from common.logs import AccessLines
from storage_edge.client.who import WHO, Who

log = AccessLines(__name__)

#: What is logged of a User-Agent.
AGENT_LENGTH = 200


def write(
    who: Who | None,
    method: str,
    target: str,
    status: int,
    cache: str | None,
    body_bytes: int,
    seconds: float,
    agent: str | None,
) -> None:
    """The line about one request that was answered."""
    log(
        {
            "client": None if who is None else who.address,
            "method": method,
            "target": target,
            "status": status,
            "cache": cache,
            "bytes": body_bytes,
            "seconds": round(seconds, 6),
            "request_id": None if who is None else who.request_id,
            "agent": None if agent is None else agent[:AGENT_LENGTH],
        }
    )


class AccessLog(AbstractAccessLogger):
    """The lines about requests that aiohttp has read."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """`time` is seconds since the request came in."""
        write(
            request.get(WHO),
            request.method,
            request.raw_path,
            response.status,
            response.headers.get("Cache-Status"),
            response.body_length,
            time,
            request.headers.get("User-Agent"),
        )
