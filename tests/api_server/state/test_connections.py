"""Connections: who gets which, who waits, and what becomes of one whose statement has been stopped."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from api_server.state.database import Database, connect
from api_server.state.errors import Unavailable
from api_server.state.statements import Statement

SIZE = 2
BACKEND = Statement("SELECT pg_backend_pid()")
#: The same, keeping its connection for a while.
HELD = "SELECT pg_backend_pid() FROM pg_sleep(0.05)"

#: PostgreSQL goes on with a statement for a while whose client has gone.
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


async def test_more_work_than_connections_waits_its_turn(database: Database) -> None:
    backends = await asyncio.gather(*(database.value(HELD) for _ in range(20)))
    assert len(backends) == 20
    assert len(set(backends)) == SIZE


async def test_who_waits_too_long_for_a_connection_is_told_and_leaves_the_place(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.transaction(), database.transaction():
        with monkeypatch.context() as impatient:
            impatient.setattr(database._connections, "_patience", 0.05)
            with pytest.raises(Unavailable):
                await database.value("SELECT 1")
    assert await asyncio.gather(*(database.value("SELECT 1") for _ in range(5))) == [1] * 5


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
