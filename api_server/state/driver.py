"""The layer over aiopg and psycopg2: connections, running statements, and translation of the driver's
errors."""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NoReturn

import aiopg
import attrs
import psycopg2
from psycopg2.extensions import (
    POLL_OK,
    POLL_WRITE,
    TRANSACTION_STATUS_IDLE,
    TRANSACTION_STATUS_UNKNOWN,
    AsIs,
    Notify,
    make_dsn,
    new_array_type,
    new_type,
    parse_dsn,
    register_adapter,
    register_type,
)

from api_server.state.errors import Conflict, ConnectionLost, LockNotAvailable, NotFound, TooLong, Unavailable
from api_server.state.statements import Statement
from common.measures import Durations

#: Parameters that are lists if there are several hosts.
_HOST_LISTS = ("host", "hostaddr", "port")


def each_host(url: str) -> list[str]:
    """Return one connection string for each host of `url`, in order, each with the URL's other parameters
    (such as target_session_attrs). Return the URL unchanged if it has one host, or if hosts have to be
    compared.

    libpq tries several hosts by itself, but its non-blocking functions have no time limit for each host: one
    that does not answer would use up all the time. Raise psycopg2's ProgrammingError for an invalid
    connection string, and ValueError if the numbers of hosts and ports differ.
    """
    parsed = parse_dsn(url)
    lists = {name: parsed[name].split(",") for name in _HOST_LISTS if name in parsed}
    number = max((len(values) for values in lists.values()), default=1)
    if number == 1 or parsed.get("target_session_attrs") == "prefer-standby":
        return [url]
    shared = {name: value for name, value in parsed.items() if name not in lists}
    hosts = zip(*(_repeated(values, number) for values in lists.values()), strict=True)
    return [
        make_dsn(**shared, **{name: value for name, value in zip(lists, values, strict=True) if value})
        for values in hosts
    ]


def _repeated(values: list[str], number: int) -> list[str]:
    """Repeat a single value, such as one port, for all hosts."""
    return values * number if len(values) == 1 else values


