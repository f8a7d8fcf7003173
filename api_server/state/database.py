"""The database: running statements and transactions, and caching results until something changes."""

import abc
import asyncio
import contextlib
import copy
import datetime
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Any, Generic, TypeVar

import attrs
from cachetools import TTLCache

from api_server.state import driver
from api_server.state.connections import Connections, Replicas, replicas_at
from api_server.state.driver import Connection, Result
from api_server.state.errors import ConnectionLost, NotFound, OutcomeUnknown, Unavailable
from api_server.state.statements import Query, RowT, has_written, instances
from common.concurrency import ended

#: Counts up to this number are taken anew for each request, and are exact.
COUNTED_ANEW = 1_000
#: Maximum age of cached values in seconds, here and in every other cache: by then, changes by other processes
#: are seen.
REMEMBERED_FOR = 0.9


class Counts:
    """A cache of row counts by list and parameters, invalidated whenever this process commits a change."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._counts: TTLCache[Hashable, tuple[int, int]] = TTLCache(10_000, REMEMBERED_FOR, timer)

    def get(self, key: Hashable, generation: int) -> int | None:
        """Return the cached count, or None if something has been committed since `generation` of the
        database."""
        entry = self._counts.get(key)
        return entry[1] if entry is not None and entry[0] == generation else None

    def keep(self, key: Hashable, generation: int, count: int) -> None:
        """Cache a count that was taken at `generation` of the database, unless it is small."""
        if count > COUNTED_ANEW:
            self._counts[key] = generation, count


#: Returns the present moment in UTC; tests can move it.
Clock = Callable[[], datetime.datetime]


def system_clock() -> datetime.datetime:
    """Return the time of this machine's clock."""
    return datetime.datetime.now(datetime.UTC)


#: Seconds that PostgreSQL gets to report that it has stopped a statement.
TIMEOUT = 5.0
#: The largest value of PostgreSQL's bigint; greater ids cannot exist.
MAX_BIGINT = 2**63 - 1


@attrs.frozen
class EntityRow:
    """A row of `listing.entity_statement`: an entity's JSON text."""

    id: int
    entity: str


class Executor(abc.ABC):
    """A `Database` or a `Transaction`: the object on which a query function runs its statement."""

    @property
    @abc.abstractmethod
    def now(self) -> datetime.datetime:
        """The application's present moment; in a transaction, the moment at which it began. Statements call
        it `%(now)s`."""

    @abc.abstractmethod
    async def _execute(self, statement: str, parameters: dict[str, Any]) -> Result:
        """Run one statement."""

    async def rows(self, statement: Query[RowT], **parameters: Any) -> list[RowT]:
        """Return all rows of a statement, as instances of its row class."""
        result = await self._execute(statement, parameters)
        return instances(statement, result.columns, result.rows)

    async def row(self, statement: Query[RowT], **parameters: Any) -> RowT | None:
        """Return the first row, or None."""
        rows = await self.rows(statement, **parameters)
        return rows[0] if rows else None

    async def one(self, statement: Query[RowT], **parameters: Any) -> RowT:
        """Return the first row. Raise `NotFound` if there is none."""
        row = await self.row(statement, **parameters)
        if row is None:
            raise NotFound
        return row

    async def shown(self, statement: Query[RowT], **parameters: Any) -> RowT:
        """Return the first row for display only, so a replica may answer. Raise `NotFound` if there is
        none."""
        return await self.one(statement, **parameters)

    async def entity(self, statement: Query[EntityRow], **parameters: Any) -> str:
        """Return the JSON that a `listing.entity_statement` yields. Raise `NotFound` if the entity does not
        exist."""
        return (await self.shown(statement, **parameters)).entity

    async def entity_if_there(self, statement: Query[EntityRow], **parameters: Any) -> str | None:
        """Return the JSON of an entity like `entity`, or None if it does not exist, for callers with a
        refusal of their own."""
        try:
            return await self.entity(statement, **parameters)
        except NotFound:
            return None

    async def value(self, statement: str, **parameters: Any) -> Any:
        """Return the first column of the first row, or None."""
        result = await self._execute(statement, parameters)
        return result.rows[0][0] if result.rows else None

    async def truth(self, statement: str, **parameters: Any) -> bool:
        """Return the truth value of the first column of the first row, or, for a statement that yields no
        rows, whether it touched any."""
        result = await self._execute(statement, parameters)
        return bool(result.rows and result.rows[0][0]) if result.columns else result.count > 0

    async def column(self, statement: str, **parameters: Any) -> list[Any]:
        """Return the first column of all rows."""
        return [row[0] for row in (await self._execute(statement, parameters)).rows]

    async def run(self, statement: str, **parameters: Any) -> int:
        """Run a statement and return the number of rows that it touched."""
        return (await self._execute(statement, parameters)).count


