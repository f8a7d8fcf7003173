"""Bodies that are sent in pieces, at the pace of their clients."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Final

import attrs
from aiohttp import hdrs, web
from multidict import CIMultiDict

from common import http_fields
from storage_edge.cache.origin_response import OriginError
from storage_edge.client.connections import Connections
from storage_edge.client.sendfile import Wire
from storage_edge.tiers import bodies
from storage_edge.tiers.bodies import BLOCK, FilePart, Reader, TruncatedBodyError

#: While more bodies than this are being sent, their pieces are small: what a client has not taken of its piece
#: stays in memory.
CROWD: Final = 32
CROWD_PIECE: Final = 16 * 1024
#: Bytes that wait in memory for a client that takes no more of a file: when they have left, it takes more.
WAITING_PIECE: Final = 1024

Pieces = AsyncGenerator[bytes | memoryview | FilePart, None]


class Streamed(web.StreamResponse):
    """Its head leaves together with the first piece."""

    _send_headers_immediately = False


@attrs.define
class Streams:
    """Sends bodies on `connections`. Those in files go from there to the socket, where that is possible."""

    connections: Connections
    _sending: int = 0

    async def send(
        self, http: web.Request, response: web.StreamResponse, pieces: Pieces
    ) -> web.StreamResponse:
        """Sends piece by piece. The first one is awaited before the head is sent, so that a body that breaks at once
        becomes an error rather than a broken answer. One that breaks later, or that the client does not take, breaks
        the connection and raises ConnectionError.
        """
        self._sending += 1
        wire = self.connections.wire(http)
        try:
            piece = await anext(pieces, None)
            await response.prepare(http)
            if self._sending > CROWD:
                wire.hold(CROWD_PIECE)
            while piece is not None:
                if isinstance(piece, FilePart):
                    await _send_part(http, response, wire, piece)
                else:
                    await response.write(piece)
                await http.writer.drain()
                piece = await anext(pieces, None)
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
            await pieces.aclose()
            wire.hold(None)
        await response.write_eof()
        return response

    async def of(self, http: web.Request, reader: Reader, first: int, length: int | None) -> Pieces:
        """`length` bytes from `first`, or all of them, which are not known to be in a file before they have come."""
        files, sent = length is not None and self.connections.wire(http).takes_files, 0
        while length is None or sent < length:
            if files and length is not None:
                part = await reader.part(first + sent, length - sent)
                if part is not None:
                    sent += part.size
                    yield part
                    continue
            most = BLOCK if self._sending < CROWD else CROWD_PIECE
            piece = await reader.read(first + sent, most if length is None else min(most, length - sent))
            if not piece:
                if length is None:
                    return
                raise TruncatedBodyError
            sent += len(piece)
            yield piece

    def multipart(
        self,
        http: web.Request,
        reader: Reader,
        spans: list[http_fields.Span],
        length: int,
        headers: CIMultiDict[str],
        boundary: str,
    ) -> Pieces:
        """multipart/byteranges (RFC 9110 section 14.6); sets Content-Type and Content-Length of the whole.

        No body may hold the boundary, not even one that somebody has made to hold it.
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

        async def pieces() -> Pieces:
            for span, head in zip(spans, heads, strict=True):
                yield head.encode()
                async for piece in self.of(http, reader, span.first, span.length):
                    yield piece
                yield b"\r\n"
            yield end.encode()

        return pieces()


async def _send_part(http: web.Request, response: web.StreamResponse, wire: Wire, part: FilePart) -> None:
    """Whoever else is to be served gets his turn after it."""
    wire.hold(0)  # the transport is done with what it has before the socket is given more
    http.writer.send_headers()
    offset, end = part.offset, part.offset + part.size
    while offset < end:
        sent = wire.send_file(part.descriptor, offset, end - offset)
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
    """Resets the connection, so that no client takes a part for the whole."""
    if http.transport is not None:
        http.transport.abort()
