"""Client connections of the edge: plain requests for what is in memory are answered at once.

Bodies that are in memory and in a file go from the page cache to the socket, which saves copying them.
"""

import asyncio
import math
import os
import socket
from pathlib import Path
from typing import Final, cast

import cachetools
from aiohttp import web

from common import connections
from common.client_address import Network
from common.client_settings import ClientSettings
from storage_edge.client.memory_hits import PlainHits
from storage_edge.storage.bodies import BodyGoneError, FileBody, MemoryBody, identity

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


#: Seconds that a connection without a request at work stays open when its client has closed its side.
AFTER_EOF: Final = 0.5
#: Seconds in which an answer has to begin, or go on, once the client has closed its side: most clients have gone then.
UNANSWERED_SECONDS: Final = 2.0


class Connections(connections.Connections):
    """All connections of one edge process."""

    def __init__(self, plain: PlainHits, settings: ClientSettings) -> None:
        super().__init__(settings)
        self.plain = plain
        self.files = OpenFiles()
        #: Connections so far, and those that were one too many.
        self.accepted = self.turned_away = 0

    def trust(self, proxies: list[Network]) -> None:
        """From now on these are believed whom they speak for."""
        self._proxies = proxies

    def opened(self, connection: connections.Connection) -> None:
        """Counts it as well."""
        self.accepted += 1
        super().opened(connection)

    def refusal(self, connection: connections.Connection) -> bytes | None:
        """Counts it as well."""
        refusal = super().refusal(connection)
        self.turned_away += refusal is not None
        return refusal

    def accept(self, server: web.Server) -> "Connection":
        """The protocol of a new connection, whose requests `server` reads."""
        return Connection(self, server)

    async def look(self, now: float) -> None:
        """Lets deleted files go as well."""
        self.files.let_deleted_go()
        await super().look(now)

    def wire(self, http: web.Request) -> Wire:
        """The way to the client of a request; raises ConnectionError when its connection has gone."""
        return cast("Connection", self.of(http)).wire

    def answered(self, http: web.Request) -> None:
        """All of an answer has been written; raises ConnectionError when its connection has gone."""
        cast("Connection", self.of(http)).answered(http)


class Connection(connections.Connection):
    """One connection. All that it receives goes to aiohttp's reader, but for plain hits (see `PlainHits`): whole reads
    that are one request head each. They are answered here only while the reader has nothing that it has not answered.
    """

    def __init__(self, all_: Connections, server: web.Server) -> None:
        super().__init__(all_, server)
        self._plain = all_.plain
        self._files = all_.files
        self._paused = False
        self._is_ending = False
        #: The request that is being answered.
        self._asked: web.BaseRequest | None = None
        #: Whether the reader has answered all that it was given.
        self._clear = True
        #: The only read since the connection was clear.
        self._head: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        super().connection_made(transport)
        self.wire = Wire(self._transport, self._files)
        self._clear = not self._is_refused

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._clear and not self._paused and not self._transport.is_closing():
            answer = self._plain.answer(data, self.address)
            if answer is not None:
                self.wire.send(*answer)
                self._deadline = self._loop.time() + self._all.settings.keepalive_timeout
                return
        self._head = data if self._clear else None
        self._clear = False
        super().data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more. What it has asked for is still answered, which TLS does not allow."""
        if self._is_refused:
            return None
        self.reader.eof_received()
        self._is_ending = not self._clear and self._transport.get_extra_info("sslcontext") is None
        if self._is_ending:
            self._loop.call_later(AFTER_EOF, self._close_when_idle)
            self._end_unanswered()
        return self._is_ending

    def _end_unanswered(self, before: tuple[web.BaseRequest, int] | None = None) -> None:
        """Close the connection if nothing has come for a request since the last look, nor waits for the client."""
        if self._transport.is_closing():
            return
        now = None if self._asked is None else (self._asked, self._asked.writer.output_size)
        if now is not None and now == before and not self.untaken():
            self.abort()
        else:
            self._loop.call_later(UNANSWERED_SECONDS, self._end_unanswered, now)

    def _close_when_idle(self) -> None:
        if self._deadline < math.inf:
            self.reader.force_close()

    def pause_writing(self) -> None:
        """The client does not take what is sent."""
        self._paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._paused = False
        super().resume_writing()

    def begin(self, http: web.BaseRequest) -> None:
        """A request of this connection is being answered."""
        super().begin(http)
        self._asked = http

    def end(self) -> None:
        """No request of this connection is being answered any more."""
        super().end()
        self._asked = None
        if self._is_ending:
            self._loop.call_later(AFTER_EOF, self._close_when_idle)

    def answered(self, http: web.Request) -> None:
        """All of the answer has been written."""
        head, self._head = self._head, None
        if head is not None and _is_all_of(head, http):
            self._clear = True


def _is_all_of(head: bytes, http: web.Request) -> bool:
    """Whether a request has no body, and all lines of this read are its own."""
    request_line = f"{http.method} {http.raw_path} HTTP/".encode("utf-8", "surrogateescape")
    return (
        not http.body_exists
        and head.startswith(request_line)
        and head.endswith(b"\r\n\r\n")
        and head.count(b"\n") == len(http.raw_headers) + 2
    )
