"""PostgreSQL through aiopg: the pool, transactions, prepared statements, and the driver's errors as ours."""

import abc
import asyncio
import datetime
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, overload

import aiopg
import attrs
import psycopg2
from psycopg2.extras import NamedTupleCursor

from api_server.state.connections import Connection, Connections
from api_server.state.statements import Query, RowT, Statement, has_written
from api_server.state.unavailable import Unavailable

#: One row of a statement that does not say what it yields.
Row = Any

#: Gives the present moment, in UTC; tests move it.
Clock = Callable[[], datetime.datetime]


def system_clock() -> datetime.datetime:
    """This machine's."""
    return datetime.datetime.now(datetime.UTC)


#: Numbers that PostgreSQL's bigint holds; ids outside of them cannot exist.
MAX_BIGINT = 2**63 - 1


class Conflict(Exception):
    """A row that a unique constraint forbids; `constraint` is the constraint's or the index's name."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class NotFound(Exception):
    """A row that has to be there is not, or not any more: the one that is to be shown, or one that is referred to."""


class LockNotAvailable(Exception):
    """Somebody else holds the row for longer than `lock_timeout`."""


@attrs.frozen
class Shown:
    """A row of `listing.one`: an entity's JSON text."""

    id: int
    entity: str


@attrs.frozen
class _Result:
    """What a statement gave: its rows as values, their names, and how many rows it has touched or yielded."""

    columns: list[str]
    rows: list[Any]
    count: int


class Executor(abc.ABC):
    """What a query function is given: something that runs statements, a `Database` or a `Transaction`."""

    @property
    @abc.abstractmethod
    def now(self) -> datetime.datetime:
        """The application's present moment, for a transaction that of its beginning; `%(now)s` in statements."""

    @abc.abstractmethod
    async def _execute(self, statement: str, parameters: dict[str, Any]) -> _Result:
        """Runs one statement."""

    @overload
    async def rows(self, statement: Query[RowT], **parameters: Any) -> list[RowT]: ...
    @overload
    async def rows(self, statement: str, **parameters: Any) -> list[Row]: ...
    async def rows(self, statement: str, **parameters: Any) -> list[Any]:
        """All rows of a statement, as instances of its row class."""
        result = await self._execute(statement, parameters)
        row = statement.row if isinstance(statement, Query) else None
        if row is None:
            return result.rows
        return [row(**dict(zip(result.columns, values, strict=True))) for values in result.rows]

    @overload
    async def row(self, statement: Query[RowT], **parameters: Any) -> RowT | None: ...
    @overload
    async def row(self, statement: str, **parameters: Any) -> Row | None: ...
    async def row(self, statement: str, **parameters: Any) -> Any:
        """The first row, or nothing."""
        rows = await self.rows(statement, **parameters)
        return rows[0] if rows else None

    async def one(self, statement: Query[RowT], **parameters: Any) -> RowT:
        """The first row. Raises `NotFound` where there is none."""
        row = await self.row(statement, **parameters)
        if row is None:
            raise NotFound
        return row

    async def entity(self, statement: Query[Shown], **parameters: Any) -> str:
        """The JSON of the entity that a statement of `listing.one` shows. Raises `NotFound` where it is gone."""
        return (await self.one(statement, **parameters)).entity

    async def entity_if_there(self, statement: Query[Shown], **parameters: Any) -> str | None:
        """Likewise; nothing where it is not there, for callers that have a refusal of their own."""
        row = await self.row(statement, **parameters)
        return None if row is None else row.entity

    async def value(self, statement: str, **parameters: Any) -> Any:
        """The first column of the first row, or nothing."""
        result = await self._execute(statement, parameters)
        return result.rows[0][0] if result.rows else None

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

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> _Result:
        result = await _run(self._connection, statement, {"now": self._now, **parameters})
        self.has_written = self.has_written or has_written(statement, result.count)
        return result

    async def at_commit(self, statement: str, **parameters: Any) -> None:
        """Runs a statement whose rows nobody waits for as the last thing before COMMIT, in one round trip with it.

        Where it fails, the commit does: nothing of the transaction has happened.
        """
        async with self._connection.driver.cursor() as cursor:
            sql = await _sql(cursor, self._connection.prepared, statement)
            self._at_commit.append(cursor.mogrify(sql, {"now": self._now, **parameters}).decode())

    async def commit(self) -> None:
        """Ends the transaction; `Database.transaction` calls this."""
        async with self._connection.driver.cursor() as cursor:
            with _as_our_errors():
                await cursor.execute("; ".join([*self._at_commit, "COMMIT"]))


