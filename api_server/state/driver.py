"""The one way from statements to aiopg and psycopg2: a connection, what runs on it, and the driver's errors as ours."""

import asyncio
import contextlib
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import aiopg
import attrs
import psycopg2
from psycopg2.extensions import (
    TRANSACTION_STATUS_IDLE,
    AsIs,
    Notify,
    new_array_type,
    new_type,
    register_adapter,
    register_type,
)

from api_server.state.errors import Conflict, ConnectionLost, LockNotAvailable, NotFound, TooLong, Unavailable
from api_server.state.hosts import each_host
from api_server.state.statements import Statement
from api_server.state.watched_connection import WatchedConnection
from common.measures import Durations

#: SQLSTATEs, or their classes, of a database that cannot, whatever it is asked: connections, resources (a full disk,
#: memory, too many connections), operators' interventions (a shutdown, a statement that was stopped), its system, its
#: own errors; and a standby, a transaction that it has ended, a login that it takes no more, a database that is gone.
_CANNOT = ("08", "53", "57", "58", "XX", "25006", "25P03", "25P04", "28", "3D")
#: Of these, what PostgreSQL closes the connection with; and a standby, where a new one finds the way to the primary.
_CLOSES = ("08", "57P", "25006", "25P03", "25P04", "28", "3D")
#: Seconds without a notification after which a connection that listens is tried: it may have died without a word.
SILENCE = 15.0
#: How long statements take, all of this process, with the way to the database and back.
STATEMENTS = Durations("forgelet_database_statement_duration_seconds", "Seconds that statements take.")
#: What psycopg2 raises for statements and values that are wrong, and for nothing else.
_OUR_FAULTS = (
    psycopg2.ProgrammingError,
    psycopg2.DataError,
    psycopg2.IntegrityError,
    psycopg2.NotSupportedError,
)


@attrs.frozen
class Result:
    """What a statement gave: its rows, their columns, and how many rows it has touched or yielded."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    count: int


@attrs.define(eq=False)
class Connection:
    """One connection, with the names of the statements that are prepared on it (None: none may be), and what has to be
    set anew in each transaction, in SQL: behind a pooler the next one may run in another session.

    What runs on it raises the errors of `state/errors.py`, whatever the driver does: `ConnectionLost` where it is dead,
    `Unavailable` where the database cannot, or has not answered after `patience` seconds. psycopg2's are left for what
    is wrong with a statement.
    """

    _driver: WatchedConnection
    _patience: float
    _prepared: set[str] | None
    _settings: str = ""

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> Result:
        with self._cursor() as cursor:
            sql = await self._sql(cursor, statement)
            await self._driver.execute(cursor, sql, parameters, self._patience)
            if cursor.description is None:
                return Result([], [], cursor.rowcount)
            names = [column.name for column in cursor.description]
            return Result(names, cursor.fetchall(), cursor.rowcount)

    async def text_of(self, statement: str, parameters: Mapping[str, Any]) -> str:
        """The statement as it would be sent, for `command`."""
        with self._cursor() as cursor:
            return str(cursor.mogrify(await self._sql(cursor, statement), parameters).decode())

    async def command(self, sql: str) -> None:
        """Runs SQL that takes no parameters; several statements go in one round trip."""
        with self._cursor() as cursor:
            await self._driver.execute(cursor, sql, None, self._patience)

    async def begin(self) -> None:
        """Begins a transaction."""
        await self.command(f"BEGIN; {self._settings}")

    async def notification(self) -> Notify:
        """Waits for the next one on the channels that were listened to. Raises `Unavailable` when no more can come:
        where nothing was heard for a while, it is asked whether there is still somebody who would speak."""
        while True:
            with self._as_our_errors(), contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE):
                    return await self._driver.notification()
            await self.command("SELECT 1")

    async def roll_back(self) -> None:
        """Ends the transaction; a connection that cannot is closed."""
        if self.closed:
            return
        try:
            await self.command("ROLLBACK")
        except Exception:
            self.close()

    @contextmanager
    def _cursor(self) -> Iterator[psycopg2.extensions.cursor]:
        """psycopg2's own: aiopg's come with a transaction that nobody uses."""
        began = time.perf_counter()
        with self._as_our_errors(), contextlib.closing(self._driver.raw.cursor()) as cursor:
            try:
                yield cursor
            finally:
                STATEMENTS.observe(time.perf_counter() - began)

    async def _sql(self, cursor: psycopg2.extensions.cursor, statement: str) -> str:
        """What to execute for a statement, which is prepared by now where it can be."""
        if self._settings and self.idle:  # several statements in one message are one transaction
            return self._settings.replace("%", "%%") + statement
        if not isinstance(statement, Statement) or self._prepared is None:
            return statement
        if statement.name not in self._prepared:
            await self._driver.execute(cursor, statement.prepare, None, self._patience)
            self._prepared.add(statement.name)
        return statement.execute

    @property
    def notices(self) -> list[str]:
        """What PostgreSQL has said beside its answers, the last 50."""
        said: list[str] = self._driver.raw.notices
        return said

    @property
    def closed(self) -> bool:
        return bool(self._driver.closed)

    @property
    def idle(self) -> bool:
        """Whether no statement and no transaction is running on it."""
        return bool(self._driver.raw.get_transaction_status() == TRANSACTION_STATUS_IDLE)

    def close(self) -> None:
        self._driver.close()

    @contextmanager
    def _as_our_errors(self) -> Iterator[None]:
        try:
            yield
        except psycopg2.errors.UniqueViolation as problem:
            raise Conflict(problem.diag.constraint_name or "") from problem
        except psycopg2.errors.ForeignKeyViolation as problem:
            raise NotFound from problem
        except psycopg2.errors.ProgramLimitExceeded as problem:
            raise TooLong from problem
        except (psycopg2.errors.LockNotAvailable, psycopg2.errors.DeadlockDetected) as problem:
            raise LockNotAvailable from problem
        except Exception as problem:
            if not _is_the_databases(problem) and not self.closed:
                raise
            if not _leaves_it_open(problem):
                self.close()
            if self.closed and not isinstance(problem, TimeoutError):
                raise ConnectionLost("the database") from problem
            raise Unavailable("the database") from problem


async def open_connection(
    url: str, session: Mapping[str, object], *, connect_timeout: float, patience: float, prepares: bool
) -> Connection:
    """A connection to `url` with the settings of `session`. Raises `Unavailable` where there is none after
    `connect_timeout` seconds, and whatever is said of statements on it that take more than `patience`."""
    driver = await _connected(url, session, connect_timeout)
    connection = Connection(driver, patience, None)
    try:
        _read_as_they_are(driver)
        ((backend, quiet),) = (await connection.run(_SESSION, {})).rows
    except BaseException:
        connection.close()
        raise
    if backend == driver.raw.info.backend_pid:
        return Connection(driver, patience, set() if prepares else None)
    if quiet is not None:
        session = {**session, "log_min_error_statement": quiet}
    return Connection(driver, patience, None, _set_local(session))


async def _connected(url: str, session: Mapping[str, object], seconds: float) -> WatchedConnection:
    """To the first host that takes it. Raises `Unavailable`."""
    options = " ".join(f"-c {name}={_in_options(value)}" for name, value in session.items())
    refusals = []
    try:
        hosts = each_host(url)
        for host in hosts:
            try:
                return await _connected_to(host, options, seconds / len(hosts))
            except (psycopg2.OperationalError, OSError) as problem:  # TimeoutError is an OSError
                refusals.append(problem)
        if len(hosts) == 1:
            raise refusals[0]
        said = (str(problem).strip().partition("\n")[0] or type(problem).__name__ for problem in refusals)
        raise psycopg2.OperationalError(f"no host takes the connection: {'; '.join(said)}")
    except Exception as problem:
        raise Unavailable("the database") from problem


async def _connected_to(url: str, options: str, seconds: float) -> WatchedConnection:
    """With the `options`, but through a pooler, which may not take any."""
    try:
        driver = WatchedConnection(url, seconds, options=options)
        await driver
    except psycopg2.OperationalError as problem:
        if _REFUSES_OPTIONS not in str(problem):
            raise
        driver = WatchedConnection(url, seconds)
        await driver
    return driver


#: What PgBouncer says of them, where it was not told to overlook them.
_REFUSES_OPTIONS = "unsupported startup parameter"
#: Names the process that serves this: not the one of the greeting, where a pooler greets.
#:
#: Values stand in the statements as they are sent, and PostgreSQL logs a statement that fails. A role may turn that off
#: that was allowed to: GRANT SET ON PARAMETER log_min_error_statement TO ...
_SESSION = """
    SELECT pg_backend_pid(), CASE WHEN has_parameter_privilege('log_min_error_statement', 'SET')
        THEN set_config('log_min_error_statement', 'panic', false) END
