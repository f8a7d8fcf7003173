"""aiopg's connection, made to last: what becomes of it when PostgreSQL, or the way there, goes away."""

import asyncio
import os
from collections.abc import Mapping
from typing import Any

import aiopg
import psycopg2
from psycopg2.extensions import POLL_OK, POLL_WRITE, TRANSACTION_STATUS_UNKNOWN, Notify


class _Session(psycopg2.extensions.connection):
    """psycopg2's, watched through a descriptor of its own.

    libpq closes its socket in whichever call notices that the other end is gone. The event loop would go on watching
    that number, and stop watching it later, when it is a client's connection or another one to the database, which
    then hears nothing any more.
    """

    _descriptor: int | None = None

    def fileno(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.dup(super().fileno())
        return self._descriptor

    def follow(self) -> bool:
        """libpq tries the addresses of a host one after another, each with a socket of its own: True where it has begun
        with another one. The descriptor must not be watched meanwhile."""
        if self._descriptor is None or os.path.sameopenfile(super().fileno(), self._descriptor):
            return False
        os.dup2(super().fileno(), self._descriptor, inheritable=False)
        return True

    def close(self) -> None:
        super().close()
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    __del__ = close


class WatchedConnection(aiopg.Connection):
    """A connection that is closed as soon as it is dead, even while nobody uses it.

    Awaited it is connected. aiopg's own leaves its descriptor watched and those who wait for it waiting where something
    else than an error of psycopg2 turns up, makes a statement that PostgreSQL has stopped a cancelled task, and loses
    cancellations that come together with the answer.
    """

    _connected = False

    def __init__(self, url: str, timeout: float, **options: Any) -> None:
        super().__init__(
            url,
            timeout,
            enable_json=False,
            enable_hstore=False,
            enable_uuid=False,
            connection_factory=_Session,
            **options,
        )

    @staticmethod
    def _ready(weak_self: Any) -> None:
        connection = weak_self()
        if connection is not None:
            connection._turn()

    def _turn(self) -> None:
        """What libpq has to do, now that something has come or can be sent."""
        try:
            state = self._conn.poll()
            self._watch(state)
        except Exception as problem:
            self._tell(problem)
            if self._is_dead():
                self._close()
            return
        while self._conn.notifies:
            self._notifies.put_nowait(self._conn.notifies.pop(0))
        if state == POLL_OK:
            self._connected = True
            self._tell(None)

    def _watch(self, state: int) -> None:
        descriptor = self._conn.fileno()
        if not self._connected:
            self._loop.remove_reader(descriptor)
            self._loop.remove_writer(descriptor)
            self._conn.follow()
            self._writing = False
            self._loop.add_reader(descriptor, self._ready, self._weakref)
        if state == POLL_WRITE and not self._writing:
            self._loop.add_writer(descriptor, self._ready, self._weakref)
        elif state != POLL_WRITE and self._writing:
            self._loop.remove_writer(descriptor)
        self._writing = state == POLL_WRITE

    def _tell(self, problem: Exception | None) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if problem is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(problem)

    def _is_dead(self) -> bool:
        return bool(self._conn.closed) or (self._conn.get_transaction_status() == TRANSACTION_STATUS_UNKNOWN)

    async def _poll(self, waiter: "asyncio.Future[None]", timeout: float) -> None:  # noqa: ASYNC109 - aiopg's
        self._turn()
        try:
            async with asyncio.timeout(timeout):
                await waiter
        except (asyncio.CancelledError, TimeoutError):
            self._close()
            raise
        finally:
            self._waiter = None

    def _close(self) -> None:
        super()._close()
        self._fileno = None  # another's, from here on
        self._notifies.put_nowait(None)

    async def execute(
        self,
        cursor: psycopg2.extensions.cursor,
        sql: str,
        parameters: Mapping[str, Any] | None,
        timeout: float,  # noqa: ASYNC109 - with aiopg's own for statements
    ) -> None:
        """Runs SQL by one of this connection's cursors. Raises TimeoutError after `timeout` seconds without an answer;
        then, and where it is cancelled, the connection is closed."""
        waiter = self._create_waiter("execute")
        try:
            cursor.execute(sql, parameters)
        except BaseException:
            self._waiter = None
            raise
        await self._poll(waiter, timeout)

    async def notification(self) -> Notify:
        """Waits for the next one. Raises psycopg2's InterfaceError when the connection is closed."""
        heard: Notify | None = await self._notifies.get()
        if heard is None:
            self._notifies.put_nowait(None)
            raise psycopg2.InterfaceError("the connection was closed")
        return heard
