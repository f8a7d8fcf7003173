"""Client connections: requests that were met before are answered at once, and clients that hold a connection for
nothing lose it.
"""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from typing import Final, cast

from aiohttp import ClientConnectionResetError, web

from storage_edge.client.memory_hits import MemoryHit, RepeatedHits
from storage_edge.client.sendfile import OpenFiles, Wire

#: Looks at the connections per timeout.
LOOKS: Final = 4
#: Seconds that a connection without a request at work stays open when its client has closed its side.
AFTER_EOF: Final = 0.5


class Connections:
    """All connections of one edge process.

    Times are seconds: a connection may wait `header_timeout` for the first request or the rest of a request's head,
    `keepalive_timeout` for the next request, and `send_timeout` for the client to take anything of what is sent.
    """

    def __init__(
        self, repeated: RepeatedHits, *, header_timeout: float, keepalive_timeout: float, send_timeout: float
    ) -> None:
        self.repeated = repeated
        self.files = OpenFiles()
        self.header_timeout = header_timeout
        self.keepalive_timeout = keepalive_timeout
        self.send_timeout = send_timeout
        self._open: dict[object, Connection] = {}
        self._none_open: asyncio.Event | None = None

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def accept(self, server: web.Server) -> "Connection":
        """The protocol of a new connection, whose requests `server` reads."""
        return Connection(self, server())

    def opened(self, connection: "Connection") -> None:
        """A client has connected."""
        self._open[connection.reader] = connection

    def closed(self, connection: "Connection") -> None:
        """A connection has gone."""
        self._open.pop(connection.reader, None)
        if not self._open and self._none_open is not None:
            self._none_open.set()

    @contextlib.contextmanager
    def at_work(self, http: web.Request) -> Iterator["Connection"]:
        """While a request is answered; raises ConnectionError when its connection has gone."""
        connection = self._open.get(http.protocol)
        if connection is None:
            raise ClientConnectionResetError
        connection.begin()
        try:
            yield connection
        finally:
            connection.end()

    async def watch(self) -> None:
        """Closes connections that are past their time, until cancelled."""
        shortest = min(self.header_timeout, self.keepalive_timeout, self.send_timeout)
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(shortest / LOOKS)
            self.files.let_deleted_go()
            for connection in list(self._open.values()):
                connection.look(loop.time())

    async def all_closed(self, within: float) -> None:
        """Waits until closing connections have sent what they still hold."""
        self._none_open = asyncio.Event()
        if self._open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_open.wait(), within)


class Connection(asyncio.Protocol):
    """One connection. All that it receives goes to aiohttp's `reader`, but for requests that are known.

    Known are whole reads that were one request head each, byte for byte the same as now (see `RepeatedHits`). They are
    answered here only while `reader` has nothing that it has not answered.
    """

    def __init__(self, connections: Connections, reader: web.RequestHandler) -> None:
        self.reader = reader
        self._all = connections
        self._loop = asyncio.get_running_loop()
        self._paused = False
        self._is_ending = False
        #: Whether the reader has answered all that it was given.
        self._clear = True
        #: The only read since the connection was clear.
        self._head: bytes | None = None
        self._deadline = self._loop.time() + connections.header_timeout
        self._untaken = 0
        self._last_progress = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._wire = Wire(self._transport, self._all.files)
        self._all.opened(self)
        self.reader.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has gone."""
        self._all.closed(self)
        self.reader.connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._clear and not self._paused and not self._transport.is_closing():
            answer = self._all.repeated.answer(data, self._transport)
            if answer is not None:
                self._wire.send(*answer)
                self._deadline = self._loop.time() + self._all.keepalive_timeout
                return
        self._head = data if self._clear else None
        self._clear = False
        if self._deadline < math.inf:
            self._deadline = min(self._deadline, self._loop.time() + self._all.header_timeout)
        self.reader.data_received(data)

    def eof_received(self) -> bool:
        """The client sends no more. What it has asked for is still answered, which TLS does not allow."""
        self.reader.eof_received()
        self._is_ending = not self._clear and self._transport.get_extra_info("sslcontext") is None
        if self._is_ending:
            self._loop.call_later(AFTER_EOF, self._close_when_idle)
        return self._is_ending

    def _close_when_idle(self) -> None:
        if self._deadline < math.inf:
            self.reader.force_close()

    def pause_writing(self) -> None:
        """The client does not take what is sent."""
        self._paused = True
        self._last_progress = self._loop.time()
        self.reader.pause_writing()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._paused = False
        self._last_progress = self._loop.time()
        self.reader.resume_writing()

    def begin(self) -> None:
        """A request of this connection is being answered."""
        self._deadline = math.inf

    def end(self) -> None:
        """It is not being answered any more."""
        self._deadline = self._loop.time() + self._all.keepalive_timeout
        if self._is_ending:
            self._loop.call_later(AFTER_EOF, self._close_when_idle)

    def answered(self, http: web.Request, response: web.StreamResponse) -> None:
        """All of the answer has been written."""
        head, self._head = self._head, None
        if head is not None and _is_all_of(head, http):
            self._clear = True
            if isinstance(response, MemoryHit):
                self._all.repeated.learn(head, response.request)

    def look(self, now: float) -> None:
        """Ends the connection if it is past its time."""
        untaken = self._wire.untaken()
        if untaken != self._untaken:
            self._untaken, self._last_progress = untaken, now
        if untaken:
            if now - self._last_progress > self._all.send_timeout:
                self._transport.abort()
        elif self._deadline < now:
            self.reader.force_close()


def _is_all_of(head: bytes, http: web.Request) -> bool:
    """Whether a request has no body, and all lines of this read are its own."""
    request_line = f"{http.method} {http.raw_path} HTTP/".encode("utf-8", "surrogateescape")
    return (
        not http.body_exists
        and head.startswith(request_line)
        and head.endswith(b"\r\n\r\n")
        and head.count(b"\n") == len(http.raw_headers) + 2
    )
