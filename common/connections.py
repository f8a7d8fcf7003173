"""Client connections: how many there may be, and which of them have to go because their client does nothing."""

import asyncio
import contextlib
import math
from collections import Counter
from typing import Final

from aiohttp import ClientConnectionResetError, web

from common.client_address import client_of, is_in, networks, one_client
from common.client_settings import ClientSettings
from common.connection import Connection

#: Looks at the connections per timeout.
LOOKS: Final = 4
#: Refused connections that stay open for a moment, so that their clients get to read why.
MOST_REFUSED: Final = 128
#: Seconds between two looks at the connections while they are finished.
FINISHING_LOOKS: Final = 0.1
#: Seconds in which requests that are cut off let go of what they hold.
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
        #: As many as the system's limit of open files allows; `serving.allow_files` finds out.
        self.room = math.inf
        self._proxies = networks(settings.trusted_proxies)
        self._open: dict[object, Connection] = {}
        self._open_by: Counter[str] = Counter()
        self._refused = 0
        self._none_open: asyncio.Event | None = None
        #: Whether answers are the last of their connections.
        self.are_finishing = False

    def __len__(self) -> int:
        """How many connections are open."""
        return len(self._open)

    def accept(self, server: web.Server) -> Connection:
        """The protocol of a new connection, whose requests `server` reads."""
        return Connection(self, server)

    def refusal(self, connection: Connection) -> bytes | None:
        """What a client is told whose connection is one too many: 503, or 429 where they are all hers."""
        if len(self._open) >= min(self.room, self.settings.max_connections):
            return _TOO_MANY
        counted = self._open_by[connection.client] >= self.settings.max_connections_per_address
        if counted and not is_in(self._proxies, connection.address):
            return _TOO_MANY_OF_ONE
        return None

    def refused(self, change: int) -> bool:
        """Counts refused connections that are still open; whether they are too many."""
        self._refused += change
        return self._refused > MOST_REFUSED

    def opened(self, connection: Connection) -> None:
        """A client has connected."""
        self._open[connection.reader] = connection
        self._open_by[connection.client] += 1

    def closed(self, connection: Connection) -> None:
        """A connection has gone."""
        del self._open[connection.reader]
        self._open_by[connection.client] -= 1
        if not self._open_by[connection.client]:
            del self._open_by[connection.client]
        if not self._open and self._none_open is not None:
            self._none_open.set()

    def of(self, http: web.BaseRequest) -> Connection:
        """The connection of a request; raises ConnectionError when it has gone."""
        connection = self._open.get(http.protocol)
        if connection is None:
            raise ClientConnectionResetError
        return connection

    def client(self, http: web.BaseRequest) -> str:
        """Who asks, as limits by address count it (see `one_client`); raises ConnectionError like `of`."""
        return one_client(client_of(self._proxies, http)) if self._proxies else self.of(http).client

    async def watch(self) -> None:
        """Closes connections that are past their time, until cancelled."""
        wanted = self.settings
        while True:
            shortest = min(
                wanted.header_timeout, wanted.body_timeout, wanted.keepalive_timeout, wanted.send_timeout
            )
            await asyncio.sleep(shortest / LOOKS)
            self.look(asyncio.get_running_loop().time())

    def look(self, now: float) -> None:
        """Closes those that are past their time; `now` is the event loop's."""
        for connection in list(self._open.values()):
            connection.look(now)

    async def finish(self, seconds: float) -> None:
        """Closes idle connections at once, and the others when their requests have been answered, bodies that are
        still coming included, and their clients have taken the answers. Cuts off what is left after `seconds`."""
        self.are_finishing = True
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self._open:
            for connection in list(self._open.values()):
                connection.close_if_idle(loop.time())
            left = deadline - loop.time()
            if left <= 0 or await self._all_closed(min(left, FINISHING_LOOKS)):
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
