"""Client connections: refused request heads, time limits for clients, and how many connections there may be."""

import asyncio
import contextlib
import fcntl
import functools
import math
import re
import socket
import struct
import termios
from collections import Counter
from typing import Final, cast

import orjson
from aiohttp import ClientConnectionResetError, HttpVersion10, HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_exceptions import BadStatusLine, LineTooLong

from common.client_address import client_of, is_in, networks, one_client
from common.client_settings import ClientSettings

#: Seconds for which a refused connection stays open, so that its client can read the reason.
REFUSED_SECONDS: Final = 1.0

_REASONS: Final = {
    400: "Bad Request",
    414: "Request-URI Too Long",
    431: "Request Header Fields Too Large",
    505: "HTTP Version Not Supported",
}
#: RFC 9110 section 7.2, RFC 3986 section 3.2.2.
_HOST = re.compile(rb"(?:\[[\w.:%~-]+\]|[\w.~!$&'()*+,;=%-]*)(?::\d*)?", re.ASCII)


@functools.lru_cache(maxsize=1024)
def is_host(value: bytes) -> bool:
    """Return whether a value of `Host` is empty, or a host with or without a port. The result is cached: each
    request has one."""
    return _HOST.fullmatch(value) is not None


def head_refusal(request: web.BaseRequest) -> web.Response | None:
    """Return the answer to a well-formed head of another HTTP version or for an invalid host, otherwise None."""
    if request._version not in (HttpVersion11, HttpVersion10):  # `version` would be cached
        return _HeadRefusal(505)
    host = request.headers.get(hdrs.HOST)
    if host is not None and not is_host(host.encode(errors="surrogateescape")):
        return _HeadRefusal(400)
    return None


