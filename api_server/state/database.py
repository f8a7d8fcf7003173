"""The database: what runs statements, transactions, and what is remembered of answers until something changes."""

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

#: Up to here it is counted each time, and is exact.
COUNTED_ANEW = 1_000
#: Seconds after which what other processes have done is seen at the latest, here and wherever something is remembered.
REMEMBERED_FOR = 0.9


class Counts:
    """By list and parameters; forgotten whenever this process commits anything."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._counts: TTLCache[Hashable, tuple[int, int]] = TTLCache(10_000, REMEMBERED_FOR, timer)

    def get(self, key: Hashable, generation: int) -> int | None:
        """What was counted, if nothing has been committed since `generation` of the database."""
        known = self._counts.get(key)
        return known[1] if known is not None and known[0] == generation else None

    def keep(self, key: Hashable, generation: int, count: int) -> None:
        """Remembers what was counted when the database was of that generation, if that is long."""
        if count > COUNTED_ANEW:
            self._counts[key] = generation, count


#: Gives the present moment, in UTC; tests move it.
Clock = Callable[[], datetime.datetime]


def system_clock() -> datetime.datetime:
    """This machine's."""
    return datetime.datetime.now(datetime.UTC)


#: Seconds that PostgreSQL gets to say that it has ended a statement.
TIMEOUT = 5.0
#: Numbers that PostgreSQL's bigint holds; ids outside of them cannot exist.
MAX_BIGINT = 2**63 - 1


@attrs.frozen
class EntityRow:
    """A row of `listing.entity_statement`: an entity's JSON text."""

    id: int
    entity: str


class Executor(abc.ABC):
    """What a query function is given: something that runs statements, a `Database` or a `Transaction`."""

    @property
    @abc.abstractmethod
    def now(self) -> datetime.datetime:
        """The application's present moment, for a transaction that of its beginning; `%(now)s` in statements."""

    @abc.abstractmethod
    async def _execute(self, statement: str, parameters: dict[str, Any]) -> Result:
        """Runs one statement."""

    async def rows(self, statement: Query[RowT], **parameters: Any) -> list[RowT]:
        """All rows of a statement, as instances of its row class."""
        result = await self._execute(statement, parameters)
        return instances(statement, result.columns, result.rows)

    async def row(self, statement: Query[RowT], **parameters: Any) -> RowT | None:
        """The first row, or nothing."""
        rows = await self.rows(statement, **parameters)
        return rows[0] if rows else None

    async def one(self, statement: Query[RowT], **parameters: Any) -> RowT:
        """The first row. Raises `NotFound` where there is none."""
        row = await self.row(statement, **parameters)
        if row is None:
            raise NotFound
        return row

    async def shown(self, statement: Query[RowT], **parameters: Any) -> RowT:
        """The first row, which is only shown: nothing is decided by it. Raises `NotFound` where there is none."""
        return await self.one(statement, **parameters)

    async def entity(self, statement: Query[EntityRow], **parameters: Any) -> str:
        """Return the JSON that a `listing.entity_statement` yields. Raises `NotFound` where the entity is gone."""
        return (await self.shown(statement, **parameters)).entity

    async def entity_if_there(self, statement: Query[EntityRow], **parameters: Any) -> str | None:
        """Likewise; nothing where it is not there, for callers that have a refusal of their own."""
        try:
            return await self.entity(statement, **parameters)
        except NotFound:
            return None

    async def value(self, statement: str, **parameters: Any) -> Any:
        """The first column of the first row, or nothing."""
        result = await self._execute(statement, parameters)
        return result.rows[0][0] if result.rows else None

    async def truth(self, statement: str, **parameters: Any) -> bool:
        """The first column of the first row as a truth; of a statement that yields no rows, whether it touched any."""
        result = await self._execute(statement, parameters)
        return bool(result.rows and result.rows[0][0]) if result.columns else result.count > 0

    async def column(self, statement: str, **parameters: Any) -> list[Any]:
        """The first column of all rows."""
        return [row[0] for row in (await self._execute(statement, parameters)).rows]

    async def run(self, statement: str, **parameters: Any) -> int:
        """How many rows a statement has touched whose rows nobody wants to see."""
        return (await self._execute(statement, parameters)).count


