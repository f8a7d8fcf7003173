"""PostgreSQL through aiopg: the pool, transactions, prepared statements, and the driver's errors as ours."""

import abc
import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiopg
import psycopg2
from psycopg2.extras import NamedTupleCursor

from api_server.state.connections import Connection, Connections
from api_server.state.unavailable import Unavailable

#: One row: a named tuple whose fields are the statement's columns. JSON columns are text.
Row = Any

#: Numbers that PostgreSQL's bigint holds; ids outside of them cannot exist.
MAX_BIGINT = 2**63 - 1


class Conflict(Exception):
    """A row that a unique constraint forbids; `constraint` is the constraint's or the index's name."""

    def __init__(self, constraint: str) -> None:
        super().__init__(constraint)
        self.constraint = constraint


class LockNotAvailable(Exception):
    """Somebody else holds the row for longer than `lock_timeout`."""


class Statement(str):
    """SQL that is prepared once per connection, for statements on hot paths; used like any other SQL text.

    Parameters are `%(name)s`; the server infers their types, so write a cast where it cannot (`%(query)s::text`).
    `planned_once` is for those whose plan is right for all values: the server would else go on planning anew where it
    guesses that a plan for the values at hand is cheaper, which over many tables or partitions costs more than running.
    """

    name: str
    prepare: str
    execute: str

    def __new__(cls, sql: str, *, planned_once: bool = False) -> "Statement":
        statement = super().__new__(cls, sql)
        names: list[str] = []

        def position(match: re.Match[str]) -> str:
            if match[1] not in names:
                names.append(match[1])
            return f"${names.index(match[1]) + 1}"

        positional = re.sub(r"%\((\w+)\)s", position, sql).replace("%%", "%")
        arguments = ", ".join(f"%({name})s" for name in names)
        statement.name = f"s_{hashlib.sha256(sql.encode()).hexdigest()[:24]}"
        statement.prepare = f"PREPARE {statement.name} AS {positional}"
        plan = "SET LOCAL plan_cache_mode = force_generic_plan; " if planned_once else ""
        statement.execute = f"{plan}EXECUTE {statement.name}" + (f"({arguments})" if names else "")
        return statement


class Executor(abc.ABC):
    """What a query function is given: something that runs statements, a `Database` or a `Transaction`."""

    @abc.abstractmethod
    async def rows(self, statement: str, **parameters: Any) -> list[Row]:
        """All rows of a statement."""

    async def row(self, statement: str, **parameters: Any) -> Row | None:
        """The first row, or nothing."""
        rows = await self.rows(statement, **parameters)
        return rows[0] if rows else None

    async def value(self, statement: str, **parameters: Any) -> Any:
        """The first column of the first row, or nothing."""
        row = await self.row(statement, **parameters)
        return None if row is None else row[0]


class Transaction(Executor):
    """Statements that take effect together. Given by `Database.transaction()`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._at_commit: list[str] = []

    async def rows(self, statement: str, **parameters: Any) -> list[Row]:
        return await _run(self._connection, statement, parameters)

    async def at_commit(self, statement: str, **parameters: Any) -> None:
        """Runs a statement whose rows nobody waits for as the last thing before COMMIT, in one round trip with it.

        Where it fails, the commit does: nothing of the transaction has happened.
        """
        async with _cursor(self._connection) as cursor:
            sql = await _sql(cursor, self._connection.prepared, statement)
            self._at_commit.append(cursor.mogrify(sql, parameters).decode())

    async def commit(self) -> None:
        """Ends the transaction; `Database.transaction` calls this."""
        async with _cursor(self._connection) as cursor:
            with _as_our_errors():
                await cursor.execute("; ".join([*self._at_commit, "COMMIT"]))


class Database(Executor):
    """The pool. Its own `rows`, `row` and `value` are for reading; whatever writes runs in a `transaction()`.

    All of them raise `Unavailable` where PostgreSQL cannot be reached, or no connection to it becomes free in time.
    Reads are tried a second time when the pooled connection turns out to be dead.
    """

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        #: Counts this process's commits; what was read under an older number may have changed since.
        self.generation = 0

    async def rows(self, statement: str, **parameters: Any) -> list[Row]:
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
            transaction = Transaction(connection)
            try:
                yield transaction
            except BaseException:
                await asyncio.shield(_roll_back(connection))
                raise
            try:
                await asyncio.shield(transaction.commit())
            finally:
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
    url: str, *, base_url: str, size: int = 10, statement_timeout: float = 15, prepares: bool = True
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
        _read_json_as_text(driver)
        return Connection(driver, set() if prepares else None)

    connections = Connections(open_connection, size, patience=statement_timeout + 5)
    try:
        connections.release(await connections.acquire())
        yield Database(connections)
    finally:
        connections.close()


def _read_json_as_text(connection: aiopg.Connection) -> None:
    # psycopg2 would parse json and jsonb; the API passes that text on as it is.
    for oid, array in ((114, 199), (3802, 3807)):
        text = psycopg2.extensions.new_type((oid,), f"TEXT{oid}", lambda value, _cursor: value)
        psycopg2.extensions.register_type(text, connection.raw)
        psycopg2.extensions.register_type(
            psycopg2.extensions.new_array_type((array,), f"TEXT{oid}[]", text), connection.raw
        )


async def _run(connection: Connection, statement: str, parameters: dict[str, Any]) -> list[Row]:
    async with _cursor(connection, cursor_factory=NamedTupleCursor) as cursor:
        with _as_our_errors():
            await cursor.execute(await _sql(cursor, connection.prepared, statement), parameters)
        if cursor.description is None:
            return []
        rows: list[Row] = await cursor.fetchall()
        return rows


@asynccontextmanager
async def _cursor(connection: Connection, **options: Any) -> AsyncIterator[aiopg.Cursor]:
    """aiopg's cursor and its transaction, which nobody uses, refer to each other: not parted, they would keep the text
    of the statement, half a megabyte for a piece of a log, until the garbage collector comes."""
    async with connection.driver.cursor(**options) as cursor:
        try:
            yield cursor
        finally:
            del cursor._transaction


@contextmanager
def _as_our_errors() -> Iterator[None]:
    try:
        yield
    except psycopg2.errors.UniqueViolation as problem:
        raise Conflict(problem.diag.constraint_name or "") from problem
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
    async with _cursor(connection) as cursor:
        await cursor.execute(sql)


async def _roll_back(connection: Connection) -> None:
    try:
        await _command(connection, "ROLLBACK")
    except (TimeoutError, psycopg2.Error):
        connection.driver.close()


def _is_lost_connection(problem: psycopg2.Error) -> bool:
    """True where the server is gone; a statement that the server itself refused has an SQLSTATE."""
    return isinstance(problem, psycopg2.InterfaceError) or problem.pgcode in (None, "57P01", "57P02", "57P03")
