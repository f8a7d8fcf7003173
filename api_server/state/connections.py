"""Pools of connections to PostgreSQL: a limited number to the primary and to the streaming replicas that
answer reads.

Before a replica is read, the primary is asked for its log position, which costs it next to nothing, and the
replica must have replayed up to that position. So a read sees everything that was committed when the request
arrived, by any process. A replica that does not catch up quickly is passed over and the primary is read.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Mapping
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

import attrs
import structlog
from psycopg2.extensions import parse_dsn

from api_server.state.driver import Connection, Result
from api_server.state.errors import Unavailable
from api_server.state.statements import Statement
from common.concurrency import ConcurrencyLimiter, TooBusy

#: The caller that the present task works for, who uses at most four of five connections at once.
CALLER: ContextVar[tuple[Hashable, ...]] = ContextVar("caller", default=())


class Connections:
    """A pool of up to `size` connections, each opened by `open_connection` when it is first needed.

    aiopg's own pool takes a lock and starts a task for each statement, makes every caller wait while one
    connection is opened, and hands out the connection that was idle longest, whose caches are coldest.
    """

    def __init__(
        self, open_connection: Callable[[], Awaitable[Connection]], size: int, timeout: float
    ) -> None:
        self._open_connection = open_connection
        self._timeout = timeout
        self._capacity = ConcurrencyLimiter(size, size - size // 5, timeout=timeout, queue=10_000)
        self.size = size
        #: Callers that wait for a connection now, how many have ever waited, and for how many seconds in all.
        self.waiting = 0
        self.waits = 0
        self.waited_seconds = 0.0
        self._free: list[Connection] = []
        self._used: dict[Connection, tuple[Hashable, ...]] = {}

    async def acquire(self) -> Connection:
        """Return a connection for the caller's exclusive use until `release`. Raise `Unavailable` if none
        becomes free within `timeout` seconds."""
        caller = CALLER.get()
        try:
            if not self._capacity.try_acquire(*caller):
                await self._wait(caller)
        except TooBusy:
            busy = TimeoutError(f"all {len(self._used)} connections were in use for {self._timeout:g} s")
            raise Unavailable("the database") from busy
        try:
            connection = self._free_one() or await self._open_connection()
        except BaseException:
            self._capacity.release(*caller)
            raise
        self._used[connection] = caller
        return connection

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> Result:
        """Run one statement on a free connection. Raise the errors of `acquire` and `Connection.run`."""
        connection = await self.acquire()
        try:
            return await connection.run(statement, parameters)
        finally:
            self.release(connection)

    async def _wait(self, caller: tuple[Hashable, ...]) -> None:
        """Wait for a free connection. Raise `TooBusy`."""
        start = time.perf_counter()
        self.waiting += 1
        self.waits += 1
        try:
            await self._capacity.acquire(*caller)
        finally:
            self.waiting -= 1
            self.waited_seconds += time.perf_counter() - start

    @property
    def used(self) -> int:
        """The number of connections in use."""
        return len(self._used)

    def release(self, connection: Connection) -> None:
        """Return a connection to the pool. Close it if a statement or a transaction is still running on it, or
        if it holds much memory."""
        if not connection.closed and (connection.grown or not connection.idle):
            connection.close()
        caller = self._used.pop(connection)
        if not connection.closed:
            self._free.append(connection)
        self._capacity.release(*caller)

    def close_free(self) -> None:
        """Close the connections that are not in use."""
        for connection in self._free:
            connection.close()
        self._free.clear()

    def close(self) -> None:
        """Close all connections, including those in use."""
        self.close_free()
        for connection in self._used:
            connection.close()

    def _free_one(self) -> Connection | None:
        while self._free:
            connection = self._free.pop()
            if not connection.closed:
                return connection
        return None


log = structlog.get_logger(__name__)

#: Seconds between two checks of a replica, and the time limit for each check.
LOOK_INTERVAL = 1.0
#: Seconds for which a read waits for a replica that lags, and for which that replica is then not asked.
CATCH_UP_SECONDS = 0.1
REST_SECONDS = 1.0
#: The log position that covers every commit reported to a client, in bytes. Such a commit has been flushed to
#: disk unless synchronous_commit is off.
_POSITION = Statement("""
    SELECT (CASE WHEN current_setting('synchronous_commit') = 'off' THEN pg_current_wal_insert_lsn()
        ELSE pg_current_wal_flush_lsn() END - '0/0'::pg_lsn)::bigint
""")
_REPLAYED = Statement("SELECT coalesce((pg_last_wal_replay_lsn() - '0/0'::pg_lsn)::bigint, 0)")
#: Identifies the database independently of the server that provides it.
_IDENTITY = """
    SELECT (SELECT system_identifier FROM pg_control_system()) || '/' || oid
    FROM pg_database WHERE datname = current_database()