class Transaction(Executor):
    """A transaction, given by `Database.transaction()`. Its statements take effect together."""

    def __init__(self, connection: Connection, now: datetime.datetime) -> None:
        self._connection = connection
        self._now = now
        self._at_commit: list[str] = []
        #: Whether anything may have been changed.
        self.has_written = False

    @property
    def now(self) -> datetime.datetime:
        return self._now

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> Result:
        result = await self._connection.run(statement, {"now": self._now, **parameters})
        self.has_written = self.has_written or has_written(statement, result.count)
        return result

    async def at_commit(self, statement: str, **parameters: Any) -> None:
        """Run a statement as the last one before COMMIT, in one round trip with it; its rows are not read.

        If the statement fails, the commit fails and the transaction has no effect.
        """
        self._at_commit.append(await self._connection.text_of(statement, {"now": self._now, **parameters}))

    async def commit(self) -> None:
        """End the transaction; `Database.transaction` calls this. Raise `OutcomeUnknown` if the answer is
        lost."""
        try:
            self._connection.notices.clear()
            await self._connection.command("; ".join([*self._at_commit, "COMMIT"]))
        except Unavailable as problem:
            if self._connection.closed and (self.has_written or self._at_commit):
                raise OutcomeUnknown("the database") from problem
            raise
        if self._connection.notices and (self.has_written or self._at_commit):
            raise OutcomeUnknown("the database")  # PostgreSQL has stopped waiting for a standby


#: Runs at the beginning of a transaction. If it raises, the transaction is rolled back.
Opening = Callable[[Transaction], Awaitable[None]]


@attrs.define
class _Changes:
    count: int = 0


