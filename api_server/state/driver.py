"""The one way from statements to aiopg and psycopg2: a connection, what runs on it, and the driver's errors as ours."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import aiopg
import attrs
import psycopg2
from psycopg2.extensions import TRANSACTION_STATUS_IDLE, new_array_type, new_type, register_type

from api_server.state.errors import Conflict, LockNotAvailable, NotFound
from api_server.state.statements import Statement

#: What opening a connection, or the first use of one that has died, may raise.
CONNECTION_ERRORS = (psycopg2.OperationalError, psycopg2.InterfaceError)


@attrs.frozen
class Result:
    """What a statement gave: its rows, their columns, and how many rows it has touched or yielded."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    count: int


@attrs.define(eq=False)
class Connection:
    """One connection, with the names of the statements that are prepared on it (None: none may be)."""

    _driver: aiopg.Connection
    _prepared: set[str] | None

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> Result:
        """Raises the errors of `state/errors.py`, TimeoutError after `statement_timeout`, and psycopg2's."""
        async with self._cursor() as cursor:
            with _as_our_errors():
                await cursor.execute(await self._sql(cursor, statement), parameters)
            if cursor.description is None:
                return Result([], [], cursor.rowcount)
            names = [column.name for column in cursor.description]
            return Result(names, await cursor.fetchall(), cursor.rowcount)

    async def text_of(self, statement: str, parameters: Mapping[str, Any]) -> str:
        """The statement as it would be sent, for `command`."""
        async with self._cursor() as cursor:
            return str(cursor.mogrify(await self._sql(cursor, statement), parameters).decode())

    async def command(self, sql: str) -> None:
        """Runs SQL that takes no parameters; several statements go in one round trip."""
        async with self._cursor() as cursor:
            with _as_our_errors():
                await cursor.execute(sql)

    async def roll_back(self) -> None:
        """Ends the transaction; a connection that cannot is closed."""
        try:
            await self.command("ROLLBACK")
        except (TimeoutError, psycopg2.Error):
            self.close()

    @asynccontextmanager
    async def _cursor(self) -> AsyncIterator[aiopg.Cursor]:
        """aiopg's cursor and its transaction, which nobody uses, refer to each other: not parted, they would keep the
        text of the statement, half a megabyte for a piece of a log, until the garbage collector comes."""
        async with self._driver.cursor() as cursor:
            try:
                yield cursor
            finally:
                del cursor._transaction

    async def _sql(self, cursor: aiopg.Cursor, statement: str) -> str:
        """What to execute for a statement, which is prepared by now where it can be."""
        if not isinstance(statement, Statement) or self._prepared is None:
            return statement
        if statement.name not in self._prepared:
            await cursor.execute(statement.prepare)
            self._prepared.add(statement.name)
        return statement.execute

    @property
    def closed(self) -> bool:
        return bool(self._driver.closed)

    @property
    def idle(self) -> bool:
        """Whether no statement and no transaction is running on it."""
        return bool(self._driver.raw.get_transaction_status() == TRANSACTION_STATUS_IDLE)

    def close(self) -> None:
        self._driver.close()


async def open_connection(
    url: str, session: Mapping[str, object], *, patience: float, prepares: bool
) -> Connection:
    """A connection to `url` with the settings of `session`; waits up to `patience` seconds for an answer."""
    driver = await aiopg.connect(
        url,
        timeout=patience,
        enable_json=False,
        enable_hstore=False,
        enable_uuid=False,
        options=" ".join(f"-c {name}={value}" for name, value in session.items()),
    )
    _read_as_they_are(driver)
    connection = Connection(driver, set() if prepares else None)
    try:
        await connection.command(_KEEP_STATEMENTS_OUT_OF_LOGS)
    except BaseException:
        connection.close()
        raise
    return connection


#: Values stand in the statements as they are sent, and PostgreSQL logs a statement that fails. A role may turn that off
#: that was allowed to: GRANT SET ON PARAMETER log_min_error_statement TO ...
_KEEP_STATEMENTS_OUT_OF_LOGS = """
    SELECT set_config('log_min_error_statement', 'panic', false)
    WHERE has_parameter_privilege('log_min_error_statement', 'SET')
"""


def _read_as_they_are(connection: aiopg.Connection) -> None:
    """JSON as text, which psycopg2 would parse and the API passes on; bytea as bytes, and not as a memoryview."""
    for name, oids, array_oids, read in (
        ("JSON", (114, 3802), (199, 3807), lambda value, _cursor: value),
        ("BYTES", (17,), (1001,), _bytes),
    ):
        one = new_type(oids, name, read)
        register_type(one, connection.raw)
        register_type(new_array_type(array_oids, f"{name}[]", one), connection.raw)


def _bytes(value: Any, cursor: Any) -> bytes | None:
    seen = psycopg2.BINARY(value, cursor)
    return None if seen is None else bytes(seen)


def is_lost_connection(problem: psycopg2.Error) -> bool:
    """True where the server is gone; a statement that the server itself refused has an SQLSTATE."""
    return isinstance(problem, psycopg2.InterfaceError) or problem.pgcode in (None, "57P01", "57P02", "57P03")


@contextmanager
def _as_our_errors() -> Iterator[None]:
    try:
        yield
    except psycopg2.errors.UniqueViolation as problem:
        raise Conflict(problem.diag.constraint_name or "") from problem
    except psycopg2.errors.ForeignKeyViolation as problem:
        raise NotFound from problem
    except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected) as problem:
        raise LockNotAvailable from problem
    except asyncio.CancelledError:
        # aiopg makes a cancellation of PostgreSQL's own, after statement_timeout, into one of the task.
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        raise TimeoutError("The statement was stopped by PostgreSQL after statement_timeout.") from None
