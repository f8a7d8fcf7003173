"""Answers to Range: one range of a representation whose size is known, or the whole (RFC 9110, 14)."""

import attrs
from aiohttp import hdrs, web

from api_server.web.reasons import REASONS
from common import http_fields


@attrs.frozen
class Part:
    """Bytes `start` to `end` (exclusive) of `size`; `status` 200 for the whole, 206 for a part."""

    start: int
    end: int
    size: int

    @property
    def status(self) -> int:
        return 200 if (self.start, self.end) == (0, self.size) else 206

    @property
    def headers(self) -> dict[str, str]:
        headers: dict[str, str] = {
            hdrs.ACCEPT_RANGES: "bytes",
            hdrs.CONTENT_LENGTH: str(self.end - self.start),
        }
        if self.status == 206:
            headers[hdrs.CONTENT_RANGE] = http_fields.content_range(
                http_fields.Span(self.start, self.end - 1), self.size
            )
        return headers


def wanted_part(request: web.Request, size: int, etag: str | None = None) -> Part:
    """What of `size` bytes to send: the whole, too, where several parts are asked for or `If-Range` names another
    `etag` (the quoted, strong tag). Raises 416 where the range begins behind the end."""
    whole = Part(0, size, size)
    if request.method != "GET" or not http_fields.range_applies(request.headers.get(hdrs.IF_RANGE), etag):
        return whole
    try:
        spans = http_fields.requested_ranges(request.headers.get(hdrs.RANGE), size)
    except http_fields.UnsatisfiableError:
        headers = {hdrs.CONTENT_RANGE: http_fields.content_range(None, size)}
        raise web.HTTPRequestRangeNotSatisfiable(text=f"416: {REASONS[416]}", headers=headers) from None
    return Part(spans[0].first, spans[0].last + 1, size) if spans and len(spans) == 1 else whole