class Database(Executor):
    """The pool of connections. Its own `rows`, `row`, `value` and so on are for reading; writes run in a
    `transaction()`.

    All of them raise `Unavailable` if PostgreSQL cannot be reached or lacks resources, or if no connection
    becomes free in time. If a pooled connection turns out to be dead, a read or the beginning of a
    transaction is tried once more on a new one.
    """

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        self._changes = _Changes()
        self._opening: Opening | None = None
        self.counts = Counts()
        self._shows = False
        self.replicas: Replicas | None = None

    @property
    def now(self) -> datetime.datetime:
        return self._clock()

    @property
    def generation(self) -> int:
        """The number of commits by which this process changed something; values read under an older number
        may be outdated."""
        return self._changes.count

    @property
    def pool(self) -> Connections:
        """The pool of connections, for statistics."""
        return self._connections

    def note_change(self) -> None:
        """Record that this process, or another one as far as that is noticed, has changed something."""
        self._changes.count += 1

    def opening_with(self, opening: Opening) -> "Database":
        """Return a view of this database whose transactions run `opening` first."""
        other = copy.copy(self)
        other._opening = opening
        return other

    def showing(self) -> "Database":
        """Return a view of this database in which replicas, if there are any, answer reads that are only
        displayed."""
        if self.replicas is None:
            return self
        (other := copy.copy(self))._shows = True
        return other

    async def shown(self, statement: Query[RowT], **parameters: Any) -> RowT:
        if self.replicas is not None and self._shows:
            result = await self.replicas.run(statement, {"now": self.now, **parameters})
            if result is not None and result.rows:
                return instances(statement, result.columns, result.rows[:1])[0]
        return await self.one(statement, **parameters)

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> Result:
        parameters = {"now": self.now, **parameters}
        try:
            return await self._connections.run(statement, parameters)
        except ConnectionLost:
            self._lost()
        return await self._connections.run(statement, parameters)

    async def ping(self) -> None:
        """Raise `Unavailable` if the database does not answer."""
        await self.value("SELECT 1")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Run a transaction: commit at the end of the block, roll back if the block raises or is cancelled.

        Raise `Conflict` and `LockNotAvailable` from the statement that meets them, or from the commit.
        """
        async with self._begun_connection() as connection:
            transaction = Transaction(connection, self.now)
            try:
                if self._opening is not None:
                    await self._opening(transaction)
                yield transaction
            except BaseException:
                await asyncio.shield(connection.roll_back())
                raise
            try:
                # A caller that is cancelled meanwhile continues only after the commit: nothing that it began
                # is written later.
                await ended(asyncio.ensure_future(transaction.commit()))
            finally:
                if transaction.has_written:
                    self.note_change()

    @asynccontextmanager
    async def _begun_connection(self) -> AsyncIterator[Connection]:
        async with self._connection() as connection:
            try:
                await connection.begin()
            except ConnectionLost:
                self._lost()
            else:
                yield connection
                return
        async with self._connection() as connection:
            await connection.begin()
            yield connection

    def _lost(self) -> None:
        self._connections.close_free()  # they are as old as the lost one
        if self.replicas is not None:
            self.replicas.doubt()

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await self._connections.acquire()
        try:
            yield connection
        finally:
            self._connections.release(connection)


@asynccontextmanager
async def connect(
    url: str,
    *,
    base_url: str,
    clock: Clock = system_clock,
    size: int = 10,
    statement_timeout: float = 15,
    connect_timeout: float = 5,
    prepares: bool = True,
    replica_urls: str = "",
) -> AsyncIterator[Database]:
    """Open a pool of up to `size` connections to `url` (postgresql://...), each opened within
    `connect_timeout` seconds.

    PostgreSQL stops statements after `statement_timeout` seconds. If it does not, or if all connections are
    in use, the caller gets an error after TIMEOUT further seconds.

    `web_url()` of functions.sql puts `base_url` before paths. `prepares=False` is needed behind a transaction
    pooler that cannot be detected; PgBouncer is detected. Each of `replica_urls` gets a pool of its own.
    """
    session = {
        "timezone": "UTC",
        "statement_timeout": int(statement_timeout * 1000),
        "lock_timeout": 5000,
        "jit": "off",  # for many partitions, high estimates would turn it on for every page of a list
        "client_min_messages": "warning",  # a COMMIT that no standby confirms gives a warning
        "forgelet.base_url": base_url,
    }
    timeout = statement_timeout + TIMEOUT

    async def open_connection(url: str = url) -> Connection:
        return await driver.open_connection(
            url, session, connect_timeout=connect_timeout, answer_timeout=timeout, prepares=prepares
        )

    connections = Connections(open_connection, size, timeout)
    try:
        connections.release(await connections.acquire())
        database = Database(connections, clock)
        database.replicas = replicas_at(replica_urls.split(), open_connection, size, timeout, database.value)
        async with database.replicas.watched() if database.replicas else contextlib.nullcontext():
            yield database
    finally:
        connections.close()


ValueT = TypeVar("ValueT")


class LookupCache(Generic[ValueT]):
    """A cache of values by key. Its values expire after REMEMBERED_FOR seconds, whenever this process commits
    a change, and when another process reports a change of rights."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._values: TTLCache[Hashable, tuple[int, ValueT]] = TTLCache(maxsize=10_000, ttl=REMEMBERED_FOR)

    async def get(self, key: Hashable, load: Callable[[], Awaitable[ValueT | None]]) -> ValueT | None:
        """Return the cached value for `key`, or load it. A missing value is not cached."""
        entry = self._values.get(key)
        if entry is not None and entry[0] == self._database.generation:
            return entry[1]
        generation = self._database.generation
        value = await load()
        if value is not None:
            self._values[key] = generation, value
        return value
