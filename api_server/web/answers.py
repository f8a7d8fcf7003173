"""Successful answers: JSON text, entity tags and 304, byte ranges of stored objects, and streamed bodies."""

import datetime
import hashlib
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import quote

import attrs
import orjson
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from api_server.state.objects import Objects
from api_server.web.errors import REASONS, ApiError
from common import http_fields
from common.http_fields import CONTENT_FIELDS, has_tag, rejoined

_UNQUOTABLE = re.compile(r'["\\\x00-\x1f\x7f]')


def json_text(text: str, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with the JSON text of an entity or a list."""
    return web.Response(body=text.encode(), status=status, content_type="application/json", headers=headers)


def json_value(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return an answer with a small value as JSON."""
    return web.Response(
        body=orjson.dumps(value), status=status, content_type="application/json", headers=headers
    )


def no_content() -> web.Response:
    return web.Response(status=204)


def has_left(request: web.Request) -> bool:
    """Return whether the client has closed its connection, so that nobody would receive the answer."""
    return request.transport is None or request.transport.is_closing()


def attachment(name: str, *, briefly: bool = False) -> str:
    """Return the `Content-Disposition` (RFC 6266) of a file to be saved as `name`: an ASCII form of the name,
    and the complete name. `briefly` leaves out the latter if both are the same."""
    quotable = _UNQUOTABLE.sub("_", name.encode("ascii", "replace").decode())
    brief = f'attachment; filename="{quotable}"'
    return brief if briefly and quotable == name else f"{brief}; filename*=UTF-8''{quote(name, safe='')}"


@web.middleware
async def entity_tags(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Add a weak ETag to every successful GET or HEAD with a body in memory; answer a matching
    `If-None-Match` with 304."""
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
    if matches_etag(request, response.headers[hdrs.ETAG]):
        return not_modified(response.headers)
    return response


def not_modified(headers: Mapping[str, str]) -> web.Response:
    """Return a 304 instead of an answer with these headers, without those that describe its content (RFC
    9110, 15.4.5)."""
    remaining = {name: value for name, value in headers.items() if name.lower() not in CONTENT_FIELDS}
    return web.Response(status=304, headers=remaining)


def _digest(body: bytes) -> str:
    """Return a digest for an entity tag. A collision harms nobody, so the fastest digest is good enough."""
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()


def matches_etag(request: web.Request, etag: str) -> bool:
    """Return whether `If-None-Match` contains `etag`, which is given in header syntax."""
    return has_tag(request.headers.getall(hdrs.IF_NONE_MATCH, ()), etag)


def require_unmodified(request: web.Request, updated_at: datetime.datetime) -> None:
    """Raise 412 if the resource has changed since the request's `If-Unmodified-Since`, which has whole
    seconds (RFC 9110, 13.1.4)."""
    since = request.if_unmodified_since
    if since is not None and updated_at.replace(microsecond=0) > since:
        raise ApiError(412, {"message": "412 Precondition Failed"})


@attrs.frozen
class Part:
    """The bytes from `start` to `end` (exclusive) of `size` bytes; `status` is 200 for all of them, 206 for a
    part."""

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


def requested_part(request: web.Request, size: int, etag: str | None = None) -> Part:
    """Return the part of `size` bytes that the request asks for: all of them, too, if it asks for several
    ranges or its `If-Range` does not match `etag` (a quoted strong tag). Raise 416 if the range begins behind
    the end."""
    complete = Part(0, size, size)
    if request.method != "GET" or not http_fields.range_applies(request.headers.get(hdrs.IF_RANGE), etag):
        return complete
    try:
        spans = http_fields.requested_ranges(request.headers.get(hdrs.RANGE), size)
    except http_fields.UnsatisfiableError:
        headers = {hdrs.CONTENT_RANGE: http_fields.content_range(None, size)}
        raise web.HTTPRequestRangeNotSatisfiable(text=f"416: {REASONS[416]}", headers=headers) from None
    return Part(spans[0].first, spans[0].last + 1, size) if spans and len(spans) == 1 else complete


async def send_part(
    request: web.Request, chunks: AsyncIterator[bytes], part: Part, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send the `chunks` of a part, or only the headers for HEAD; `headers` are those of the whole."""
    response = web.StreamResponse(status=part.status, headers={**headers, **part.headers})
    await response.prepare(request)
    if request.method == "HEAD":
        return response
    async for chunk in chunks:
        await response.write(chunk)
    await response.write_eof()
    return response


async def cut_to(chunks: AsyncIterator[bytes], part: Part) -> AsyncIterator[bytes]:
    """Yield the bytes of `chunks` that belong to the part; stop reading at its end."""
    position = 0
    async for chunk in chunks:
        part_of_chunk = chunk[max(0, part.start - position) : max(0, part.end - position)]
        position += len(chunk)
        if part_of_chunk:
            yield part_of_chunk
        if position >= part.end:
            break


#: Users supplied these bytes, so a browser must not execute anything in them.
STORED_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; sandbox",
    "Cache-Control": "private, no-cache",
}


async def send_stored(
    request: web.Request, objects: Objects, key: str, size: int, sha256: str, headers: Mapping[str, str]
) -> web.StreamResponse:
    """Send the object of `size` bytes under `key`, or the range that the request asks for. Its entity tag is
    `sha256`.

    Raise FileNotFoundError if the object has been deleted, and 416.
    """
    etag = f'"{sha256}"'
    all_headers = STORED_HEADERS | {hdrs.ETAG: etag} | dict(headers)
    if matches_etag(request, etag):
        return not_modified(all_headers)
    part = requested_part(request, size, etag)
    async with aclosing(objects.read(key, part.start, part.end)) as chunks:
        first = await anext(chunks, b"")
        return await send_part(request, rejoined(first, chunks), part, all_headers)
