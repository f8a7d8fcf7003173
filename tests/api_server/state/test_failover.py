"""A primary that is killed under load, and the standby that takes its place."""

import asyncio
import contextlib
from collections.abc import Callable

import pytest

from api_server.state.database import Database, connect
from api_server.state.errors import OutcomeUnknown, Unavailable
from forgelet.local import embedded_postgres
from tests.support import standbys

replicated = pytest.mark.skipif(not standbys.program(), reason="pg_basebackup is not installed")
WRITERS = 4
MANY = 200


#: A trigger that writes a message when the transaction commits.
SAYS_ONLY = """
    CREATE OR REPLACE FUNCTION say() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN RAISE {} 'kept'; RETURN NULL; END
    $$
"""
SAYS = f"""
    {SAYS_ONLY};
    CREATE TABLE kept (number bigint);
    CREATE CONSTRAINT TRIGGER says AFTER INSERT ON kept DEFERRABLE INITIALLY DEFERRED
        FOR EACH ROW EXECUTE FUNCTION say();
"""


async def _add(database: Database, number: int, *, at_commit: bool = False) -> None:
    async with database.transaction() as transaction:
        add = transaction.at_commit if at_commit else transaction.run
        await add("INSERT INTO kept VALUES (%(number)s)", number=number)


@replicated
async def test_nothing_is_lost_that_was_acknowledged() -> None:
    with embedded_postgres.temporary_cluster() as primary, standbys.standby_of(primary) as standby:
        standbys.have_commits_wait(primary)
        url = standbys.several_hosts(primary.url(), standby.url("forgelet", "forgelet"))
        async with connect(url, base_url="x", size=WRITERS, connect_timeout=4) as database:
            async with database.transaction() as transaction:
                await transaction.run("CREATE TABLE kept (number bigint)")
            acknowledged: set[int] = set()

            async def write(first: int) -> None:
                number = first
                while len(acknowledged) < 2 * MANY:
                    number += WRITERS
                    with contextlib.suppress(Unavailable):
                        await _add(database, number)
                        acknowledged.add(number)
                    await asyncio.sleep(0)

            async with asyncio.timeout(standbys.SECONDS), asyncio.TaskGroup() as group:
                for first in range(WRITERS):
                    group.create_task(write(first))
                while len(acknowledged) < MANY:
                    await asyncio.sleep(0.001)
                standbys.kill(primary)
                before = len(acknowledged)
                await asyncio.to_thread(standby.promote)
            assert before < len(acknowledged)
            async with database.transaction() as transaction:
                rows = await transaction.rows("SELECT number FROM kept")  # type: ignore[arg-type]
            assert acknowledged - {row.number for row in rows} == set()


@replicated
async def test_what_no_standby_has_is_not_acknowledged() -> None:
    """PostgreSQL ends the wait like any other statement, with a warning, and the commit exists only on the primary."""
    with embedded_postgres.temporary_cluster() as primary, standbys.standby_of(primary) as standby:
        standbys.have_commits_wait(primary)
        async with connect(primary.url(), base_url="x", size=1, statement_timeout=0.5) as database:
            async with database.transaction() as transaction:
                await transaction.run("CREATE TABLE kept (number bigint)")
            standby.stop()
            with pytest.raises(OutcomeUnknown):
                await _add(database, 1)
            standby.start()
            await _add(database, 2)


@pytest.mark.parametrize("at_commit", [False, True])
async def test_what_triggers_say_at_a_commit_is_no_warning_of_replication(
    new_database: Callable[[], str], at_commit: bool
) -> None:
    async with connect(new_database(), base_url="x", size=1) as database:
        async with database.transaction() as transaction:
            await transaction.run(SAYS.format("NOTICE"))
        await _add(database, 1, at_commit=at_commit)
        async with database.transaction() as transaction:
            await transaction.run(SAYS_ONLY.format("WARNING"))
        with pytest.raises(OutcomeUnknown):
            await _add(database, 2, at_commit=at_commit)
        assert await database.value("SELECT count(*) FROM kept") == 2
