"""There is a partition for every event, whatever the application's clock shows."""

import contextlib
from pathlib import Path

import psycopg2

from api_server.audit import chain, queries
from api_server.audit.chain import MONTHS_AHEAD
from api_server.state.database import Database
from tests.api_server.audit.trail import partitions, record_events
from tests.support.clock import MovedClock, forge_with_clock

PLACES = "SELECT target_details, tableoid::regclass::text AS partition FROM audit_events"


async def _places(database: Database) -> dict[str, str]:
    """The partition of each event, by what it is about."""
    return {row.target_details: row.partition for row in await database.rows(PLACES)}


async def _make(database: Database, ahead: int = MONTHS_AHEAD) -> int:
    async with database.transaction() as transaction:
        return await queries.make_partitions(transaction, ahead)


async def test_partitions_are_made_ahead(database: Database) -> None:
    before = await partitions(database)
    assert len(before) == 1 + MONTHS_AHEAD + len({"audit_events_past", "audit_events_future"})
    assert await _make(database, 3) == 0
    assert await _make(database, 5) == 2
    assert len(await partitions(database)) == len(before) + 2


async def test_no_event_is_refused_for_want_of_a_partition(database: Database, database_url: str) -> None:
    """Events later than all months made so far find a place, and keep it when the months are made at last."""
    await record_events(database, "now")
    with contextlib.closing(psycopg2.connect(database_url)) as connection, connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO audit_events (created_at, author_id, author_name, entity_type, entity_id, entity_path,
                event_type, target_type, target_details, details)
            SELECT now() + '1 year', author_id, author_name, entity_type, entity_id, entity_path, event_type,
                target_type, 'next year', details FROM audit_events
            RETURNING tableoid::regclass::text
            """
        )
        assert cursor.fetchone() == ("audit_events_future",)
        connection.commit()
    assert await _make(database, 14) > 0
    row = await database.row(
        "SELECT tableoid::regclass::text AS name, created_at FROM audit_events WHERE target_details = 'next year'"
    )
    assert row.name == f"audit_events_{row.created_at:%Y_%m}"
    verdict = await chain.verify(database)
    assert (verdict.head.position, verdict.problem) == (2, None)


async def test_months_are_those_of_the_applications_clock(clocked: tuple[Database, MovedClock]) -> None:
    """Years that nobody has lived through are one partition, and what is written in them later finds it."""
    database, clock = clocked
    before = set(await partitions(database))
    assert await _make(database) == 2 + MONTHS_AHEAD
    added = sorted(set(await partitions(database)) - before)
    assert added == [f"audit_events_2031_{month:02}" for month in (2, 3, 4, 5, 6)]
    await record_events(database, "now")
    clock.move(days=-500)
    await record_events(database, "before")
    clock.move(days=-6000)
    await record_events(database, "long ago")
    clock.move(days=9000)
    await record_events(database, "after all")
    assert await _places(database) == {
        "now": "audit_events_2031_03",
        "before": "audit_events_2031_02",
        "long ago": "audit_events_past",
        "after all": "audit_events_future",
    }


async def test_a_server_under_a_moved_clock_makes_its_months(database_url: str, tmp_path: Path) -> None:
    async with forge_with_clock(database_url, tmp_path) as (forge, _):
        await forge.group()
        assert set((await _places(forge.database)).values()) == {"audit_events_2031_03"}


async def test_months_are_made_where_all_have_been_removed(clocked: tuple[Database, MovedClock]) -> None:
    """As when a service that has stood still for years starts again."""
    database, _ = clocked
    async with database.transaction() as transaction:
        for name in await partitions(database):
            if name not in ("audit_events_past", "audit_events_future"):
                await transaction.run(f"ALTER TABLE audit_events DETACH PARTITION {name}")
                await transaction.run(f"DROP TABLE {name}")
    assert await _make(database) == 2 + MONTHS_AHEAD
    await record_events(database, "now")
    assert await _places(database) == {"now": "audit_events_2031_03"}
