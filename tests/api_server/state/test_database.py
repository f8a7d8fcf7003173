"""Sessions and transactions: statements that run with the commit make no round trip, and are all or nothing with it."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any
from unittest.mock import patch

import psycopg2
import pytest

from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, SYSTEM
from api_server.state.database import Database, Transaction, connect
from api_server.state.driver import WatchedConnection
from api_server.state.errors import Conflict, LockNotAvailable
from api_server.state.statements import Statement
from tests.support import pgbouncer

KEEP = Statement("INSERT INTO kept (word) VALUES (%(word)s::text)")


@pytest.fixture(params=["prepared", "not prepared", "pooled"])
async def database(database_of_module: str, request: pytest.FixtureRequest) -> Any:
    """`pooled`: through a PgBouncer, which gives each transaction another session, or somebody else's."""
    with contextlib.ExitStack() as stack:
        url = database_of_module
        if request.param == "pooled":
            if not pgbouncer.program():
                pytest.skip("PgBouncer is not installed")
            url = stack.enter_context(pgbouncer.running(url))
        connected = connect(
            url, base_url="http://forge.example.org", size=1, prepares=request.param != "not prepared"
        )
        async with connected as database:
            yield await _with_a_table(database)


async def _with_a_table(database: Database) -> Database:
    async with database.transaction() as transaction:
        await transaction.run("DROP TABLE IF EXISTS kept")
        await transaction.row("CREATE TABLE kept (word text CHECK (word <> 'refused'))")
    return database


async def _keep(database: Database, *words: str, fails: bool = False) -> None:
    async with database.transaction() as transaction:
        for word in words:
            await transaction.at_commit(KEEP, word=word)
        if fails:
            raise ZeroDivisionError


async def _words(database: Database) -> list[str]:
    return [row.word for row in await database.rows("SELECT word FROM kept")]


async def test_they_run_in_their_order_behind_everything_else(database: Database) -> None:
    async with database.transaction() as transaction:
        await transaction.at_commit(KEEP, word="it's 100 %")
        await transaction.at_commit("INSERT INTO kept SELECT count(*)::text FROM kept")
        await transaction.row(KEEP, word="first")
    assert await _words(database) == ["first", "it's 100 %", "2"]


async def test_one_that_fails_undoes_the_transaction(database: Database) -> None:
    with pytest.raises(psycopg2.errors.CheckViolation):
        await _keep(database, "first", "refused", "last")
    assert await _words(database) == []
    await _keep(database, "later")
    assert await _words(database) == ["later"]


async def test_a_row_that_is_there_already_is_a_conflict(database: Database) -> None:
    async with database.transaction() as transaction:
        await transaction.row("CREATE UNIQUE INDEX kept_word ON kept (word)")
    with pytest.raises(Conflict, match="kept_word"):
        await _keep(database, "twice", "twice")


async def test_nothing_of_a_block_that_raises_is_run(database: Database) -> None:
    with pytest.raises(ZeroDivisionError):
        await _keep(database, "first", fails=True)
    assert await _words(database) == []


@pytest.fixture
async def messages(database: Database) -> AsyncIterator[list[str]]:
    """What was sent over the one connection of `database`, one for each round trip.

    Servers of other tests send theirs in this process too.
    """
    sent: list[str] = []
    execute = WatchedConnection.execute
    async with database._connection() as connection:
        ours = connection._driver

    async def noted(driver: WatchedConnection, cursor: Any, operation: str, *arguments: Any) -> None:
        if driver is ours:
            sent.append(operation)
        await execute(driver, cursor, operation, *arguments)

    with patch.object(WatchedConnection, "execute", noted):
        yield sent


async def _record(transaction: Transaction) -> None:
    await audit_trail.record(
        transaction,
        "application_setting_updated",
        author=SYSTEM,
        entity=INSTANCE,
        target_id=1,
        target_details="settings",
        message="Changed",
    )


async def test_recording_events_adds_no_round_trip(database: Database, messages: list[str]) -> None:
    async with database.transaction() as transaction:
        await _record(transaction)
    before = await database.value("SELECT count(*) FROM audit_events")
    messages.clear()
    async with database.transaction() as transaction:
        await transaction.row("SELECT 1")
        await _record(transaction)
        await _record(transaction)
    assert len(messages) == len(["BEGIN", "SELECT 1", "the events and COMMIT"])
    assert await database.value("SELECT count(*) FROM audit_events") == before + 2


async def test_nothing_is_compiled(database: Database) -> None:
    """The cost of a statement is estimated over all partitions, of which it reads one or two."""
    assert await database.value("SHOW jit") == "off"


async def test_of_two_that_would_wait_for_each_other_one_is_told_that_the_row_is_held(
    database_of_module: str,
) -> None:
    """And has changed nothing; the other one goes on."""
    lock = "SELECT id FROM held_rows WHERE id = %(id)s FOR UPDATE"
    async with connect(database_of_module, base_url="http://forge.example.org", size=2) as database:
        async with database.transaction() as transaction:
            await transaction.run("CREATE TABLE held_rows AS SELECT 1 AS id UNION SELECT 2")
        both = asyncio.Barrier(2)

        async def hold(first: int, then: int) -> None:
            async with database.transaction() as transaction:
                await transaction.value(lock, id=first)
                await both.wait()
                await transaction.value(lock, id=then)

        [problem] = filter(None, await asyncio.gather(hold(1, 2), hold(2, 1), return_exceptions=True))
        assert isinstance(problem, LockNotAvailable)


async def test_who_is_cancelled_while_it_commits_goes_on_after_the_commit(database: Database) -> None:
    """Nothing is written any more that somebody has begun who has ended."""
    is_done = asyncio.Event()

    async def write() -> None:
        async with database.transaction() as transaction:
            await transaction.at_commit("SELECT pg_sleep(0.3)")
            await transaction.at_commit(KEEP, word="late")
            is_done.set()

    writing = asyncio.create_task(write())
    await asyncio.wait_for(is_done.wait(), 20)
    writing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await writing
    assert await _words(database) == ["late"]


async def test_the_smallest_number_of_64_bits_can_be_cast(database: Database) -> None:
    smallest = -(2**63)
    found = await database.row(
        "SELECT %(one)s::bigint AS one, %(many)s::bigint[] AS many", one=smallest, many=[smallest]
    )
    assert (found.one, found.many) == (smallest, [smallest])


async def test_without_replicas_showing_is_the_same(database: Database) -> None:
    assert database.replicas is None
    assert database.showing() is database
