"""Bodies that are in memory and in a file go from the page cache to the socket, which saves copying them."""

import asyncio
import os
import socket
from pathlib import Path
from typing import Final

import cachetools

from storage_edge.tiers.bodies import BodyGoneError, FileBody, MemoryBody, identity

#: Bodies smaller than this many bytes are copied, together with their head: that is one call to the kernel, where a
#: look at the file, the head, and giving its pages away one by one cost more than copying does.
LEAST: Final = 128 * 1024
#: Files that are held open.
MAX_OPEN: Final = 128


class OpenFile:
    """A body's file, opened; closed when nobody holds this any more. Raises `BodyGoneError`."""

    __slots__ = ("descriptor", "identity")

    def __init__(self, body: FileBody) -> None:
        self.descriptor = body.descriptor()
        self.identity = body.identity

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def is_as_it_was(self) -> bool:
        """Whether it has neither been changed nor deleted."""
        return identity(os.fstat(self.descriptor)) == self.identity


class OpenFiles:
    """The files of bodies that are asked for again and again."""

    def __init__(self) -> None:
        self._files: cachetools.LRUCache[Path, OpenFile] = cachetools.LRUCache(MAX_OPEN)

    def get(self, body: FileBody) -> OpenFile:
        """A body's file, opened if it is not; raises `BodyGoneError` when it has changed or gone."""
        file = self._files.get(body.path)
        if file is None or file.identity != body.identity:
            file = self._files[body.path] = OpenFile(body)
        elif not file.is_as_it_was():
            del self._files[body.path]
            raise BodyGoneError
        return file

    def let_deleted_go(self) -> None:
        """Closes files that have been evicted, so that their space becomes free."""
        for path, file in list(self._files.items()):
            if not file.is_as_it_was():
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

    @property
    def takes_files(self) -> bool:
        """Whether files may go to the socket as they are."""
        return self._is_plain

    def hold(self, size: int | None) -> None:
        """The transport says that the client takes no more when more than so many bytes wait; None: when it likes."""
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=size)

    def send_file(self, descriptor: int, offset: int, size: int) -> int:
        """How many bytes of a file the kernel took: none while anything waits, or where the transport has to find out
        why not.
        """
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return 0
        try:
            return os.sendfile(self._socket.fileno(), descriptor, offset, size)
        except OSError:
            return 0

    def send(self, head: bytes, body: MemoryBody) -> None:
        """Sends both; what has to wait is the transport's."""
        waiting = self._transport.get_write_buffer_size() > 0
        if body.file is None or body.length < LEAST or waiting or not self._is_plain:
            self._transport.writelines((head, body.data))
            return
        sent = self._sent(head, body.file)
        if sent < len(head):
            self._transport.writelines((head[sent:], body.data))
        elif sent < len(head) + body.length:
            self._transport.write(memoryview(body.data)[sent - len(head) :])

    def _sent(self, head: bytes, body: FileBody) -> int:
        """How many bytes of both the kernel took; a client that has gone is the transport's to find out."""
        if self._borrowed is None:
            given = self._socket
            self._borrowed = BorrowedSocket(given.family, given.type, given.proto, fileno=given.fileno())
        sent = 0
        try:
            file = self._files.get(body)
            sent = self._borrowed.send(head, socket.MSG_MORE)
            if sent == len(head):
                sent += os.sendfile(self._borrowed.fileno(), file.descriptor, 0, body.length)
        except (OSError, BodyGoneError):
            pass
        return sent
