"""Client connections of the edge: plain requests for what is in memory are answered at once."""

import asyncio
import math
from typing import Final, cast

from aiohttp import web

from common import connections
from common.client_address import Network
from common.client_settings import ClientSettings
from storage_edge.client.plain_hits import PlainHits
from storage_edge.client.sendfile import OpenFiles, Wire

#: Seconds that a connection without a request at work stays open when its client has closed its side.
AFTER_EOF: Final = 0.5
#: Seconds in which the answer has to begin once the client has closed its side: most clients have gone then.
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

    def look(self, now: float) -> None:
        """Lets deleted files go as well."""
        self.files.let_deleted_go()
        super().look(now)

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
            self._loop.call_later(UNANSWERED_SECONDS, self._end_unanswered, self._asked)
        return self._is_ending

    def _end_unanswered(self, asked: web.BaseRequest | None) -> None:
        """Close the connection if a request has waited since the last look and its answer has not begun."""
        if self._transport.is_closing():
            return
        if asked is not None and asked is self._asked and not asked.writer.output_size:
            self.abort()
        else:
            self._loop.call_later(UNANSWERED_SECONDS, self._end_unanswered, self._asked)

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
