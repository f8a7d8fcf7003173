"""Ends connections where a client does not expect it."""

import socket
import struct
from typing import Any, NoReturn

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter

#: `SO_LINGER`: to close is to reset.
_AT_ONCE = struct.pack("ii", 1, 0)


def reset(request: web.Request) -> NoReturn:
    """Before there is an answer."""
    if request.transport is not None:
        connection = request.transport.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _AT_ONCE)
        request.transport.abort()
    raise ConnectionResetError


class CutWriter(AbstractStreamWriter):
    """Writes so many bytes of an answer's body and ends the connection; an answer that is shorter is whole."""

    def __init__(self, request: web.Request, most: int) -> None:
        self._request = request
        self._writer = request.writer
        self._left = most

    @property
    def output_size(self) -> int:  # type: ignore[override]
        """Bytes that have been written."""
        return self._writer.output_size

    async def write(self, chunk: bytes | bytearray | memoryview) -> None:
        sent = chunk[: self._left]
        self._left -= len(sent)
        await self._writer.write(sent)
        if len(sent) < len(chunk):
            await self._end()

    async def write_eof(self, chunk: bytes = b"") -> None:
        if len(chunk) > self._left:
            await self.write(chunk)
        await self._writer.write_eof(chunk)

    async def _end(self) -> NoReturn:
        """What has been written still reaches the client."""
        self._writer.send_headers()
        await self._writer.drain()
        if self._request.transport is not None:
            self._request.transport.close()
        raise ConnectionResetError

    async def write_headers(self, status_line: str, headers: Any) -> None:
        await self._writer.write_headers(status_line, headers)

    def send_headers(self) -> None:
        self._writer.send_headers()

    async def drain(self) -> None:
        await self._writer.drain()

    def enable_compression(self, encoding: str = "deflate", strategy: int | None = None) -> None:
        self._writer.enable_compression(encoding, strategy)

    def enable_chunking(self) -> None:
        self._writer.enable_chunking()