"""


def is_pooled(connection: Any) -> bool:
    """Whether somebody pools transactions, or sessions, between this connection of psycopg2's and PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.info.backend_pid)


def _in_options(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace(" ", "\\ ")


def _set_local(session: Mapping[str, object]) -> str:
    literals = {name: str(value).replace("'", "''") for name, value in session.items()}
    return "".join(f"SET LOCAL {name} = '{literal}'; " for name, literal in literals.items())


def _read_as_they_are(connection: aiopg.Connection) -> None:
    """JSON as text, which psycopg2 would parse and the API passes on; bytea as bytes, and not as a memoryview."""
    for name, oids, array_oids, read in (
        ("JSON", (114, 3802), (199, 3807), lambda value, _cursor: value),
        ("BYTES", (17,), (1001,), _bytes),
    ):
        one = new_type(oids, name, read)
        register_type(one, connection.raw)
        register_type(new_array_type(array_oids, f"{name}[]", one), connection.raw)


def _integer(value: int) -> AsIs:
    """In statements: `-1::bigint` is the negative of `1::bigint`, and of the smallest number there is no such."""
    return AsIs(f"({int(value)})" if value < 0 else f"{int(value)}")


register_adapter(int, _integer)


def _bytes(value: Any, cursor: Any) -> bytes | None:
    seen = psycopg2.BINARY(value, cursor)
    return None if seen is None else bytes(seen)


def _is_the_databases(problem: Exception) -> bool:
    """Whether it is no fault of a statement. What is not psycopg2's is the event loop's or the operating system's."""
    if isinstance(problem, psycopg2.Error):
        if problem.pgcode is not None:
            return problem.pgcode.startswith(_CANNOT)
        return not isinstance(problem, _OUR_FAULTS)
    return isinstance(problem, OSError | RuntimeError | AssertionError)  # TimeoutError is an OSError


def _leaves_it_open(problem: Exception) -> bool:
    """Whether the connection is of use after that: PostgreSQL has said what is the matter, and goes on."""
    pgcode = problem.pgcode if isinstance(problem, psycopg2.Error) else None
    return pgcode is not None and not pgcode.startswith(_CLOSES)
