"""What the database cannot do is `Unavailable`, whatever the driver makes of it; and nothing of it stays behind."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable

import psycopg2
import pytest

from api_server.state.database import Database, connect
from api_server.state.driver import Connection, listening_connection
from api_server.state.errors import ConnectionLost, OutcomeUnknown, Unavailable
from tests.support.outages import Way, way_to
from tests.support.waiting import until

SIZE = 2
RAISE = "DO $$ BEGIN RAISE EXCEPTION 'of the test' USING ERRCODE = '{}'; END $$"


@pytest.fixture
async def way(database_of_module: str) -> AsyncIterator[Way]:
    async with way_to(database_of_module) as proxied:
        yield proxied


@pytest.fixture
async def database(way: Way) -> AsyncIterator[Database]:
    async with connect(way.url, base_url="http://127.0.0.1", size=SIZE) as connected:
        async with connected.transaction() as transaction:
            await transaction.run("DROP TABLE IF EXISTS kept")
            await transaction.run("CREATE TABLE kept (word text)")
        yield connected


async def works(database: Database) -> bool:
    """Whether all of the pool is there."""
    return await asyncio.gather(*(database.value("SELECT 1") for _ in range(2 * SIZE))) == [1] * 2 * SIZE


async def _write(database: Database, word: str, fault: Callable[[], None], *then: str) -> None:
    async with database.transaction() as transaction:
        await transaction.run("INSERT INTO kept VALUES (%(word)s)", word=word)
        fault()
        for statement in then:
            await transaction.run(statement)


@pytest.mark.parametrize(
    "sqlstate",
    [
        "08006", "25006", "25P03", "3D000", "28P01", "53000", "53100", "53200", "53300", "57014", "57P01", "57P02",
        "57P03", "58030", "XX000", "XX001",
    ],
)  # fmt: skip
async def test_a_database_that_cannot_is_unavailable(database: Database, sqlstate: str) -> None:
    with pytest.raises(Unavailable) as read:
        await database.value(RAISE.format(sqlstate))
    assert read.value.cause == "of the test"
    with pytest.raises(Unavailable):
        await _write(database, "lost", lambda: None, RAISE.format(sqlstate))
    assert await works(database)
    assert await database.value("SELECT count(*) FROM kept") == 0


@pytest.mark.parametrize("sqlstate", ["22012", "42P01", "42501", "23514", "P0001"])
async def test_a_statement_that_is_wrong_is_not(database: Database, sqlstate: str) -> None:
    with pytest.raises(psycopg2.Error) as wrong:
        await database.value(RAISE.format(sqlstate))
    assert wrong.value.pgcode == sqlstate
    with pytest.raises(KeyError):
        await database.value("SELECT %(nobody)s")
    assert await works(database)


@pytest.mark.parametrize("problem", [RuntimeError("UVPoll closed"), OSError(9, "Bad file descriptor")])
async def test_what_the_event_loop_raises_is_the_databases(
    database: Database, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database._connection() as connection:
        driver = connection._driver

    def fails(_state: int) -> None:
        raise problem

    monkeypatch.setattr(driver, "_watch", fails)
    with pytest.raises(ConnectionLost) as lost:
        async with database._connection() as connection:
            await connection.run("SELECT 1", {})
    assert lost.value.__cause__ is problem
    assert await works(database)


async def test_of_a_commit_without_an_answer_nobody_knows(database: Database, way: Way) -> None:
    """A failure before it has changed nothing."""
    with pytest.raises(OutcomeUnknown, match="of which it is not known whether it happened"):
        await _write(database, "perhaps", lambda: way.take("cut"))
    way.give_back()
    with pytest.raises(Unavailable) as before:
        await _write(database, "lost", lambda: way.take("cut"), "SELECT 1")
    assert not isinstance(before.value, OutcomeUnknown)
    way.give_back()
    assert await works(database)


async def test_connections_that_die_while_nobody_uses_them_are_not_handed_out(
    database: Database, way: Way
) -> None:
    """A write is not tried a second time, so it must not meet the first one's death."""
    assert await works(database)
    way.proxy.drop()
    free = database._connections._free
    await until(lambda: all(connection.closed for connection in free))
    async with database.transaction() as transaction:
        await transaction.run("INSERT INTO kept VALUES ('kept')")
    assert await database.value("SELECT count(*) FROM kept") == 1


async def test_a_dead_connection_leaves_the_descriptors_of_others_alone(database: Database, way: Way) -> None:
    """libpq closes its socket by itself; its number is then another's, which goes on being watched."""
    ours, theirs = socket.socketpair()
    async with database._connection() as connection:
        number = psycopg2.extensions.connection.fileno(connection._driver.raw)  # libpq's own
        way.proxy.drop()
        with pytest.raises(Unavailable):
            await connection.run("SELECT pg_sleep(1)", {})
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(number)
    loop, heard = asyncio.get_running_loop(), asyncio.Event()
    os.dup2(ours.fileno(), number)
    loop.add_reader(number, heard.set)
    try:
        connection.close()
        theirs.send(b"x")
        async with asyncio.timeout(20):
            await heard.wait()
    finally:
        loop.remove_reader(number)
        os.close(number)
        ours.close()
        theirs.close()


async def test_who_listens_is_told_that_nothing_more_can_be_heard(way: Way) -> None:
    async with listening_connection(way.url, "news") as listening, connect(way.url, base_url="x") as database:
        await database.value("SELECT pg_notify('news', 'first')")
        assert (await listening.notification()).payload == "first"
        way.proxy.drop()
        for _ in range(2):
            with pytest.raises(ConnectionLost):
                await listening.notification()


async def test_silence_is_looked_into(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection whose other end is gone without a word hears nothing either."""
    command, commands = Connection.command, []

    async def noted(connection: Connection, sql: str) -> None:
        await command(connection, sql)
        commands.append(sql)

    monkeypatch.setattr("api_server.state.driver.SILENCE", 0.05)
    monkeypatch.setattr(Connection, "command", noted)
    async with listening_connection(way.url, "news") as listening:
        heard = asyncio.create_task(listening.notification())
        await until(lambda: len(commands) > len(["LISTEN", "SELECT 1", "SELECT 1"]))
        assert not heard.done()
        listening._patience = 0.2  # nobody answers any more
        way.take("silent")
        with pytest.raises(Unavailable):
            await heard
