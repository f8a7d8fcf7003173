"""Sending of the cache's answers: fields for clients, 304, ranges, and bodies in chunks."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from http import HTTPStatus
from typing import Final

import attrs
from aiohttp import hdrs, web
from multidict import CIMultiDict

from common import http_fields
from storage_edge.cache.answer import Answer, FromOrigin, FromStore
from storage_edge.cache.origin import OriginError, OriginResponse
from storage_edge.client import memory_hits
from storage_edge.client.callers import CALLER
from storage_edge.client.connections import Connections, Sink
from storage_edge.client.memory_hits import MemoryHit
from storage_edge.request_rules import ALLOWED_METHODS, EdgeRequest
from storage_edge.rules import fields, selection
from storage_edge.rules.fields import Outcome
from storage_edge.rules.storing import ALWAYS, SERVER, for_clients, keep_from_other_caches
from storage_edge.storage import bodies
from storage_edge.storage.bodies import BLOCK, FilePart, MemoryBody, Reader, TruncatedBodyError

#: If more bodies than this are being sent, their chunks are small, because the part of a chunk that a client has not
#: received stays in memory.
CROWD: Final = 32
CROWD_PIECE: Final = 16 * 1024
#: Number of bytes that wait in memory for a client that does not receive the rest of a file. Once they are sent, more
#: are read.
WAITING_PIECE: Final = 1024

Chunks = AsyncGenerator[bytes | memoryview | FilePart, None]


class Streamed(web.StreamResponse):
    """A response whose head leaves together with the first chunk."""

    _send_headers_immediately = False


@attrs.define
class Streams:
    """A sender of bodies on `connections`. If possible, bodies go directly from their files to the socket."""

    connections: Connections
    _sending: int = 0

    async def send(
        self, http: web.Request, response: web.StreamResponse, chunks: Chunks
    ) -> web.StreamResponse:
        """Send chunk by chunk. The first chunk is awaited before the head is sent, so that a body that fails at once
        becomes an error instead of a broken answer. If it fails later, or if the client does not receive it, break
        the connection and raise `ConnectionError`."""
        self._sending += 1
        sink = self.connections.sink(http)
        try:
            chunk = await anext(chunks, None)
            await response.prepare(http)
            if self._sending > CROWD:
                sink.limit_buffer(CROWD_PIECE)
            while chunk is not None:
                if isinstance(chunk, FilePart):
                    await _send_part(http, response, sink, chunk)
                else:
                    await response.write(chunk)
                await http.writer.drain()
                chunk = await anext(chunks, None)
        except (OriginError, TruncatedBodyError) as error:
            if not response.prepared:
                raise
            _break_off(http)
            raise ConnectionAbortedError(type(error).__name__) from error
        except asyncio.CancelledError:
            _break_off(http)
            raise
        finally:
            self._sending -= 1
            await chunks.aclose()
            sink.limit_buffer(None)
        await response.write_eof()
        return response

    async def of(self, http: web.Request, reader: Reader, first: int, length: int | None) -> Chunks:
        """Yield `length` bytes from `first`, or all. For a body of unknown length, it is not known yet whether it will
        be in a file."""
        files, sent = length is not None and self.connections.sink(http).takes_files, 0
        while length is None or sent < length:
            if files and length is not None:
                part = await reader.part(first + sent, length - sent)
                if part is not None:
                    sent += part.size
                    yield part
                    continue
            limit = BLOCK if self._sending < CROWD else CROWD_PIECE
            data = await reader.read(first + sent, limit if length is None else min(limit, length - sent))
            if not data:
                if length is None:
                    return
                raise TruncatedBodyError
            sent += len(data)
            yield data

    def multipart(
        self,
        http: web.Request,
        reader: Reader,
        spans: list[http_fields.Span],
        length: int,
        headers: CIMultiDict[str],
        boundary: str,
    ) -> Chunks:
        """Yield multipart/byteranges (RFC 9110 section 14.6), and set Content-Type and Content-Length.

        The boundary is unpredictable, so that nobody can create a body that contains it.
        """
        type_ = headers.get(hdrs.CONTENT_TYPE, "application/octet-stream")
        heads = [
            f"--{boundary}\r\nContent-Type: {type_}\r\n"
            f"Content-Range: {http_fields.content_range(span, length)}\r\n\r\n"
            for span in spans
        ]
        end = f"--{boundary}--\r\n"
        total = sum(span.length + len(head) + 2 for span, head in zip(spans, heads, strict=True)) + len(end)
        headers[hdrs.CONTENT_TYPE] = f"multipart/byteranges; boundary={boundary}"
        headers[hdrs.CONTENT_LENGTH] = str(total)

        async def chunks() -> Chunks:
            for span, head in zip(spans, heads, strict=True):
                yield head.encode()
                async for data in self.of(http, reader, span.first, span.length):
                    yield data
                yield b"\r\n"
            yield end.encode()

        return chunks()


async def _send_part(http: web.Request, response: web.StreamResponse, sink: Sink, part: FilePart) -> None:
    """Send a part, and give other clients their turn after it."""
    sink.limit_buffer(0)  # so that the transport has sent everything before the socket is used directly
    http.writer.send_headers()
    offset, end = part.offset, part.offset + part.size
    while offset < end:
        sent = sink.send_file(part.descriptor, offset, end - offset)
        http.writer.output_size += sent
        if not sent:
            waiting = bodies.piece(part.descriptor, min(end - offset, WAITING_PIECE), offset)
            if not waiting:
                raise TruncatedBodyError
            await response.write(waiting)
            await http.writer.drain()
            sent = len(waiting)
        offset += sent
    await asyncio.sleep(0)


def _break_off(http: web.Request) -> None:
    """Reset the connection, so that no client takes a part for the whole."""
    if http.transport is not None:
        http.transport.abort()


#: Bodies up to this many bytes are sent in one chunk.
SMALL_FILE: Final = 512 * 1024
#: Statuses without a body (RFC 9110 section 6.4.1).
_BODILESS = frozenset({204, 304})


@attrs.define
class Sender:
    """A sender of answers. `clock` returns seconds since 1970, `random_bytes` unpredictable bytes."""

    clock: Callable[[], float]
    random_bytes: Callable[[int], bytes]
    streams: Streams

    async def send(self, http: web.Request, request: EdgeRequest, answer: Answer) -> web.StreamResponse:
        """Answer a GET or HEAD. If a body has begun and cannot be completed, or if the client does not receive it,
        break the connection and raise `ConnectionError`."""
        match answer:
            case FromStore():
                try:
                    return await self._send_stored(http, request, answer)
                finally:
                    answer.reader.close()
            case FromOrigin():
                try:
                    return await self._send_passed(http, request, answer.response, answer.outcome)
                finally:
                    answer.response.close()
        return empty(HTTPStatus.GATEWAY_TIMEOUT, answer.outcome)

    async def _send_stored(
        self, http: web.Request, request: EdgeRequest, answer: FromStore
    ) -> web.StreamResponse:
        stored = answer.stored
        body = stored.body
        if memory_hits.is_plain(answer) and memory_hits.asks_plainly(http, request):
            return MemoryHit(answer, *answer.age_and_status(self.clock()), http[CALLER].request_id)
        headers = self._fields(request, answer)
        if stored.status == 200:
            if selection.is_not_modified(http.headers, stored.headers, stored.times.received):
                return _not_modified(headers)
            if request.method == "GET" and hdrs.RANGE in http.headers:
                partial = await self._partial(http, answer, headers)
                if partial is not None:
                    return partial
            headers[hdrs.ACCEPT_RANGES] = "bytes"
        has_body = request.method == "GET" and stored.status not in _BODILESS
        if isinstance(body, MemoryBody) and has_body and body.length <= SMALL_FILE:
            return web.Response(status=stored.status, reason=stored.reason, headers=headers, body=body.data)
        if body.length is not None and stored.status not in _BODILESS:
            headers[hdrs.CONTENT_LENGTH] = str(body.length)
        response = Streamed(status=stored.status, reason=stored.reason, headers=headers)
        if not has_body:
            return await _finished(http, response)
        chunks = self.streams.of(http, answer.reader, 0, body.length)
        return await self.streams.send(http, response, chunks)

    async def _send_passed(
        self, http: web.Request, request: EdgeRequest, origin: OriginResponse, outcome: Outcome
    ) -> web.StreamResponse:
        headers = for_clients(origin.headers)
        if origin.length is not None:
            headers[hdrs.CONTENT_LENGTH] = str(origin.length)
        if request.token is not None:
            keep_from_other_caches(headers)
        headers[hdrs.AGE] = str(fields.age_value(origin.headers.getall(hdrs.AGE, [])))
        headers["Cache-Status"] = fields.cache_status(outcome)
        if origin.status == 200 and selection.is_not_modified(http.headers, origin.headers, self.clock()):
            return _not_modified(headers)
        response = Streamed(status=origin.status, reason=origin.reason, headers=headers)
        if request.method == "HEAD" or origin.status in _BODILESS:
            return await _finished(http, response)
        return await self.streams.send(http, response, origin.chunks())

    def _fields(self, request: EdgeRequest, answer: FromStore) -> CIMultiDict[str]:
        stored = answer.stored
        headers = stored.client_fields.copy()
        if stored.policy.hidden_fields and not answer.is_new:
            for name in stored.policy.hidden_fields:
                headers.popall(name, None)
        if request.token is not None:
            keep_from_other_caches(headers)
        headers[hdrs.AGE], headers["Cache-Status"] = answer.age_and_status(self.clock())
        return headers

    async def _partial(
        self, http: web.Request, answer: FromStore, headers: CIMultiDict[str]
    ) -> web.StreamResponse | None:
        """Return 206 or 416, or None if the whole object is the answer (RFC 9110 section 14.2)."""
        length, stored = answer.stored.body.length, answer.stored.headers
        # Representations share their date, so a date does not identify one.
        negotiated = "accept-encoding" in stored.get(hdrs.VARY, "").lower()
        modified = None if negotiated else stored.get(hdrs.LAST_MODIFIED)
        if length is None or not http_fields.range_applies(
            http.headers.get(hdrs.IF_RANGE), stored.get(hdrs.ETAG), modified
        ):
            return None
        try:
            spans = http_fields.requested_ranges(http.headers[hdrs.RANGE], length)
        except http_fields.UnsatisfiableError:
            headers[hdrs.CONTENT_RANGE] = http_fields.content_range(None, length)
            headers.popall(hdrs.CONTENT_TYPE, None)
            return web.Response(status=416, headers=headers)
        if spans is None:
            return None
        if len(spans) == 1:
            headers[hdrs.CONTENT_RANGE] = http_fields.content_range(spans[0], length)
            headers[hdrs.CONTENT_LENGTH] = str(spans[0].length)
            chunks = self.streams.of(http, answer.reader, spans[0].first, spans[0].length)
        else:
            boundary = self.random_bytes(16).hex()
            chunks = self.streams.multipart(http, answer.reader, spans, length, headers, boundary)
        return await self.streams.send(http, Streamed(status=206, headers=headers), chunks)


def empty(
    status: HTTPStatus, outcome: Outcome = Outcome.REFUSED, headers: dict[str, str] | None = None
) -> web.Response:
    """Return an answer of the edge itself, without a body."""
    merged = {**ALWAYS, hdrs.SERVER: SERVER, "Cache-Status": fields.cache_status(outcome), **(headers or {})}
    return web.Response(status=status, headers=merged)


def failure(status: int, sentence: str, retry_after: str | None = None) -> web.Response:
    """Return the answer to an internal failure: the error's status, or 500 (the contract, "Static objects with
    external storage")."""
    headers = {**ALWAYS, hdrs.SERVER: SERVER, "Cache-Status": fields.cache_status(Outcome.FAILED)}
    headers[hdrs.CACHE_CONTROL] = "no-store"
    if retry_after is not None:
        headers[hdrs.RETRY_AFTER] = retry_after
    return web.Response(status=status, headers=headers, text=f"{sentence}\n")


def options(preflight: bool) -> web.Response:
    """Return the answer to a CORS preflight, or the permitted methods for any other OPTIONS."""
    if not preflight:
        return empty(HTTPStatus.OK, headers={hdrs.ALLOW: ALLOWED_METHODS})
    return empty(
        HTTPStatus.OK,
        headers={
            hdrs.ACCESS_CONTROL_ALLOW_METHODS: ALLOWED_METHODS,
            hdrs.ACCESS_CONTROL_ALLOW_HEADERS: (
                "If-Modified-Since, If-None-Match, If-Range, Range, X-Csrf-Token, X-Requested-With"
            ),
            hdrs.ACCESS_CONTROL_MAX_AGE: "86400",
        },
    )


def _not_modified(headers: CIMultiDict[str]) -> web.Response:
    """Return 304 without the fields that describe a body (RFC 9110 section 15.4.5)."""
    for name in http_fields.CONTENT_FIELDS:
        headers.popall(name, None)
    return web.Response(status=304, headers=headers)


async def _finished(http: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    await response.prepare(http)
    await response.write_eof()
    return response
