"""The edge's client connections, which answer plain requests for bodies in memory at once.

Bodies that are both in memory and in a file go from the page cache to the socket, which saves a copy.
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

#: Smaller bodies are copied together with their head, in a single system call. For them, examining the file and
#: sending head and pages separately would cost more than the copy.
SENDFILE_BYTES: Final = 128 * 1024
#: Maximum number of files that are held open.
MAX_OPEN: Final = 128


class OpenFile:
    """The open file of a body, which is closed when this object is no longer referenced. The constructor raises
    `BodyGoneError`."""

    __slots__ = ("descriptor", "identity")

    def __init__(self, body: FileBody) -> None:
        self.descriptor = body.descriptor()
        self.identity = body.identity

    def __del__(self) -> None:
        if hasattr(self, "descriptor"):
            os.close(self.descriptor)

    def is_as_it_was(self) -> bool:
        """Return whether the file has been neither changed nor deleted."""
        return identity(os.fstat(self.descriptor)) == self.identity


class OpenFiles:
    """The open files of bodies that are requested repeatedly."""

    def __init__(self) -> None:
        self._files: cachetools.LRUCache[Path, OpenFile] = cachetools.LRUCache(MAX_OPEN)

    def get(self, body: FileBody) -> OpenFile:
        """Return a body's open file. Raise `BodyGoneError` if it has changed or no longer exists."""
        file = self._files.get(body.path)
        if file is None or file.identity != body.identity:
            file = self._files[body.path] = OpenFile(body)
        elif not file.is_as_it_was():
            del self._files[body.path]
            raise BodyGoneError
        return file

    def let_deleted_go(self) -> None:
        """Close files that were deleted, so that their space becomes free."""
        for path, file in list(self._files.items()):
            if not file.is_as_it_was():
                self._files.pop(path, None)


class BorrowedSocket(socket.socket):
    """The socket of a transport; only the transport may close it."""

    def __del__(self) -> None:
        self.detach()


class Sink:
    """The sending side of one client's connection. `transport` sends from memory the bytes that the socket does not
    accept at once.

    Use it only while the transport is open.
    """

    def __init__(self, transport: asyncio.Transport, files: OpenFiles) -> None:
        self._transport = transport
        self._files = files
        self._socket: socket.socket = transport.get_extra_info("socket")
        self._borrowed: BorrowedSocket | None = None
        self._is_plain = transport.get_extra_info("sslcontext") is None

    @property
    def takes_files(self) -> bool:
        """Return whether files can be sent directly to the socket."""
        return self._is_plain

    def limit_buffer(self, size: int | None) -> None:
        """Set how many bytes may wait before the transport says that the client is too slow. None restores its
        default."""
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=size)

    def send_file(self, descriptor: int, offset: int, size: int) -> int:
        """Send part of a file and return how many bytes the kernel accepted: none if something waits, or if the
        transport has to find out why not."""
        if self._transport.is_closing() or self._transport.get_write_buffer_size():
            return 0
        try:
            return os.sendfile(self._socket.fileno(), descriptor, offset, size)
        except OSError:
            return 0

    def send(self, head: bytes, body: MemoryBody) -> None:
        """Send head and body. The transport sends the rest later if the socket does not accept everything."""
        waiting = self._transport.get_write_buffer_size() > 0
        if body.file is None or body.length < SENDFILE_BYTES or waiting or not self._is_plain:
            self._transport.writelines((head, body.data))
            return
        sent = self._send_file_body(head, body.file)
        if sent < len(head):
            self._transport.writelines((head[sent:], body.data))
        elif sent < len(head) + body.length:
            self._transport.write(memoryview(body.data)[sent - len(head) :])

    def _send_file_body(self, head: bytes, body: FileBody) -> int:
        """Return how many bytes of head and body the kernel accepted. The transport will notice a disconnected
        client."""
        if self._borrowed is None:
            sock = self._socket
            self._borrowed = BorrowedSocket(sock.family, sock.type, sock.proto, fileno=sock.fileno())
        sent = 0
        try:
            file = self._files.get(body)
            sent = self._borrowed.send(head, socket.MSG_MORE)
            if sent == len(head):
                sent += os.sendfile(self._borrowed.fileno(), file.descriptor, 0, body.length)
        except (OSError, BodyGoneError):
            pass
        return sent


#: Seconds for which an idle connection stays open when its client has closed its side.
AFTER_EOF: Final = 0.5
#: Seconds in which an answer has to begin, or continue, once the client has closed its side, because most of these
#: clients have disconnected.
UNANSWERED_SECONDS: Final = 2.0


