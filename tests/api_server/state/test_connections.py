"""Connections: their distribution, waiting, lost connections, and several hosts."""

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Callable

import psycopg2
import pytest

from api_server.state.connections import CALLER
from api_server.state.database import Database, connect
from api_server.state.driver import LARGE_VALUE, Connection, each_host, listening_connection
from api_server.state.errors import ConnectionLost, OutcomeUnknown, Unavailable, UnsuitableDatabase
from api_server.state.migrate import migrate, unsuitable_database
from api_server.state.statements import Statement
from forgelet.local import embedded_postgres
from tests.support import standbys
from tests.support.outages import Way, way_to
from tests.support.ports import free_port
from tests.support.waiting import until

SIZE = 2
BACKEND = Statement("SELECT pg_backend_pid()")
#: The same, but the connection is busy for a while.
HELD = "SELECT pg_backend_pid() FROM pg_sleep(0.05)"

#: PostgreSQL goes on with the statement of a closed client for a while.
SLEEPING = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'
"""


@pytest.fixture
async def database(database_of_module: str) -> AsyncIterator[Database]:
    async with connect(database_of_module, base_url="http://127.0.0.1", size=SIZE) as connected:
        yield connected


async def test_the_connection_used_last_is_used_next(database: Database) -> None:
    both = await asyncio.gather(database.value(HELD), database.value(HELD))
    assert len(set(both)) == SIZE
    assert len({await database.value(BACKEND) for _ in range(5)}) == 1


async def test_a_connection_that_holds_much_memory_is_not_kept(database: Database) -> None:
    large = Statement("SELECT repeat('a', %(size)s) || pg_backend_pid()")
    first = await database.value(large, size=LARGE_VALUE - 100)
    assert first.endswith(f"a{await database.value(BACKEND)}")
    second = await database.value(large, size=LARGE_VALUE)
    assert not second.endswith(f"a{await database.value(BACKEND)}")


async def test_more_work_than_connections_waits_its_turn(database: Database) -> None:
    backends = await asyncio.gather(*(database.value(HELD) for _ in range(20)))
    assert len(backends) == 20
    assert len(set(backends)) == SIZE


async def test_who_waits_too_long_for_a_connection_is_told_and_leaves_the_place(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.transaction(), database.transaction():
        with monkeypatch.context() as impatient:
            impatient.setattr(database._connections._capacity, "_timeout", 0.05)
            with pytest.raises(Unavailable):
                await database.value("SELECT 1")
    assert await asyncio.gather(*(database.value("SELECT 1") for _ in range(5))) == [1] * 5


async def test_a_caller_leaves_connections_for_others(database_of_module: str) -> None:
    async with connect(database_of_module, base_url="http://127.0.0.1", size=5) as database:
        CALLER.set((1,))
        async with (
            database.transaction(),
            database.transaction(),
            database.transaction(),
            database.transaction(),
        ):
            waiting = asyncio.create_task(database.value("SELECT 1"))
            CALLER.set((2,))
            assert await asyncio.gather(*(database.value("SELECT 2") for _ in range(5))) == [2] * 5
            assert not waiting.done()
        assert await waiting == 1


async def test_a_read_and_the_start_of_a_transaction_survive_a_lost_connection(database: Database) -> None:
    for again in (database.value(BACKEND), _in_transaction(database)):
        async with database.transaction() as transaction:
            held, other = await transaction.value(BACKEND), await database.value(BACKEND)
            await transaction.value("SELECT pg_terminate_backend(%(pid)s, 1000)", pid=other)
            assert await again not in (held, other)


async def _in_transaction(database: Database) -> int:
    async with database.transaction() as transaction:
        return int(await transaction.value(BACKEND))


async def test_a_statement_that_takes_too_long_is_a_failure_and_no_cancellation(
    database_of_module: str,
) -> None:
    async with connect(database_of_module, base_url="http://127.0.0.1", statement_timeout=0.5) as database:
        with pytest.raises(Unavailable):
            await database.value("SELECT pg_sleep(60)")
        async with database.transaction() as transaction:
            with pytest.raises(Unavailable):
                await transaction.value("SELECT pg_sleep(60)")
        assert await database.value("SELECT 1") == 1


async def test_a_cancelled_statement_gives_its_connection_up_and_its_place_back(database: Database) -> None:
    for number in range(1, SIZE + 2):
        sleeping = asyncio.create_task(database.value("SELECT pg_sleep(60)"))
        async with asyncio.timeout(20):
            while await database.value(SLEEPING) < number:
                await asyncio.sleep(0.01)
        sleeping.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sleeping
    assert await asyncio.gather(*(database.value("SELECT 1") for _ in range(5))) == [1] * 5


RAISE = "DO $$ BEGIN RAISE EXCEPTION 'of the test' USING ERRCODE = '{}'; END $$"


@pytest.fixture
async def way(database_of_module: str) -> AsyncIterator[Way]:
    async with way_to(database_of_module) as proxied:
        yield proxied


@pytest.fixture
async def lossy_database(way: Way) -> AsyncIterator[Database]:
    async with connect(way.url, base_url="http://127.0.0.1", size=SIZE) as connected:
        async with connected.transaction() as transaction:
            await transaction.run("DROP TABLE IF EXISTS kept")
            await transaction.run("CREATE TABLE kept (word text)")
        yield connected


async def works(database: Database) -> bool:
    """Return whether all connections of the pool work."""
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
async def test_a_database_that_cannot_is_unavailable(lossy_database: Database, sqlstate: str) -> None:
    with pytest.raises(Unavailable) as read:
        await lossy_database.value(RAISE.format(sqlstate))
    assert read.value.cause == "of the test"
    with pytest.raises(Unavailable):
        await _write(lossy_database, "lost", lambda: None, RAISE.format(sqlstate))
    assert await works(lossy_database)
    assert await lossy_database.value("SELECT count(*) FROM kept") == 0


@pytest.mark.parametrize("sqlstate", ["22012", "42P01", "42501", "23514", "P0001"])
async def test_a_statement_that_is_wrong_is_not(lossy_database: Database, sqlstate: str) -> None:
    with pytest.raises(psycopg2.Error) as wrong:
        await lossy_database.value(RAISE.format(sqlstate))
    assert wrong.value.pgcode == sqlstate
    with pytest.raises(KeyError):
        await lossy_database.value("SELECT %(nobody)s")
    assert await works(lossy_database)


@pytest.mark.parametrize("problem", [RuntimeError("UVPoll closed"), OSError(9, "Bad file descriptor")])
async def test_what_the_event_loop_raises_is_the_databases(
    lossy_database: Database, problem: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with lossy_database._connection() as connection:
        driver = connection._driver

    def fails(_state: int) -> None:
        raise problem

    monkeypatch.setattr(driver, "_watch", fails)
    with pytest.raises(ConnectionLost) as lost:
        async with lossy_database._connection() as connection:
            await connection.run("SELECT 1", {})
    assert lost.value.__cause__ is problem
    assert await works(lossy_database)


async def test_of_a_commit_without_an_answer_nobody_knows(lossy_database: Database, way: Way) -> None:
    """A failure before it has changed nothing."""
    with pytest.raises(OutcomeUnknown, match="of which it is not known whether it happened"):
        await _write(lossy_database, "perhaps", lambda: way.take("cut"))
    way.give_back()
    with pytest.raises(Unavailable) as before:
        await _write(lossy_database, "lost", lambda: way.take("cut"), "SELECT 1")
    assert not isinstance(before.value, OutcomeUnknown)
    way.give_back()
    assert await works(lossy_database)


async def test_connections_that_die_while_nobody_uses_them_are_not_handed_out(
    lossy_database: Database, way: Way
) -> None:
    """A write is not repeated, so it must not be the first to find out that a connection is dead."""
    assert await works(lossy_database)
    way.proxy.drop()
    free = lossy_database._connections._free
    await until(lambda: all(connection.closed for connection in free))
    async with lossy_database.transaction() as transaction:
        await transaction.run("INSERT INTO kept VALUES ('kept')")
    assert await lossy_database.value("SELECT count(*) FROM kept") == 1


async def test_a_dead_connection_leaves_the_descriptors_of_others_alone(
    lossy_database: Database, way: Way
) -> None:
    """libpq closes its socket by itself; its number may then belong to another connection, which is still watched."""
    ours, theirs = socket.socketpair()
    async with lossy_database._connection() as connection:
        number = psycopg2.extensions.connection.fileno(connection._driver.raw)  # libpq's own method
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
    """A connection whose other end has vanished without a message receives nothing either."""
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
        listening._timeout = 0.2  # nothing answers any more
        way.take("silent")
        with pytest.raises(Unavailable):
            await heard


WRITES = "target_session_attrs=read-write"


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("postgresql://u@one/db", ["postgresql://u@one/db"]),
        ("postgresql://u@one:1,two/db", ["user=u dbname=db host=one port=1", "user=u dbname=db host=two"]),
        (
            "postgresql://u@/db?host=/a,/b&port=1,2",
            ["user=u dbname=db host=/a port=1", "user=u dbname=db host=/b port=2"],
        ),
        ("postgresql://u@one,two/db?target_session_attrs=prefer-standby",) * 2,
    ],
)
def test_each_host_of_a_url(url: str, hosts: list[str] | str) -> None:
    def meaning(texts: list[str]) -> list[dict[str, str]]:
        return [psycopg2.extensions.parse_dsn(text) for text in texts]

    assert meaning(each_host(url)) == meaning([hosts] if isinstance(hosts, str) else hosts)


async def test_a_host_that_is_lost_is_replaced(new_database: Callable[[], str]) -> None:
    direct = new_database()
    async with way_to(direct) as first, way_to(direct) as second:
        first_host, second_host = (way.url.partition("@")[2].partition("/")[0] for way in (first, second))
        url = f"{first.url.replace(first_host, f'{first_host},{second_host}')}&{WRITES}"
        async with connect(url, base_url="x", connect_timeout=4) as database:
            assert await database.value("SELECT inet_server_port()") is None  # a socket behind the proxy
            first.take("refused")
            assert await database.value("SELECT 1") == 1
            async with database.transaction() as transaction:
                await transaction.run("CREATE TABLE kept (word text)")
            second.take("refused")
            with pytest.raises(Unavailable) as refused:
                await database.value("SELECT 1")
            assert refused.value.cause.startswith("no host takes the connection: ")
            assert "; " in refused.value.cause
            first.give_back()
            assert await database.value("SELECT count(*) FROM kept") == 0


async def test_a_host_that_does_not_answer_takes_only_its_part_of_the_time(
    new_database: Callable[[], str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with way_to(new_database()) as way:
            host = way.url.partition("@")[2].partition("/")[0]
            url = way.url.replace(host, f"127.0.0.1:{silent.getsockname()[1]},{host}")
            async with asyncio.timeout(30), connect(url, base_url="x", connect_timeout=1) as database:
                assert await database.value("SELECT 1") == 1


def test_all_hosts_are_named_in_what_is_said_of_them() -> None:
    ports = free_port(), free_port()
    url = "postgresql://u:secret@127.0.0.1:{},127.0.0.1:{}/db".format(*ports)
    with pytest.raises(UnsuitableDatabase) as said, unsuitable_database():
        migrate(url)
    assert all(str(port) in said.value.message for port in ports)
    assert "secret" not in said.value.message


@pytest.mark.skipif(not standbys.program(), reason="pg_basebackup is not installed")
async def test_a_standby_is_passed_over(postgres: embedded_postgres.Cluster) -> None:
    with standbys.standby_of(postgres) as standby:
        follower = standby.url("forgelet", "forgelet")
        with pytest.raises(UnsuitableDatabase, match=r"^This PostgreSQL is a standby"):
            migrate(follower)
        url = standbys.several_hosts(follower, postgres.url())
        async with connect(url, base_url="x") as database:
            assert await database.value("SELECT pg_is_in_recovery()") is False
