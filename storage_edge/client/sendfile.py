"""Bodies that are in memory and in a file go from the page cache to the socket, which saves copying them."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Final

import cachetools

from storage_edge.tiers.bodies import MemoryBody

#: Bodies smaller than this many bytes are copied, together with their head: that is one call to the kernel, not two.
LEAST: Final = 32 * 1024
#: Files that are held open.
MAX_OPEN: Final = 128


class OpenFile:
    """A file's descriptor, closed when nobody holds this any more."""

    __slots__ = ("descriptor",)

    def __init__(self, path: Path) -> None:
        self.descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)


class OpenFiles:
    """The files of bodies that are asked for again and again."""

    def __init__(self) -> None:
        self._files: cachetools.LRUCache[Path, OpenFile] = cachetools.LRUCache(MAX_OPEN)

    def get(self, path: Path) -> OpenFile:
        """A file, opened if it is not; raises OSError."""
        file = self._files.get(path)
        if file is None:
            file = self._files[path] = OpenFile(path)
        return file

    def let_deleted_go(self) -> None:
        """Closes files that have been evicted, so that their space becomes free."""
        for path, file in list(self._files.items()):
            if os.fstat(file.descriptor).st_nlink == 0:
                self._files.pop(path, None)


class BorrowedSocket(socket.socket):
    """A transport's socket, which only the transport closes."""

    def __del__(self) -> None:
        self.detach()


class Wire:
    """The way to one client. What the socket does not take at once, `transport` sends from memory.

    Only for use while the transport is open.
    """

    def __init__(self, transport: asyncio.Transport, files: OpenFiles) -> None:
        self._transport = transport
        self._files = files
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._borrowed: BorrowedSocket | None = None
        self._is_plain = transport.get_extra_info("sslcontext") is None

    def send(self, head: bytes, body: MemoryBody) -> None:
        """Sends both; what has to wait is the transport's."""
        waiting = self._transport.get_write_buffer_size() > 0
        if body.file is None or body.length < LEAST or waiting or not self._is_plain:
            self._transport.writelines((head, body.data))
            return
        sent = self._sent(head, body.file, body.length)
        if sent < len(head):
            self._transport.writelines((head[sent:], body.data))
        elif sent < len(head) + body.length:
            self._transport.write(memoryview(body.data)[sent - len(head) :])

    def _sent(self, head: bytes, path: Path, length: int) -> int:
        """How many bytes of both the kernel took; a client that has gone is the transport's to find out."""
        if self._borrowed is None:
            given = self._socket
            self._borrowed = BorrowedSocket(given.family, given.type, given.proto, fileno=given.fileno())
        sent = 0
        try:
            file = self._files.get(path)
            sent = self._borrowed.send(head, socket.MSG_MORE)
            if sent == len(head):
                sent += os.sendfile(self._borrowed.fileno(), file.descriptor, 0, length)
        except OSError:
            pass
        return sent
