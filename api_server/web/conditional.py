"""Entity tags of API answers, 304 where the client has the answer already (RFC 9110, 13.1.2), and 412 where it does not
know what it removes."""

import datetime
import hashlib
from collections.abc import Mapping

from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api_server.web.errors import ApiError
from common.http_fields import CONTENT_FIELDS, has_tag


@web.middleware
async def entity_tags(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Every successful GET or HEAD with a body in memory gets a weak ETag of that body; `If-None-Match` gets 304."""
    response = await handler(request)
    if (
        request.method not in ("GET", "HEAD")
        or response.status != 200
        or not isinstance(response, web.Response)
    ):
        return response
    if hdrs.ETAG not in response.headers:
        if not isinstance(response.body, bytes):
            return response
        response.headers[hdrs.ETAG] = f'W/"{_digest(response.body)}"'
    response.headers.setdefault("Cache-Control", "max-age=0, private, must-revalidate")
    if matches(request, response.headers[hdrs.ETAG]):
        return not_modified(response.headers)
    return response


def not_modified(headers: Mapping[str, str]) -> web.Response:
    """304 instead of an answer with these fields: without what describes its content (RFC 9110, 15.4.5)."""
    kept = {name: value for name, value in headers.items() if name.lower() not in CONTENT_FIELDS}
    return web.Response(status=304, headers=kept)


def _digest(body: bytes) -> str:
    """Nobody gains by two answers with one tag, so the digest that processors compute fastest will do."""
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()


def matches(request: web.Request, etag: str) -> bool:
    """Whether `If-None-Match` names `etag`, which is written as in a header."""
    return has_tag(request.headers.getall(hdrs.IF_NONE_MATCH, ()), etag)


def require_unmodified(request: web.Request, updated_at: datetime.datetime) -> None:
    """Raises 412 for what has changed since the request's `If-Unmodified-Since`, which knows seconds only (13.1.4)."""
    since = request.if_unmodified_since
    if since is not None and updated_at.replace(microsecond=0) > since:
        raise ApiError(412, {"message": "412 Precondition Failed"})
