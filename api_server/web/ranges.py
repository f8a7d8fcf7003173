"""Ranges of representations whose size is known (RFC 9110, 14): one range, or the whole."""

import re

import attrs
from aiohttp import hdrs, web

from api_server.web.reasons import REASONS

_ONE_RANGE = re.compile(r"bytes=(\d*)-(\d*)", re.ASCII)


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
            headers[hdrs.CONTENT_RANGE] = f"bytes {self.start}-{self.end - 1}/{self.size}"
        return headers


def wanted_part(request: web.Request, size: int, etag: str | None = None) -> Part:
    """What of `size` bytes to send. Several ranges and units other than bytes are ignored, as is a range whose
    `If-Range` names another `etag` (the quoted, strong tag). Raises 416 where the range begins behind the end."""
    whole = Part(0, size, size)
    match = _ONE_RANGE.fullmatch(request.headers.get(hdrs.RANGE, "").replace(" ", ""))
    if match is None or request.method != "GET" or match[0] == "bytes=-":
        return whole
    if (condition := request.headers.get(hdrs.IF_RANGE)) is not None and condition != etag:
        return whole
    if not match[1]:  # the last n bytes
        start, end = max(0, size - int(match[2])), size
    else:
        start = int(match[1])
        end = min(size, int(match[2]) + 1) if match[2] else size
        if match[2] and int(match[2]) < start:
            return whole
    if start >= size:
        raise web.HTTPRequestRangeNotSatisfiable(
            text=f"416: {REASONS[416]}", headers={hdrs.CONTENT_RANGE: f"bytes */{size}"}
        )
    return Part(start, end, size)