"""
#: A standby without a WAL receiver is not connected to a primary and may have diverged.
_FOLLOWS = "SELECT pg_is_in_recovery() AND EXISTS (SELECT FROM pg_stat_wal_receiver)"

#: Opens a connection to the server at a URL.
Opener = Callable[[str], Awaitable[Connection]]


class _NotOurs(Exception):
    """The replica answers but must not be read; the text gives the reason."""


@attrs.define(eq=False)
class Replica:
    """A replica; `name` identifies it to people and contains no password."""

    name: str
    connections: Connections
    _checking: Connections
    #: Whether it takes reads, and how many it has answered.
    is_ready: bool = False
    reads: int = 0
    _replayed: int = 0
    _rests_until: float = 0.0
    _logged_reason: str = ""

    def may_be_read(self) -> bool:
        return self.is_ready and asyncio.get_running_loop().time() >= self._rests_until

    async def run(self, statement: str, parameters: Mapping[str, Any], position: int) -> Result | None:
        """Run a statement on a snapshot at `position` or later. Return None if the replica does not reach it
        in time."""
        async with _one_of(self.connections) as connection:
            if not await self._reaches(position, connection):
                self._rests_until = asyncio.get_running_loop().time() + REST_SECONDS
                return None
            result = await connection.run(statement, parameters)
        self.reads += 1
        return result

    async def _reaches(self, position: int, connection: Connection) -> bool:
        clock = asyncio.get_running_loop().time
        deadline, pause = clock() + CATCH_UP_SECONDS, 0.001
        while self._replayed < position:
            self._replayed = (await connection.run(_REPLAYED, {})).rows[0][0]
            if self._replayed < position:
                if clock() > deadline:
                    return False
                await asyncio.sleep(pause)
                pause = min(2 * pause, 0.01)
        return True

    async def check(self, identity: str) -> None:
        """Check the replica. Raise an error if it must not be read or does not answer."""
        async with asyncio.timeout(LOOK_INTERVAL), _one_of(self._checking) as connection:
            if (await connection.run(_IDENTITY, {})).rows[0][0] != identity:
                raise _NotOurs("it has another database than the primary")
            if not (await connection.run(_FOLLOWS, {})).rows[0][0]:
                raise _NotOurs("it does not follow a primary")

    def take(self) -> None:
        if not self.is_ready:
            log.info("a replica takes reads", replica=self.name)
        self.is_ready = True

    def leave_out(self, reason: str) -> None:
        """Take the replica out of use. Running reads fall back to the primary."""
        if self.is_ready or reason != self._logged_reason:
            log.warning("a replica is left out", replica=self.name, cause=reason)
        self.is_ready, self._logged_reason, self._replayed = False, reason, 0
        self.connections.close()

    def close(self) -> None:
        self.connections.close()
        self._checking.close()


class Replicas:
    """The replicas of one database; `ask` runs a statement on the primary and returns its value."""

    def __init__(self, replicas: list[Replica], ask: Callable[[str], Awaitable[Any]]) -> None:
        self.all = replicas
        self._ask = ask
        self._identity: str | None = None

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> Result | None:
        """Return a replica's result, or None if the primary has to run the statement. Raise `Unavailable` if
        the primary cannot report its log position."""
        ready = [replica for replica in self.all if replica.may_be_read()]
        if not ready:
            return None
        position = await self._ask(_POSITION)
        replica = min(ready, key=lambda candidate: candidate.connections.used)
        try:
            return await replica.run(statement, parameters, position)
        except Unavailable as problem:
            replica.leave_out(problem.cause)
        except Exception as problem:  # replay cancels statements that it conflicts with; try the primary
            log.debug("a replica could not answer", replica=replica.name, about=type(problem).__name__)
        return None

    def doubt(self) -> None:
        """Take all replicas out of use after the primary was lost: they may not follow the new primary."""
        for replica in self.all:
            if replica.is_ready:
                replica.leave_out("the primary was lost")

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Check each replica periodically while the block runs, and put those into use that can be read."""
        tasks = [asyncio.ensure_future(self._watch(replica)) for replica in self.all]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for replica in self.all:
                replica.close()

    async def _watch(self, replica: Replica) -> None:
        while True:
            with contextlib.suppress(Unavailable):  # the primary does not answer
                if self._identity is None:
                    self._identity = await self._ask(_IDENTITY)
                await self._check(replica, self._identity)
            await asyncio.sleep(LOOK_INTERVAL)

    async def _check(self, replica: Replica, identity: str) -> None:
        try:
            await replica.check(identity)
        except Unavailable as problem:
            replica.leave_out(problem.cause)
        except TimeoutError:
            replica.leave_out(f"it has not answered within {LOOK_INTERVAL:g} s")
        except Exception as problem:
            replica.leave_out(str(problem))
        else:
            replica.take()


def replicas_at(
    urls: list[str], open_connection: Opener, size: int, timeout: float, ask: Callable[[str], Awaitable[Any]]
) -> Replicas | None:
    """Return the replicas at `urls` with up to `size` connections each, or None if there are no URLs."""
    if not urls:
        return None
    return Replicas([_replica(url, open_connection, size, timeout) for url in urls], ask)


def _replica(url: str, open_connection: Opener, size: int, timeout: float) -> Replica:
    async def opened() -> Connection:
        return await open_connection(url)

    parsed = parse_dsn(url)
    name = f"{parsed.get('host', 'localhost')}:{parsed.get('port', 5432)}"
    return Replica(name, Connections(opened, size, timeout), Connections(opened, 1, timeout))


@asynccontextmanager
async def _one_of(connections: Connections) -> AsyncIterator[Connection]:
    connection = await connections.acquire()
    try:
        yield connection
    finally:
        connections.release(connection)
