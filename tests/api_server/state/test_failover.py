"""A primary that is killed under load, and the standby that takes its place."""

import asyncio
import contextlib

import pytest

from api_server.state.database import Database, connect
from api_server.state.errors import OutcomeUnknown, Unavailable
from forgelet.local import embedded_postgres
from tests.support import standbys

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not standbys.program(), reason="pg_basebackup is not installed"),
]
WRITERS = 4
MANY = 200


async def _add(database: Database, number: int) -> None:
    async with database.transaction() as transaction:
        await transaction.run("INSERT INTO kept VALUES (%(number)s)", number=number)


async def test_nothing_is_lost_that_was_acknowledged() -> None:
    with embedded_postgres.temporary() as primary, standbys.standby_of(primary) as standby:
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


async def test_what_no_standby_has_is_not_acknowledged() -> None:
    """PostgreSQL ends its waiting like any other statement, by a warning, and the commit stays on the primary alone."""
    with embedded_postgres.temporary() as primary, standbys.standby_of(primary) as standby:
        standbys.have_commits_wait(primary)
        async with connect(primary.url(), base_url="x", size=1, statement_timeout=0.5) as database:
            async with database.transaction() as transaction:
                await transaction.run("CREATE TABLE kept (number bigint)")
            standby.stop()
            with pytest.raises(OutcomeUnknown):
                await _add(database, 1)
            standby.start()
            await _add(database, 2)