class Reader(web.RequestHandler):
    """aiohttp's reader of requests. On its own, it answers everything unreadable with 400 in HTTP/1.0 and repeats
    the input.

    Frames of aiohttp hold errors that hold these frames. Such garbage of thousands of connections would be collected in
    one step, so tracebacks are removed as soon as errors are answered.
    """

    __slots__ = ()

    async def start(self) -> None:
        """Answer the requests of the connection until it ends. Nobody waits for the outcome of being cancelled."""
        try:
            await super().start()
        except asyncio.CancelledError:
            return

    def connection_lost(self, exc: BaseException | None) -> None:
        """End the task that waits for the rest of an unwanted body, or for the client to read a refusal, because no
        limit counts the tasks of closed connections."""
        task = None if self._request_in_progress else self._task_handler
        super().connection_lost(exc)
        if task is not None:
            task.cancel()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """Send the response, which may be an exception, and release it and the data of the request, because `start`
        keeps both until the next request, which may never come."""
        if isinstance(resp, web.HTTPException):
            resp.__traceback__ = None
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            request._state.clear()
            if isinstance(resp, web.Response):
                resp.body = None

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the answer to a request that could not be read."""
        if status != 400:
            return super().handle_error(request, status, exc, message)
        refusal = _HeadRefusal(_status(exc))
        if exc is not None:
            exc.__traceback__ = None
        return refusal


def _status(problem: BaseException | None) -> int:
    match problem:
        case LineTooLong(args=(bytearray(), *_)):  # too long fields have bytes
            return 414
        case LineTooLong():
            return 431
        case BadStatusLine() if "Invalid HTTP version" in str(problem):
            return 505
    return 431 if "Too many headers" in str(problem) else 400


class _HeadRefusal(web.Response):
    """The last answer of its connection. The connection is closed when the client has had time to read it: closing
    at once would reset the connection if something is unread, and the answer would be lost."""

    def __init__(self, status: int) -> None:
        reason = _REASONS[status]
        body = orjson.dumps({"message": f"{status} {reason}"})
        super().__init__(status=status, reason=reason, body=body, content_type="application/json")
        self.force_close()

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter | None:
        request._version = HttpVersion11  # the client's version is not supported
        self._reader = request.protocol
        return await super().prepare(request)

    async def write_eof(self, data: bytes = b"") -> None:
        await super().write_eof(data)
        transport = self._reader.transport
        if transport is not None and transport.can_write_eof():
            transport.write_eof()
        self._reader._request_in_progress = False  # `Reader.connection_lost` may end the wait
        await asyncio.sleep(REFUSED_SECONDS)


#: Bytes of a request's body that have to arrive within `body_timeout`.
BODY_PROGRESS: Final = 64 * 1024
#: Bytes of an unwanted body that are read and thrown away, so that the sender can read the answer.
UNWANTED_BYTES: Final = 16 * 1024 * 1024
#: An unwanted body of up to so many bytes is read, instead of closing the connection.
UNREAD_BYTES: Final = 64 * 1024
#: Bytes per second that are read of all longer ones together. Reading them as fast as they are sent would leave no
#: time for others.
UNWANTED_RATE: Final = 128 * 1024 * 1024
#: Seconds for closing a connection on which everything is sent (TLS waits for the other side).
GOODBYE_SECONDS: Final = 1.0

_INT = struct.Struct("=i")


class BodyTooSlow(TimeoutError):
    """The client does not send the body that it has announced. Reading the body raises this, and the answer is 408."""


class Connection(asyncio.Protocol):
    """One connection of a client. The received bytes go to aiohttp's `reader`, which exists once the connection is
    accepted.

    Between requests there is a deadline for the next head. While a request is answered, its body has to make
    progress, unless nobody reads it. At all times the client has to read some of what is sent to it.
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
        #: Whether a request's body is wanted and has not ended, and how much has arrived since `_body_since`.
        self._awaits_body = False
        self._body_bytes = 0
        self._body_since = 0.0
        self._http: web.BaseRequest | None = None
        self._closed_at = math.inf

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept or refuse a client that has connected."""
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
        """Send the refusal, and close a moment later: closing at once would reset the connection before it is read."""
        self._is_refused = True
        if self._all.refused(+1):
            self._transport.abort()
            return
        self._transport.write(refusal)
        if self._transport.can_write_eof():
            self._transport.write_eof()
        self._loop.call_later(REFUSED_SECONDS, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:
        """Release everything of a connection that has ended."""
        if self._is_refused:
            self._all.refused(-1)
            return
        self._all.closed(self)
        self.reader.connection_lost(exc)
        self._http = None

    def data_received(self, data: bytes) -> None:
        """Handle bytes from the client."""
        if self._is_refused:
            return
        self._body_bytes += len(data)
        if self._deadline < math.inf:
            if self._awaits_body:  # the request was answered without it
                if self._body_bytes > UNREAD_BYTES:
                    self._read_slowly(len(data))
            else:
                latest = self._loop.time() + self._all.settings.header_timeout
                self._deadline = min(self._deadline, latest)
        self.reader.data_received(data)

    def _read_slowly(self, size: int) -> None:
        """Make a pause after so many bytes of a long unwanted body."""
        if self._body_bytes > UNWANTED_BYTES:
            self._transport.abort()
            return
        self.reader._pause_reading_for_buffer()  # after this call, aiohttp does not resume by itself
        pause = self._all.pause_after(size, self._loop.time())
        self._loop.call_later(pause, self.reader._resume_reading_for_buffer)

    def eof_received(self) -> bool | None:
        """Close the connection, because a client that closes its side has left: hardly any closes only one half."""
        if not self._is_refused:
            self.reader.eof_received()
        return None

    def pause_writing(self) -> None:
        """Note that the client does not read the sent bytes."""
        self._last_taken = self._loop.time()
        if not self._is_refused:
            self.reader.pause_writing()

    def resume_writing(self) -> None:
        """Note that the client has read most of the sent bytes."""
        self._last_taken = self._loop.time()
        if not self._is_refused:
            self.reader.resume_writing()

    def begin(self, http: web.BaseRequest) -> None:
        """Note that a request of this connection is answered from now on."""
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
        if self._deadline < math.inf:  # nobody has read the body
            self._body_bytes = 0

    def end(self) -> None:
        """Note that the request has been answered."""
        self._deadline = self._loop.time() + self._all.settings.keepalive_timeout
        self._body_bytes = 0
        if self._http is not None and isinstance(self._http.content.exception(), BodyTooSlow):
            # The rest is read for a while, like any unwanted body: closing at once would reset the connection, and
            # the client might never read the answer.
            self._http.content._exception = None

    def end_overdue(self, now: float) -> None:
        """End the connection if it is past its deadline."""
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
        """Close the connection if no request has begun to arrive and no answer is being sent."""
        if self._closed_at < math.inf:
            if now - self._closed_at > GOODBYE_SECONDS and not self.untaken():
                self.abort()
        elif self.reader._waiter is not None and not self._body_bytes:
            self._closed_at = now
            self.reader.force_close()

    def cut_off(self) -> "asyncio.Task[None] | None":
        """Cancel the request that is being answered, and return its task."""
        task = self.reader._task_handler
        if task is not None:
            task.cancel()
        return task

    def abort(self) -> None:
        """Close the connection, even if something was not sent."""
        self._transport.abort()

    def _look_at_body(self, http: web.BaseRequest, now: float) -> None:
        """Fail a body that makes no progress. This does not count while nobody reads it, which blocks the client, or
        while a client that sent `Expect: 100-continue` waits for us."""
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
        """Return how many bytes the client has not received, including those in the kernel."""
        waiting = self._transport.get_write_buffer_size()
        try:
            in_kernel = fcntl.ioctl(self._socket.fileno(), termios.TIOCOUTQ, bytes(_INT.size))
        except (OSError, ValueError):  # it was closed just now
            return waiting
        return int(_INT.unpack(in_kernel)[0]) + waiting


#: Set on a request whose client waits for `100 Continue` before it sends the body.
WAITS = web.RequestKey("waits", bool)


async def ask_for_body(http: web.BaseRequest) -> None:
    """Send `100 Continue` to a client that waits for it (RFC 9110 section 10.1.1). Call this before reading a body."""
    if http.pop(WAITS, False) and http.transport is not None and not http.transport.is_closing():
        http.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


#: Number of examinations of the connections per timeout, and of connections examined in one step of the event loop.
LOOKS: Final = 4
LOOKED_AT_TOGETHER: Final = 100
#: Refused connections that stay open for a moment, so that their clients can read the reason.
MAX_REFUSED: Final = 128
#: Seconds between two examinations of the connections while they are being finished.
FINISHING_LOOKS: Final = 0.1
#: Seconds in which cancelled requests have to release their resources.
CUT_OFF_SECONDS: Final = 2.0

_REFUSAL = (
    "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {length}\r\n"
    "Retry-After: 5\r\nConnection: close\r\n\r\n{body}"
)


def _refusal(status: str) -> bytes:
    body = f'{{"message":"{status}"}}'
    return _REFUSAL.format(status=status, length=len(body), body=body).encode()


_TOO_MANY = _refusal("503 Service Unavailable")
_TOO_MANY_OF_ONE = _refusal("429 Too Many Requests")


class Connections:
    """All connections of one listener."""

    def __init__(self, settings: ClientSettings) -> None:
        self.settings = settings
        #: The number that the system's limit of open files allows. `serving.allow_files` finds it out.
        self.capacity = math.inf
        self._proxies = networks(settings.trusted_proxies)
        self._open: dict[object, Connection] = {}
        self._open_by: Counter[str] = Counter()
        self._refused = 0
        #: The time at which the next piece of an unwanted body may be read, in the event loop's time.
        self._unwanted_until = 0.0
        self._none_open: asyncio.Event | None = None
        #: Whether each connection is closed after its present answer.
        self.are_finishing = False

    def __len__(self) -> int:
        """Return the number of open connections."""
        return len(self._open)

    def accept(self, server: web.Server) -> Connection:
        """Return the protocol of a new connection, whose requests `server` reads."""
        return Connection(self, server)

    def refusal(self, connection: Connection) -> bytes | None:
        """Return the answer to a connection that is one too many: 503, or 429 if its client has too many. Otherwise
        return None."""
        if len(self._open) >= min(self.capacity, self.settings.max_connections):
            return _TOO_MANY
        is_over_limit = self._open_by[connection.client] >= self.settings.max_connections_per_address
        if is_over_limit and not is_in(self._proxies, connection.address):
            return _TOO_MANY_OF_ONE
        return None

    def refused(self, change: int) -> bool:
        """Count refused connections that are still open, and return whether they are too many."""
        self._refused += change
        return self._refused > MAX_REFUSED

    def opened(self, connection: Connection) -> None:
        """Register a client that has connected."""
        self._open[connection.reader] = connection
        self._open_by[connection.client] += 1

    def closed(self, connection: Connection) -> None:
        """Remove a connection that has ended."""
        del self._open[connection.reader]
        self._open_by[connection.client] -= 1
        if not self._open_by[connection.client]:
            del self._open_by[connection.client]
        if not self._open and self._none_open is not None:
            self._none_open.set()

    def of(self, http: web.BaseRequest) -> Connection:
        """Return the connection of a request. Raise `ConnectionError` if it has ended."""
        connection = self._open.get(http.protocol)
        if connection is None:
            raise ClientConnectionResetError
        return connection

    def client(self, http: web.BaseRequest) -> str:
        """Return the key of the client for limits per address (see `one_client`). Raise `ConnectionError` if it has
        disconnected."""
        return one_client(client_of(self._proxies, http)) if self._proxies else self.of(http).client

    def pause_after(self, size: int, now: float) -> float:
        """Return the seconds until more of an unwanted body may be read, now that `size` bytes of one were."""
        self._unwanted_until = max(self._unwanted_until, now) + size / UNWANTED_RATE
        return self._unwanted_until - now

    async def watch(self) -> None:
        """Close connections that are past their deadline, until cancelled."""
        settings = self.settings
        while True:
            shortest = min(
                settings.header_timeout,
                settings.body_timeout,
                settings.keepalive_timeout,
                settings.send_timeout,
            )
            await asyncio.sleep(shortest / LOOKS)
            await self.end_overdue(asyncio.get_running_loop().time())

    async def end_overdue(self, now: float) -> None:
        """Close connections that are past their deadline. `now` is the event loop's time. Other tasks get their turn
        meanwhile, because thousands of connections may be closed."""
        connections = list(self._open.values())
        for start in range(0, len(connections), LOOKED_AT_TOGETHER):
            for connection in connections[start : start + LOOKED_AT_TOGETHER]:
                connection.end_overdue(now)
            await asyncio.sleep(0)

    async def finish(self, seconds: float) -> None:
        """Close idle connections at once. Close the others when their requests, including bodies, are answered and
        their clients have read the answers. Cancel what is left after `seconds`."""
        self.are_finishing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._open:
            for connection in list(self._open.values()):
                connection.close_if_idle(loop.time())
            remaining = deadline - loop.time()
            if remaining <= 0 or await self._all_closed(min(remaining, FINISHING_LOOKS)):
                break
        tasks = [task for connection in self._open.values() if (task := connection.cut_off())]
        if tasks:
            await asyncio.wait(tasks, timeout=CUT_OFF_SECONDS)
        for connection in list(self._open.values()):
            connection.abort()
        await self._all_closed(CUT_OFF_SECONDS)

    async def _all_closed(self, within: float) -> bool:
        self._none_open = asyncio.Event()
        if self._open:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_open.wait(), within)
        return not self._open
