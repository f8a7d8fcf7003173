"""The one way from statements to aiopg and psycopg2: a connection, what runs on it, and the driver's errors as ours."""

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

#: What is a list where there are several hosts.
_EACH = ("host", "hostaddr", "port")


def each_host(url: str) -> list[str]:
    """The connection strings of the hosts of `url`, in its order, each with what the URL asks of a server
    (target_session_attrs). The URL as it is where there is one host, or where hosts have to be compared.

    libpq tries hosts by itself, but whoever does not wait in its functions has no limit of time for each: one that
    does not answer would take all of it. Raises psycopg2's ProgrammingError for what is no connection string, and
    ValueError where there are other numbers of hosts than of ports.
    """
    known = parse_dsn(url)
    lists = {name: known[name].split(",") for name in _EACH if name in known}
    number = max((len(values) for values in lists.values()), default=1)
    if number == 1 or known.get("target_session_attrs") == "prefer-standby":
        return [url]
    shared = {name: value for name, value in known.items() if name not in lists}
    each = zip(*(_repeated(values, number) for values in lists.values()), strict=True)
    return [
        make_dsn(**shared, **{name: value for name, value in zip(lists, values, strict=True) if value})
        for values in each
    ]


def _repeated(values: list[str], number: int) -> list[str]:
    """One port is that of all hosts."""
    return values * number if len(values) == 1 else values


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
        limit = self._loop.call_later(timeout, self._tell, TimeoutError())
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


#: SQLSTATEs, or their classes, of a database that cannot, whatever it is asked: connections, resources (a full disk,
#: memory, too many connections), operators' interventions (a shutdown, a statement that was stopped), its system, its
#: own errors; and a standby, a transaction that it has ended, a login that it takes no more, a database that is gone.
_CANNOT = ("08", "53", "57", "58", "XX", "25006", "25P03", "25P04", "28", "3D")
#: Of these, what PostgreSQL closes the connection with; and a standby, where a new one finds the way to the primary.
_CLOSES = ("08", "57P", "25006", "25P03", "25P04", "28", "3D")
#: Seconds without a notification after which a connection that listens is tried: it may have died without a word.
SILENCE = 15.0
#: Seconds in which PostgreSQL has to take a connection that blocks: a frozen one would be waited for without end.
CONNECT_SECONDS = 10
#: How long statements take, all of this process, with the way to the database and back.
STATEMENTS = Durations("forgelet_database_statement_duration_seconds", "Seconds that statements take.")
#: What psycopg2 raises for statements and values that are wrong, and for nothing else.
_OUR_FAULTS = (
    psycopg2.ProgrammingError,
    psycopg2.DataError,
    psycopg2.IntegrityError,
    psycopg2.NotSupportedError,
)


@attrs.define
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
    `Unavailable` where the database cannot, or has not answered after `timeout` seconds. psycopg2's are left for what
    is wrong with a statement.
    """

    _driver: WatchedConnection
    _timeout: float
    _prepared: set[str] | None
    _settings: str = ""

    async def run(self, statement: str, parameters: Mapping[str, Any]) -> Result:
        return await self._execute(await self._sql(statement), parameters)

    async def text_of(self, statement: str, parameters: Mapping[str, Any]) -> str:
        """The statement as it would be sent, for `command`."""
        sql = await self._sql(statement)
        try:
            return str(self._driver.raw.cursor().mogrify(sql, parameters).decode())
        except Exception as problem:
            self._raise_as_ours(problem)

    async def command(self, sql: str) -> None:
        """Runs SQL that takes no parameters; several statements go in one round trip."""
        await self._execute(sql, None)

    async def begin(self) -> None:
        """Begins a transaction."""
        await self.command(f"BEGIN; {self._settings}")

    async def notification(self) -> Notify:
        """Waits for the next one on the channels that were listened to. Raises `Unavailable` when no more can come:
        where nothing was heard for a while, it is asked whether there is still somebody who would speak."""
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
        """Ends the transaction; a connection that cannot is closed."""
        if self.closed:
            return
        try:
            await self.command("ROLLBACK")
        except Exception:
            self.close()

    async def _execute(self, sql: str, parameters: Mapping[str, Any] | None) -> Result:
        began = time.perf_counter()
        try:
            cursor = self._driver.raw.cursor()  # aiopg's come with a transaction that nobody uses
            await self._driver.execute(cursor, sql, parameters, self._timeout)
            if cursor.description is None:
                return Result([], [], cursor.rowcount)
            names = [column.name for column in cursor.description]
            return Result(names, cursor.fetchall(), cursor.rowcount)
        except Exception as problem:
            self._raise_as_ours(problem)
        finally:
            STATEMENTS.observe(time.perf_counter() - began)

    async def _sql(self, statement: str) -> str:
        """What to execute for a statement, which is prepared by now where it can be."""
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

    def _raise_as_ours(self, problem: Exception) -> NoReturn:
        """Raises what the driver says as an error of `state/errors.py`, or as it is where a statement is wrong."""
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
    """A connection to `url` with the settings of `session`. Raises `Unavailable` where there is none after
    `connect_timeout` seconds, and whatever is said of statements on it that take more than `answer_timeout`."""
    driver = await _connected(url, session, connect_timeout)
    connection = Connection(driver, answer_timeout, None)
    try:
        _read_as_they_are(driver)
        ((backend, quiet),) = (await connection.run(_SESSION, {})).rows
    except BaseException:
        connection.close()
        raise
    if backend == driver.raw.info.backend_pid:
        return Connection(driver, answer_timeout, set() if prepares else None)
    if quiet is not None:
        session = {**session, "log_min_error_statement": quiet}
    return Connection(driver, answer_timeout, None, _set_local(session))


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


def blocking_connection(url: str) -> "contextlib.closing[psycopg2.extensions.connection]":
    """A connection of psycopg2's own, whose calls block, closed at the end of the block: for what runs before the
    service or beside it. Raises psycopg2's errors."""
    return contextlib.closing(psycopg2.connect(url, connect_timeout=CONNECT_SECONDS))


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
        pg_type = new_type(oids, name, read)
        register_type(pg_type, connection.raw)
        register_type(new_array_type(array_oids, f"{name}[]", pg_type), connection.raw)


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


#: Seconds for a connection, and for what is said on it to begin with.
LISTENING_SECONDS = 5.0


@asynccontextmanager
async def listening_connection(url: str, *channels: str) -> AsyncIterator[Connection]:
    """A connection of its own on which `notification()` waits for what is said on `channels`. Raises `Unavailable`."""
    connection = await open_connection(
        url, {}, connect_timeout=LISTENING_SECONDS, answer_timeout=LISTENING_SECONDS, prepares=False
    )
    try:
        await connection.command("; ".join(f"LISTEN {channel}" for channel in channels))
        yield connection
    finally:
        connection.close()