class Transaction(Executor):
    """Statements that take effect together. Given by `Database.transaction()`."""

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
        """Runs a statement whose rows nobody waits for as the last thing before COMMIT, in one round trip with it.

        Where it fails, the commit does: nothing of the transaction has happened.
        """
        self._at_commit.append(await self._connection.text_of(statement, {"now": self._now, **parameters}))

    async def commit(self) -> None:
        """Ends the transaction; `Database.transaction` calls this. Raises `OutcomeUnknown` where the answer is lost."""
        try:
            self._connection.notices.clear()
            await self._connection.command("; ".join([*self._at_commit, "COMMIT"]))
        except Unavailable as problem:
            if self._connection.closed and (self.has_written or self._at_commit):
                raise OutcomeUnknown("the database") from problem
            raise
        if self._connection.notices and (self.has_written or self._at_commit):
            raise OutcomeUnknown("the database")  # nobody waits any more for a standby to have it too


#: What a transaction begins with. Where it raises, the transaction is rolled back.
Opening = Callable[[Transaction], Awaitable[None]]


@attrs.define
class _Changes:
    count: int = 0


class Database(Executor):
    """The pool. Its own `rows`, `row`, `value` and so on are for reading; whatever writes runs in a `transaction()`.

    All of them raise `Unavailable` where PostgreSQL cannot be reached or cannot do what it is asked for, and where no
    connection to it becomes free in time. Where a pooled connection turns out to be dead, reads and the beginnings of
    transactions are tried a second time, on a new one.
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
        """Counts this process's commits that changed something; what was read under an older number may be old."""
        return self._changes.count

    @property
    def pool(self) -> Connections:
        """Its connections, for whoever counts them."""
        return self._connections

    def note_change(self) -> None:
        """Something has changed, here or (where that is noticed) by another process."""
        self._changes.count += 1

    def opening_with(self, opening: Opening) -> "Database":
        """The same database, whose transactions run `opening` first."""
        other = copy.copy(self)
        other._opening = opening
        return other

    def showing(self) -> "Database":
        """The same database, of which replicas, where there are any, answer what is only shown."""
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
        """Raises where the database does not answer."""
        await self.value("SELECT 1")

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """All or nothing: commits at the end of the block, rolls back when it raises or is cancelled.

        Raises `Conflict` and `LockNotAvailable` out of the statement that met them, or out of the commit.
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
                # Who is cancelled meanwhile goes on after it: then nothing is written any more that she had begun.
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
        self._connections.close_free()  # they are as old
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
    """A pool of up to `size` connections to `url` (postgresql://...), each made within `connect_timeout` seconds.

    Statements end after `statement_timeout` seconds; where PostgreSQL itself does not end them, or all connections are
    in use, that is given up after TIMEOUT more.

    `base_url` is what `web_url()` of functions.sql puts before paths. `prepares=False` is for a pooler of transactions
    in between that does not show; one that does, as PgBouncer, needs nothing. `replica_urls` get a pool each.
    """
    session = {
        "timezone": "UTC",
        "statement_timeout": int(statement_timeout * 1000),
        "lock_timeout": 5000,
        "jit": "off",  # over many partitions the planner thinks every page of a list worth a second of it
        "client_min_messages": "warning",  # which is said at a COMMIT that no standby has
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
    """Values by key, forgotten after REMEMBERED_FOR and whenever this process commits anything, or hears that
    another has changed rights."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._values: TTLCache[Hashable, tuple[int, ValueT]] = TTLCache(maxsize=10_000, ttl=REMEMBERED_FOR)

    async def get(self, key: Hashable, load: Callable[[], Awaitable[ValueT | None]]) -> ValueT | None:
        """The value under `key`, loaded where it is not remembered. Absence is not remembered."""
        known = self._values.get(key)
        if known is not None and known[0] == self._database.generation:
            return known[1]
        generation = self._database.generation
        value = await load()
        if value is not None:
            self._values[key] = generation, value
        return value