class Database(Executor):
    """The pool. Its own `rows`, `row`, `value` and so on are for reading; whatever writes runs in a `transaction()`.

    All of them raise `Unavailable` where PostgreSQL cannot be reached, or no connection to it becomes free in time.
    Reads are tried a second time when the pooled connection turns out to be dead.
    """

    def __init__(self, connections: Connections, clock: Clock) -> None:
        self._connections = connections
        self._clock = clock
        #: Counts this process's commits that changed something; what was read under an older number may be old.
        self.generation = 0

    @property
    def now(self) -> datetime.datetime:
        return self._clock()

    async def _execute(self, statement: str, parameters: dict[str, Any]) -> _Result:
        parameters = {"now": self.now, **parameters}
        try:
            async with self._connection() as connection:
                return await _run(connection, statement, parameters)
        except (psycopg2.OperationalError, psycopg2.InterfaceError) as problem:
            if not _is_lost_connection(problem):
                raise
        async with self._connection() as connection:
            return await _run(connection, statement, parameters)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """All or nothing: commits at the end of the block, rolls back when it raises or is cancelled.

        Raises `Conflict` and `LockNotAvailable` out of the statement that met them, or out of the commit.
        """
        async with self._begun_connection() as connection:
            transaction = Transaction(connection, self.now)
            try:
                yield transaction
            except BaseException:
                await asyncio.shield(_roll_back(connection))
                raise
            try:
                await asyncio.shield(transaction.commit())
            finally:
                if transaction.has_written:
                    self.generation += 1

    @asynccontextmanager
    async def _begun_connection(self) -> AsyncIterator[Connection]:
        async with self._connection() as connection:
            try:
                await _command(connection, "BEGIN")
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as problem:
                if not _is_lost_connection(problem):
                    raise
                connection.driver.close()
            else:
                yield connection
                return
        async with self._connection() as connection:
            await _command(connection, "BEGIN")
            yield connection

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        try:
            connection = await self._connections.acquire()
        except (TimeoutError, psycopg2.OperationalError) as problem:
            raise Unavailable("the database") from problem
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
    prepares: bool = True,
) -> AsyncIterator[Database]:
    """A pool of up to `size` connections to `url` (postgresql://...); statements end after `statement_timeout` s.

    `base_url` is what `web_url()` of functions.sql puts before paths. `prepares=False` is for a transaction-pooling
    PgBouncer in between (where the five options have to be set for the database's role).
    """
    session = {
        "timezone": "UTC",
        "statement_timeout": int(statement_timeout * 1000),
        "lock_timeout": 5000,
        # Over many partitions the planner thinks every page of a list worth a second of compiling.
        "jit": "off",
        "forgelet.base_url": base_url.replace("\\", "\\\\").replace(" ", "\\ "),
    }
    options = " ".join(f"-c {name}={value}" for name, value in session.items())

    async def open_connection() -> Connection:
        driver = await aiopg.connect(
            url,
            timeout=statement_timeout + 5,
            enable_json=False,
            enable_hstore=False,
            enable_uuid=False,
            options=options,
        )
        _read_as_they_are(driver)
        return Connection(driver, set() if prepares else None)

    connections = Connections(open_connection, size, patience=statement_timeout + 5)
    try:
        connections.release(await connections.acquire())
        yield Database(connections, clock)
    finally:
        connections.close()


def _read_as_they_are(connection: aiopg.Connection) -> None:
    """JSON as text, which psycopg2 would parse and the API passes on; bytea as bytes, and not as a memoryview."""
    for name, oids, array_oids, read in (
        ("JSON", (114, 3802), (199, 3807), lambda value, _cursor: value),
        ("BYTES", (17,), (1001,), _bytes),
    ):
        one = psycopg2.extensions.new_type(oids, name, read)
        many = psycopg2.extensions.new_array_type(array_oids, f"{name}[]", one)
        psycopg2.extensions.register_type(one, connection.raw)
        psycopg2.extensions.register_type(many, connection.raw)


def _bytes(value: Any, cursor: Any) -> bytes | None:
    seen = psycopg2.BINARY(value, cursor)
    return None if seen is None else bytes(seen)


async def _run(connection: Connection, statement: str, parameters: dict[str, Any]) -> _Result:
    async with connection.driver.cursor(cursor_factory=NamedTupleCursor) as cursor:
        with _as_our_errors():
            await cursor.execute(await _sql(cursor, connection.prepared, statement), parameters)
        if cursor.description is None:
            return _Result([], [], cursor.rowcount)
        return _Result(
            [column.name for column in cursor.description], await cursor.fetchall(), cursor.rowcount
        )


@contextmanager
def _as_our_errors() -> Iterator[None]:
    try:
        yield
    except psycopg2.errors.UniqueViolation as problem:
        raise Conflict(problem.diag.constraint_name or "") from problem
    except psycopg2.errors.ForeignKeyViolation as problem:
        raise NotFound from problem
    except psycopg2.errors.LockNotAvailable as problem:
        raise LockNotAvailable from problem
    except asyncio.CancelledError:
        # aiopg makes a cancellation of PostgreSQL's own, after statement_timeout, into one of the task.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TimeoutError("The statement was stopped by PostgreSQL after statement_timeout.") from None


async def _sql(cursor: aiopg.Cursor, prepared: set[str] | None, statement: str) -> str:
    """What to execute for a statement, which is prepared by now where it can be."""
    if not isinstance(statement, Statement) or prepared is None:
        return statement
    if statement.name not in prepared:
        await cursor.execute(statement.prepare)
        prepared.add(statement.name)
    return statement.execute


async def _command(connection: Connection, sql: str) -> None:
    async with connection.driver.cursor() as cursor:
        await cursor.execute(sql)


async def _roll_back(connection: Connection) -> None:
    try:
        await _command(connection, "ROLLBACK")
    except (TimeoutError, psycopg2.Error):
        connection.driver.close()


def _is_lost_connection(problem: psycopg2.Error) -> bool:
    """True where the server is gone; a statement that the server itself refused has an SQLSTATE."""
    return isinstance(problem, psycopg2.InterfaceError) or problem.pgcode in (None, "57P01", "57P02", "57P03")