class _Session(psycopg2.extensions.connection):
    """A connection of psycopg2 that is watched through a duplicate of its descriptor.

    libpq closes its socket in whichever call notices that the other end is gone. The event loop would go on
    watching that descriptor number, and would stop watching it later, when the number belongs to another
    connection, of a client or to the database, which then receives no more events.
    """

    _descriptor: int | None = None

    def fileno(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.dup(super().fileno())
        return self._descriptor

    def follow(self) -> bool:
        """Return whether libpq has switched to another socket, and adopt it: libpq tries the addresses of a
        host one after another, each with a new socket. The descriptor must not be watched during the call."""
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
    """A connection that is closed as soon as it is dead, even if it is not in use. Awaiting it connects it.

    aiopg's own connection keeps watching its descriptor and leaves its callers waiting if any error other
    than psycopg2's occurs, turns a statement that PostgreSQL has stopped into a cancelled task, and loses a
    cancellation that arrives together with the answer.
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
            connection._continue()

    def _continue(self) -> None:
        """Let libpq continue, now that its socket can be read or written."""
        try:
            state = self._conn.poll()
            self._watch(state)
        except Exception as problem:
            self._settle(problem)
            if self._is_dead():
                self._close()
            return
        while self._conn.notifies:
            self._notifies.put_nowait(self._conn.notifies.pop(0))
        if state == POLL_OK:
            self._connected = True
            self._settle(None)

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

    def _settle(self, problem: Exception | None) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done():
            return
        if problem is None:
            waiter.set_result(None)
        else:
            waiter.set_exception(problem)

    def _is_dead(self) -> bool:
        return bool(self._conn.closed) or (self._conn.get_transaction_status() == TRANSACTION_STATUS_UNKNOWN)

    async def _poll(self, waiter: "asyncio.Future[None]", timeout: float) -> None:  # noqa: ASYNC109 - as in aiopg
        self._continue()
        limit = self._loop.call_later(timeout, self._settle, TimeoutError())
        try:
            await waiter
        except (asyncio.CancelledError, TimeoutError):
            self._close()
            raise
        finally:
            limit.cancel()
            self._waiter = None

    def _close(self) -> None:
        super()._close()
        self._fileno = None  # the number may belong to another file from here on
        self._notifies.put_nowait(None)

    async def execute(
        self,
        cursor: psycopg2.extensions.cursor,
        sql: str,
        parameters: Mapping[str, Any] | None,
        timeout: float,  # noqa: ASYNC109 - the timeout that aiopg uses for statements
    ) -> None:
        """Run SQL on a cursor of this connection. Raise TimeoutError after `timeout` seconds without an
        answer. Then, and if the call is cancelled, the connection is closed."""
        waiter = self._create_waiter("execute")
        try:
            cursor.execute(sql, parameters)
        except BaseException:
            self._waiter = None
            raise
        await self._poll(waiter, timeout)

    async def notification(self) -> Notify:
        """Wait for the next notification. Raise psycopg2's InterfaceError when the connection is closed."""
        notification: Notify | None = await self._notifies.get()
        if notification is None:
            self._notifies.put_nowait(None)
            raise psycopg2.InterfaceError("the connection was closed")
        return notification


#: SQLSTATEs, or their classes, of failures that no statement is to blame for: connections, resources (a full
#: disk, memory, too many connections), operator intervention (a shutdown, a stopped statement), system and
#: internal errors; a standby, a transaction that PostgreSQL has ended, a rejected login, a missing database.
_CANNOT = ("08", "53", "57", "58", "XX", "25006", "25P03", "25P04", "28", "3D")
#: Those after which PostgreSQL closes the connection, and that of a standby: a new connection may find the
#: primary.
_CLOSES = ("08", "57P", "25006", "25P03", "25P04", "28", "3D")
#: Seconds without a notification after which a listening connection is tested: it may have died without
#: notice.
SILENCE = 15.0
#: Time limit in seconds for opening a blocking connection: a frozen server would be waited for forever.
CONNECT_SECONDS = 10
#: The duration of all statements of this process, including the network.
STATEMENTS = Durations("forgelet_database_statement_duration_seconds", "Seconds that statements take.")
#: The errors that psycopg2 raises only for wrong statements and values.
_OUR_FAULTS = (
    psycopg2.ProgrammingError,
    psycopg2.DataError,
    psycopg2.IntegrityError,
    psycopg2.NotSupportedError,
)


@attrs.define
class Result:
    """The result of a statement: rows, names of columns, and the number of rows touched or yielded."""

    columns: list[str]
    rows: list[tuple[Any, ...]]
    count: int


#: Characters of a value, such as a page of a list, for which libpq takes so much memory that a connection is not kept.
LARGE_VALUE = 4 * 2**20


@attrs.define(eq=False)
class Connection:
    """One connection, the names of the statements prepared on it (None if none may be), and the SQL of the
    settings that each transaction has to repeat, because behind a pooler it may run in another session.

    Statements raise the errors of `state/errors.py`: `ConnectionLost` if the connection is dead,
    `Unavailable` if the database cannot answer or has not answered after `timeout` seconds. Errors in a
    statement are raised as psycopg2's.
    """

    _driver: WatchedConnection
    _timeout: float
    _prepared: set[str] | None
    _settings: str = ""
    #: It has received a large value: libpq keeps the memory for that until the connection is closed.
    grown: bool = attrs.field(default=False, init=False)

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> Result:
        return await self._execute(await self._sql(statement), parameters)

    async def text_of(self, statement: str, parameters: Mapping[str, Any]) -> str:
        """Return the statement as it would be sent, for `command`."""
        sql = await self._sql(statement)
        try:
            return str(self._driver.raw.cursor().mogrify(sql, parameters).decode())
        except Exception as problem:
            self._raise_as_ours(problem)

    async def command(self, sql: str) -> None:
        """Run SQL without parameters; several statements take one round trip."""
        await self._execute(sql, None)

    async def begin(self) -> None:
        """Begin a transaction."""
        await self.command(f"BEGIN; {self._settings}")

    async def notification(self) -> Notify:
        """Wait for the next notification on the channels being listened to. Test the connection after a
        silence. Raise `Unavailable` when no more notifications can come."""
        while True:
            try:
                async with asyncio.timeout(SILENCE):
                    return await self._driver.notification()
            except TimeoutError:
                pass
            except Exception as problem:
                self._raise_as_ours(problem)
            await self.command("SELECT 1")

    async def roll_back(self) -> None:
        """Roll the transaction back; close the connection if that fails."""
        if self.closed:
            return
        try:
            await self.command("ROLLBACK")
        except Exception:
            self.close()

    async def _execute(self, sql: str, parameters: Mapping[str, Any] | None) -> Result:
        start = time.perf_counter()
        try:
            cursor = self._driver.raw.cursor()  # aiopg's cursor adds a transaction object that is not needed
            await self._driver.execute(cursor, sql, parameters, self._timeout)
            if cursor.description is None:
                return Result([], [], cursor.rowcount)
            names = [column.name for column in cursor.description]
            rows = cursor.fetchall()
            self.grown |= any(
                isinstance(value, str) and len(value) > LARGE_VALUE for row in rows[:1] for value in row
            )
            return Result(names, rows, cursor.rowcount)
        except Exception as problem:
            self._raise_as_ours(problem)
        finally:
            STATEMENTS.observe(time.perf_counter() - start)

    async def _sql(self, statement: str) -> str:
        """Return the SQL to execute for a statement; prepare the statement first if possible."""
        if self._settings and self.idle:  # several statements in one message are one transaction
            return self._settings.replace("%", "%%") + statement
        if not isinstance(statement, Statement) or self._prepared is None:
            return statement
        if statement.name not in self._prepared:
            await self.command(statement.prepare)
            self._prepared.add(statement.name)
        return statement.execute

    @property
    def notices(self) -> list[str]:
        """The last 50 notices that PostgreSQL has sent beside its answers."""
        notices: list[str] = self._driver.raw.notices
        return notices

    @property
    def closed(self) -> bool:
        return bool(self._driver.closed)

    @property
    def idle(self) -> bool:
        """Whether no statement and no transaction is running on the connection."""
        return bool(self._driver.raw.get_transaction_status() == TRANSACTION_STATUS_IDLE)

    def close(self) -> None:
        self._driver.close()

    def _raise_as_ours(self, problem: Exception) -> NoReturn:
        """Raise the driver's error as one of `state/errors.py`, or unchanged if the statement is wrong."""
        match problem:
            case psycopg2.errors.UniqueViolation():
                raise Conflict(problem.diag.constraint_name or "") from problem
            case psycopg2.errors.ForeignKeyViolation():
                raise NotFound from problem
            case psycopg2.errors.ProgramLimitExceeded():
                raise TooLong from problem
            case psycopg2.errors.LockNotAvailable() | psycopg2.errors.DeadlockDetected():
                raise LockNotAvailable from problem
        if not _is_the_databases(problem) and not self.closed:
            raise problem
        if not _leaves_it_open(problem):
            self.close()
        if self.closed and not isinstance(problem, TimeoutError):
            raise ConnectionLost("the database") from problem
        raise Unavailable("the database") from problem


async def open_connection(
    url: str, session: Mapping[str, object], *, connect_timeout: float, answer_timeout: float, prepares: bool
) -> Connection:
    """Return a connection to `url` with the settings of `session`. Raise `Unavailable` if there is none after
    `connect_timeout` seconds. Statements on it may take `answer_timeout` seconds."""
    driver = await _connected(url, session, connect_timeout)
    connection = Connection(driver, answer_timeout, None)
    try:
        _read_as_they_are(driver)
        ((backend, log_level),) = (await connection.run(_SESSION, {})).rows
    except BaseException:
        connection.close()
        raise
    if backend == driver.raw.info.backend_pid:
        return Connection(driver, answer_timeout, set() if prepares else None)
    if log_level is not None:
        session = {**session, "log_min_error_statement": log_level}
    return Connection(driver, answer_timeout, None, _set_local(session))


async def _connected(url: str, session: Mapping[str, object], seconds: float) -> WatchedConnection:
    """Connect to the first host that accepts the connection. Raise `Unavailable`."""
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
        reasons = (str(problem).strip().partition("\n")[0] or type(problem).__name__ for problem in refusals)
        raise psycopg2.OperationalError(f"no host takes the connection: {'; '.join(reasons)}")
    except Exception as problem:
        raise Unavailable("the database") from problem


async def _connected_to(url: str, options: str, seconds: float) -> WatchedConnection:
    """Connect with the `options`, or without them through a pooler that rejects them."""
    try:
        driver = WatchedConnection(url, seconds, options=options)
        await driver
    except psycopg2.OperationalError as problem:
        if _REFUSES_OPTIONS not in str(problem):
            raise
        driver = WatchedConnection(url, seconds)
        await driver
    return driver


#: PgBouncer's error about options, unless it is configured to ignore them.
_REFUSES_OPTIONS = "unsupported startup parameter"
#: Return the id of the backend process that runs the statement; behind a pooler it differs from the one in
#: the greeting.
#:
#: Statements are sent with their values, and PostgreSQL logs statements that fail. A role may turn that
#: logging off if it has been granted SET ON PARAMETER log_min_error_statement.
_SESSION = """
    SELECT pg_backend_pid(), CASE WHEN has_parameter_privilege('log_min_error_statement', 'SET')
        THEN set_config('log_min_error_statement', 'panic', false) END
"""


def blocking_connection(url: str) -> "contextlib.closing[psycopg2.extensions.connection]":
    """Return a blocking connection of psycopg2, closed at the end of the block, for code that runs before the
    service or beside it. Raise psycopg2's errors."""
    return contextlib.closing(psycopg2.connect(url, connect_timeout=CONNECT_SECONDS))


def is_pooled(connection: Any) -> bool:
    """Return whether a pooler stands between this psycopg2 connection and PostgreSQL."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.info.backend_pid)


def _in_options(value: object) -> str:
    return str(value).replace("\\", "\\\\").replace(" ", "\\ ")


def _set_local(session: Mapping[str, object]) -> str:
    literals = {name: str(value).replace("'", "''") for name, value in session.items()}
    return "".join(f"SET LOCAL {name} = '{literal}'; " for name, literal in literals.items())


def _read_as_they_are(connection: aiopg.Connection) -> None:
    """Return JSON as text, which psycopg2 would parse although the API passes it on, and bytea as bytes
    instead of memoryview."""
    for name, oids, array_oids, read in (
        ("JSON", (114, 3802), (199, 3807), lambda value, _cursor: value),
        ("BYTES", (17,), (1001,), _bytes),
    ):
        pg_type = new_type(oids, name, read)
        register_type(pg_type, connection.raw)
        register_type(new_array_type(array_oids, f"{name}[]", pg_type), connection.raw)


def _integer(value: int) -> AsIs:
    """Put a negative number in parentheses: `-1::bigint` is the negative of `1::bigint`, and the smallest
    bigint has no positive counterpart."""
    return AsIs(f"({int(value)})" if value < 0 else f"{int(value)}")


register_adapter(int, _integer)


def _bytes(value: Any, cursor: Any) -> bytes | None:
    data = psycopg2.BINARY(value, cursor)
    return None if data is None else bytes(data)


def _is_the_databases(problem: Exception) -> bool:
    """Return whether the cause lies outside of the statement. Errors that are not psycopg2's come from the
    event loop or the operating system."""
    if isinstance(problem, psycopg2.Error):
        if problem.pgcode is not None:
            return problem.pgcode.startswith(_CANNOT)
        return not isinstance(problem, _OUR_FAULTS)
    return isinstance(problem, OSError | RuntimeError | AssertionError)  # TimeoutError is an OSError


def _leaves_it_open(problem: Exception) -> bool:
    """Return whether the connection is still usable: PostgreSQL has reported an error and continues."""
    pgcode = problem.pgcode if isinstance(problem, psycopg2.Error) else None
    return pgcode is not None and not pgcode.startswith(_CLOSES)


#: Time limit in seconds for opening a listening connection, and for its first statements.
LISTENING_SECONDS = 5.0


@asynccontextmanager
async def listening_connection(url: str, *channels: str) -> AsyncIterator[Connection]:
    """Open a separate connection on which `notification()` waits for notifications on `channels`. Raise
    `Unavailable`."""
    connection = await open_connection(
        url, {}, connect_timeout=LISTENING_SECONDS, answer_timeout=LISTENING_SECONDS, prepares=False
    )
    try:
        await connection.command("; ".join(f"LISTEN {channel}" for channel in channels))
        yield connection
    finally:
        connection.close()
