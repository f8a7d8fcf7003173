"""The connections to PostgreSQL: a limited number of them, the last one used handed out first."""

import asyncio
import time
from collections.abc import Awaitable, Callable

from api_server.state.driver import Connection
from api_server.state.errors import Unavailable


class Connections:
    """Up to `size` connections, each made by `open_connection` when it is first needed.

    aiopg's own pool takes a lock and starts a task for each statement, lets all wait while one connection is opened,
    and hands out the connection whose caches are coldest.
    """

    def __init__(
        self, open_connection: Callable[[], Awaitable[Connection]], size: int, patience: float
    ) -> None:
        self._open_connection = open_connection
        self._patience = patience
        self._room = asyncio.Semaphore(size)
        self.size = size
        #: Who waits for one now, how often somebody has had to, and for how many seconds in all.
        self.waiting = 0
        self.waits = 0
        self.waited_seconds = 0.0
        self._free: list[Connection] = []
        self._used: set[Connection] = set()

    async def acquire(self) -> Connection:
        """One that is nobody else's until it is released. Raises `Unavailable` after `patience` seconds without one."""
        try:
            if self._room.locked():
                await self._wait()
            else:
                await self._room.acquire()
        except TimeoutError:
            busy = TimeoutError(f"all {len(self._used)} connections were in use for {self._patience:g} s")
            raise Unavailable("the database") from busy
        try:
            connection = self._free_one() or await self._open_connection()
        except BaseException:
            self._room.release()
            raise
        self._used.add(connection)
        return connection

    async def _wait(self) -> None:
        """Until there is room. Raises TimeoutError."""
        began = time.perf_counter()
        self.waiting += 1
        self.waits += 1
        try:
            async with asyncio.timeout(self._patience):
                await self._room.acquire()
        finally:
            self.waiting -= 1
            self.waited_seconds += time.perf_counter() - began

    @property
    def used(self) -> int:
        """How many are in somebody's hands."""
        return len(self._used)

    def release(self, connection: Connection) -> None:
        """Takes one back. One with a statement or a transaction still running is given up, not reused."""
        if not connection.closed and not connection.idle:
            connection.close()
        self._used.discard(connection)
        if not connection.closed:
            self._free.append(connection)
        self._room.release()

    def close_free(self) -> None:
        """Closes those that nobody uses."""
        for connection in self._free:
            connection.close()
        self._free.clear()

    def close(self) -> None:
        """Closes all of them, also those in use."""
        self.close_free()
        for connection in self._used:
            connection.close()

    def _free_one(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.closed:
                return connection
        return None