class Connections(connections.Connections):
    """All connections of one edge process."""

    def __init__(self, plain: PlainHits, settings: ClientSettings) -> None:
        super().__init__(settings)
        self.plain = plain
        self.files = OpenFiles()
        #: The number of connections so far, and of those that were refused because of a limit.
        self.accepted = self.turned_away = 0

    def trust(self, proxies: list[Network]) -> None:
        """Trust these proxies from now on."""
        self._proxies = proxies

    def opened(self, connection: connections.Connection) -> None:
        """Register and count a client that has connected."""
        self.accepted += 1
        super().opened(connection)

    def refusal(self, connection: connections.Connection) -> bytes | None:
        """Return the answer to a connection that is one too many, and count it."""
        refusal = super().refusal(connection)
        self.turned_away += refusal is not None
        return refusal

    def accept(self, server: web.Server) -> "Connection":
        """Return the protocol of a new connection, whose requests `server` reads."""
        return Connection(self, server)

    async def end_overdue(self, now: float) -> None:
        """Close connections that are past their deadline, and deleted files."""
        self.files.let_deleted_go()
        await super().end_overdue(now)

    def sink(self, http: web.Request) -> Sink:
        """Return the wire of a request's client. Raise `ConnectionError` if its connection has ended."""
        return cast("Connection", self.of(http)).sink

    def answered(self, http: web.Request) -> None:
        """Note that an answer is completely written. Raise `ConnectionError` if its connection has ended."""
        cast("Connection", self.of(http)).answered(http)


class Connection(connections.Connection):
    """One connection. aiohttp's reader gets all received bytes, except plain hits (see `PlainHits`): reads that are
    exactly one request head. Those are answered here, if the reader has answered everything before."""

    def __init__(self, all_: Connections, server: web.Server) -> None:
        super().__init__(all_, server)
        self._plain = all_.plain
        self._files = all_.files
        self._paused = False
        self._is_ending = False
        #: The request that is being answered.
        self._request: web.BaseRequest | None = None
        #: Whether the reader has answered all requests that it got.
        self._clear = True
        #: The only read since `_clear` became true.
        self._head: bytes | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept a client that has connected."""
        super().connection_made(transport)
        self.sink = Sink(self._transport, self._files)
        self._clear = not self._is_refused

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if self._clear and not self._paused and not self._transport.is_closing():
            answer = self._plain.answer(data, self.address)
            if answer is not None:
                self.sink.send(*answer)
                self._deadline = self._loop.time() + self._all.settings.keepalive_timeout
                return
        self._head = data if self._clear else None
        self._clear = False
        super().data_received(data)

    def eof_received(self) -> bool | None:
        """Keep the connection open for a while, so that a client that has closed its side still gets its answer, which
        TLS does not allow."""
        if self._is_refused:
            return None
        self.reader.eof_received()
        self._is_ending = not self._clear and self._transport.get_extra_info("sslcontext") is None
        if self._is_ending:
            self._loop.call_later(AFTER_EOF, self._close_when_idle)
            self._end_unanswered()
        return self._is_ending

    def _end_unanswered(self, before: tuple[web.BaseRequest, int] | None = None) -> None:
        """Close the connection if its request got no bytes since the last look, and none wait for the client."""
        if self._transport.is_closing():
            return
        now = None if self._request is None else (self._request, self._request.writer.output_size)
        if now is not None and now == before and not self.untaken():
            self.abort()
        else:
            self._loop.call_later(UNANSWERED_SECONDS, self._end_unanswered, now)

    def _close_when_idle(self) -> None:
        if self._deadline < math.inf:
            self.reader.force_close()

    def pause_writing(self) -> None:
        """Note that the client does not receive the sent bytes."""
        self._paused = True
        super().pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has received most of the sent bytes."""
        self._paused = False
        super().resume_writing()

    def begin(self, http: web.BaseRequest) -> None:
        """Note that a request of this connection is being answered."""
        super().begin(http)
        self._request = http

    def end(self) -> None:
        """Note that no request of this connection is being answered any more."""
        super().end()
        self._request = None
        if self._is_ending:
            self._loop.call_later(AFTER_EOF, self._close_when_idle)

    def answered(self, http: web.Request) -> None:
        """Note that the answer is completely written."""
        head, self._head = self._head, None
        if head is not None and _is_all_of(head, http):
            self._clear = True


def _is_all_of(head: bytes, http: web.Request) -> bool:
    """Return whether a request has no body and this read consists of its head."""
    request_line = f"{http.method} {http.raw_path} HTTP/".encode("utf-8", "surrogateescape")
    return (
        not http.body_exists
        and head.startswith(request_line)
        and head.endswith(b"\r\n\r\n")
        and head.count(b"\n") == len(http.raw_headers) + 2
    )
