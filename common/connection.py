"""One client's connection: what its client may take its time for, and what not."""

import asyncio
import fcntl
import math
import socket
import struct
import termios
from typing import TYPE_CHECKING, Final, cast

from aiohttp import web

from common.client_address import one_client
from common.heads import REFUSED_SECONDS, Reader

if TYPE_CHECKING:
    from common.connections import Connections

#: What `body_timeout` asks of a request's body, in bytes.
BODY_PROGRESS: Final = 64 * 1024
#: Bytes that are read, and thrown away, of a body that nobody wanted, so that its sender gets to read the answer.
UNWANTED_BYTES: Final = 16 * 1024 * 1024
#: A body of so many bytes is rather read than the connection closed when nobody wanted it.
UNREAD_BYTES: Final = 64 * 1024
#: Seconds that a closed connection may take to say good-bye, where nothing is unsent (TLS waits for the other side).
GOODBYE_SECONDS: Final = 1.0

_INT = struct.Struct("=i")


class BodyTooSlow(TimeoutError):
    """The client does not send the body that it has announced; raised by reading it. The answer is 408."""


class Connection(asyncio.Protocol):
    """One connection. What it receives goes to aiohttp's `reader`, which there is once the connection is accepted.

    Between requests there is a moment by which the next head, or the rest of it, has to be there. While a request is
    answered its body has to make progress, unless it is us who do not read. At all times the client has to take
    something of what is sent, if there is anything.
    """

    reader: web.RequestHandler

    def __init__(self, connections: "Connections", server: web.Server) -> None:
        self._all = connections
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._is_refused = False
        self._deadline = self._loop.time() + connections.settings.header_timeout
        self._untaken = 0
        self._last_taken = 0.0
        #: Whether a request's body is wanted and has not ended; what came since `_body_since`.
        self._awaits_body = False
        self._body_bytes = 0
        self._body_since = 0.0
        self._http: web.BaseRequest | None = None
        self._closed_at = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A client has connected."""
        self._transport = cast("asyncio.Transport", transport)
        self._socket: socket.socket = transport.get_extra_info("socket")
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if isinstance(peer, tuple) else ""
        self.client = one_client(self.address)
        refusal = self._all.refusal(self)
        if refusal is not None:
            self._refuse(refusal)
            return
        self.reader = Reader(self._server, loop=self._loop, **self._server._kwargs)
        self._all.opened(self)
        self.reader.connection_made(transport)

    def _refuse(self, refusal: bytes) -> None:
        """Closing at once would reset the connection, and the client might never read the refusal."""
        self._is_refused = True
        if self._all.refused(+1):
            self._transport.abort()
            return
        self._transport.write(refusal)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(REFUSED_SECONDS, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection has gone."""
        if self._is_refused:
            self._all.refused(-1)
            return
        self._all.closed(self)
        self.reader.connection_lost(exc)
        self._http = None

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        if self._is_refused:
            return
        self._body_bytes += len(data)
        if self._deadline < math.inf:
            if self._awaits_body:  # it has been answered without
                if self._body_bytes > UNWANTED_BYTES:
                    self._transport.abort()
            else:
                latest = self._loop.time() + self._all.settings.header_timeout
                self._deadline = min(self._deadline, latest)
        self.reader.data_received(data)

    def eof_received(self) -> bool | None:
        """The client sends no more, and has gone: most do not close half of a connection."""
        if not self._is_refused:
            self.reader.eof_received()
        return None

    def pause_writing(self) -> None:
        """The client does not take what is sent."""
        self._last_taken = self._loop.time()
        if not self._is_refused:
            self.reader.pause_writing()

    def resume_writing(self) -> None:
        """The client has taken most of it."""
        self._last_taken = self._loop.time()
        if not self._is_refused:
            self.reader.resume_writing()

    def begin(self, http: web.BaseRequest) -> None:
        """A request of this connection is being answered."""
        self._deadline = math.inf
        if http.body_exists:
            self._http = http
            self._awaits_body = True
            self._body_bytes = 0
            self._body_since = self._loop.time()
            http.content.on_eof(self._body_has_come)

    def _body_has_come(self) -> None:
        self._awaits_body = False
        self._http = None
        if self._deadline < math.inf:  # nobody wanted it
            self._body_bytes = 0

    def end(self) -> None:
        """It is not being answered any more."""
        self._deadline = self._loop.time() + self._all.settings.keepalive_timeout
        self._body_bytes = 0
        if self._http is not None and isinstance(self._http.content.exception(), BodyTooSlow):
            # What still comes is read for a while, as of any body that nobody wants: closing at once would reset the
            # connection, and the client might never read why.
            self._http.content._exception = None

    def look(self, now: float) -> None:
        """Ends the connection if it is past its time."""
        untaken = self.untaken()
        if untaken != self._untaken:
            self._untaken, self._last_taken = untaken, now
        if untaken:
            if now - self._last_taken > self._all.settings.send_timeout:
                self._transport.abort()
        elif self._deadline < now:
            self.reader.force_close()
        if self._awaits_body and self._http is not None and self._deadline == math.inf:
            self._look_at_body(self._http, now)

    def close_if_idle(self, now: float) -> None:
        """Closes the connection where no request has begun to come, and no answer is under way."""
        if self._closed_at < math.inf:
            if now - self._closed_at > GOODBYE_SECONDS and not self.untaken():
                self.abort()
        elif self.reader._waiter is not None and not self._body_bytes:
            self._closed_at = now
            self.reader.force_close()

    def cut_off(self) -> "asyncio.Task[None] | None":
        """Cancels the request that is being answered; its task."""
        task = self.reader._task_handler
        if task is not None:
            task.cancel()
        return task

    def abort(self) -> None:
        """Closes the connection whatever has not been sent."""
        self._transport.abort()

    def _look_at_body(self, http: web.BaseRequest, now: float) -> None:
        """Where its handler does not read, the client cannot send; and it does not before it has been asked to."""
        waits_for_us = not self._transport.is_reading() or WAITS in http
        if waits_for_us or self._body_bytes >= BODY_PROGRESS:
            self._body_bytes, self._body_since = 0, now
        elif now - self._body_since > self._all.settings.body_timeout:
            if http.content.exception() is None:
                http.content.set_exception(BodyTooSlow("The body of the request does not come."))
                self._body_since = now
            else:
                self._transport.abort()

    def untaken(self) -> int:
        """Bytes that the client has not taken, those in the kernel included."""
        waiting = self._transport.get_write_buffer_size()
        try:
            in_kernel = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        except (OSError, ValueError):  # closed just now
            return waiting
        return int(_INT.unpack(in_kernel)[0]) + waiting


#: Of a request whose client waits for `100 Continue` before it sends the body.
WAITS = web.RequestKey("waits", bool)


async def ask_for_body(http: web.BaseRequest) -> None:
    """To be called before a body is read: tells a client that waits to be asked (RFC 9110 section 10.1.1)."""
    if http.pop(WAITS, False) and http.transport is not None and not http.transport.is_closing():
        http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
