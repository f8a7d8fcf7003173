"""Bodies that are in memory and in a file go from the page cache to the socket, which saves copying them."""

import asyncio
import fcntl
import os
import socket
import struct
import termios
from pathlib import Path
from typing import Final

import cachetools

from storage_edge.bodies import MemoryBody

#: Bodies smaller than this many bytes are copied, together with their head: that is one call to the kernel, not two.
LEAST: Final = 32 * 1024
#: Files that are held open.
MAX_OPEN: Final = 128
_INT = struct.Struct("=i")


class OpenFile:
    """A file's descriptor, closed when nobody holds this any more."""

    __slots__ = ("descriptor",)

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


_files: cachetools.LRUCache[Path, OpenFile] = cachetools.LRUCache(MAX_OPEN)


def _open(path: Path) -> OpenFile:
    file = _files.get(path)
    if file is None:
        file = _files[path] = OpenFile(path)
    return file


class Wire:
    """The way to one client. What the socket does not take at once, `transport` sends from memory."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._socket: socket.socket | None = None
        given = transport.get_extra_info("socket")
        if given is not None and transport.get_extra_info("sslcontext") is None:
            self._socket = socket.socket(given.family, given.type, given.proto, fileno=given.fileno())

    def close(self) -> None:
        """Leaves the socket to its transport; to be called before that has closed it."""
        if self._socket is not None:
            self._socket.detach()
            self._socket = None

    def send(self, head: bytes, body: MemoryBody) -> None:
        """Sends both; what has to wait is the transport's."""
        if body.file is None or body.length < LEAST or self._socket is None or self._holds_back():
            self._transport.writelines((head, body.data))
            return
        sent = _sent(self._socket, head, body)
        if sent < len(head):
            self._transport.writelines((head[sent:], body.data))
        elif sent < len(head) + body.length:
            self._transport.write(memoryview(body.data)[sent - len(head) :])

    def untaken(self) -> int:
        """Bytes that the client has not taken, those in the kernel included."""
        given = self._transport.get_extra_info("socket")
        answer = fcntl.ioctl(given.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        return int(_INT.unpack(answer)[0]) + self._transport.get_write_buffer_size()

    def _holds_back(self) -> bool:
        return self._transport.get_write_buffer_size() > 0


def _sent(to: socket.socket, head: bytes, body: MemoryBody) -> int:
    """How many bytes of both the kernel took; a client that has gone is the transport's to find out."""
    assert body.file is not None  # noqa: S101 - callers have looked
    sent = 0
    try:
        file = _open(body.file)
        sent = to.send(head, socket.MSG_MORE)
        if sent == len(head):
            sent += os.sendfile(to.fileno(), file.descriptor, 0, body.length)
    except OSError:
        pass
    return sent
