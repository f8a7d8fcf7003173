"""Only declared events are recorded, dated by the application's clock, and the database refuses to change them (D7)."""

import asyncio
import datetime
import json
from typing import Any

import psycopg2
import pytest

from api_server.audit import chain, queries
from api_server.state import audit_trail
from api_server.state.audit_event_types import EVENT_TYPES
from api_server.state.audit_trail import INSTANCE, SYSTEM, Entity
from api_server.state.database import Database
from api_server.state.listing import Page
from tests.api_server.audit.trail import GROUP, record_events
from tests.support.clock import MovedClock


@pytest.mark.parametrize(
    ("event_type", "entity", "values", "problem"),
    [
        (
            "group_exploded",
            GROUP,
            {},
            "group_exploded is no type of audit event; add it to audit_event_types.py",
        ),
        ("group_created", INSTANCE, {}, "does not belong to a Service::Audit::InstanceScope"),
        ("group_created", GROUP, {"color": "red"}, "has no details color"),
        ("group_name_updated", GROUP, {"change": "name", "to": "x"}, "has no value for from"),
    ],
)
async def test_only_declared_events_are_recorded(
    database: Database, event_type: str, entity: Entity, values: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ValueError, match=problem.replace("(", ".")):
        async with database.transaction() as transaction:
            await audit_trail.record(transaction, event_type, SYSTEM, entity, **values)


def test_every_type_says_what_it_belongs_to_and_is_about() -> None:
    for name, declared in EVENT_TYPES.items():
        assert name == name.lower()
        assert declared.scopes
        assert declared.target
        assert all(declared.messages)


async def test_details_are_texts_and_long_ones_are_cut(database: Database) -> None:
    async with database.transaction() as transaction:
        await audit_trail.record(
            transaction,
            "project_archived",
            SYSTEM,
            Entity("Project", 1, "p" * 9000).target(1, "d" * 9000),
            change="archived",
            **{"from": False, "to": None},
        )
    row = await database.row("SELECT details, entity_path, target_details FROM audit_events")
    assert json.loads(row.details) == {
        "custom_message": "Changed archived from false to nothing",
        "change": "archived",
        "from": "false",
        "to": "",
    }
    assert (len(row.entity_path), len(row.target_details)) == (5500, 5500)


async def test_an_event_of_a_change_that_is_undone_is_undone(database: Database) -> None:
    await record_events(database, "kept")
    await record_events(database, "undone", fails=True)
    assert await database.value("SELECT count(*) FROM audit_events") == 1
    verdict = await chain.verify(database)
    assert (verdict.head.position, verdict.problem) == (1, None)


@pytest.mark.parametrize("table", ["audit_events", "audit_chain"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET created_at = now()", "TRUNCATE {}"])
async def test_the_database_refuses_to_change_events(database: Database, table: str, statement: str) -> None:
    await record_events(database, "event")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="audit events are only ever added"):
        async with database.transaction() as transaction:
            await transaction.run(statement.format(table))


async def test_a_partition_cannot_be_emptied_by_its_own_name(database: Database) -> None:
    await record_events(database, "event")
    name = await database.value("SELECT tableoid::regclass::text FROM audit_events")
    for statement in (f"TRUNCATE {name}", f"DELETE FROM {name}"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            async with database.transaction() as transaction:
                await transaction.run(statement)


# --- moments --------------------------------------------------------------------------------------------------------


async def _moments(database: Database) -> dict[str, datetime.datetime]:
    """Of all events in the order of their ids, by what they are about."""
    rows = await database.rows("SELECT target_details, created_at FROM audit_events ORDER BY id")
    return {row.target_details: row.created_at for row in rows}


async def test_the_applications_clock_dates_events(clocked: tuple[Database, MovedClock]) -> None:
    """In milliseconds, as they are shown; ahead, back by years, and ahead again."""
    database, clock = clocked
    expected = {}
    for name, moved in (
        ("first", {}),
        ("ahead", {"days": 400}),
        ("back", {"days": -4000}),
        ("on", {"days": 1}),
    ):
        clock.move(**moved, microseconds=1900)
        await record_events(database, name)
        expected[name] = clock.now.replace(microsecond=clock.now.microsecond // 1000 * 1000)
    assert await _moments(database) == expected
    assert (await chain.verify(database)).problem is None


async def test_who_began_first_and_ends_last_is_the_newest(clocked: tuple[Database, MovedClock]) -> None:
    """Whoever has read up to the newest event finds every later one behind it, by id and by moment."""
    database, clock = clocked
    async with database.transaction() as slow:
        clock.move(seconds=30)
        await record_events(database, "quick")
        await audit_trail.record(slow, "group_created", SYSTEM, GROUP.target(1, "slow"))
    assert list(await _moments(database)) == ["quick", "slow"]
    assert set((await _moments(database)).values()) == {clock.now}
    await record_events(database, "later")
    listed = await queries.list_events(database, Page(counted=False), {})
    assert [event["details"]["target_details"] for event in json.loads(listed.body)] == [
        "later",
        "slow",
        "quick",
    ]


async def test_ids_and_moments_ascend_together(clocked: tuple[Database, MovedClock]) -> None:
    """Also of transactions that begin one after the other and end all at once."""
    database, clock = clocked
    all_have_begun = asyncio.Barrier(8)

    async def write(name: str) -> None:
        async with database.transaction() as transaction:
            clock.move(seconds=1)
            await all_have_begun.wait()
            for part in "ab":
                await audit_trail.record(
                    transaction, "group_created", SYSTEM, GROUP.target(1, f"{name}{part}")
                )

    for round_number in range(5):
        await asyncio.gather(*(write(f"{round_number}.{number}") for number in range(8)))
    moments = list((await _moments(database)).values())
    assert len(moments) == 80
    assert moments == sorted(moments)
    chained = await database.rows("SELECT event_id FROM audit_chain ORDER BY position")
    assert [row.event_id for row in chained] == sorted(row.event_id for row in chained)


async def test_a_clock_that_was_set_back_far_counts_as_it_is(clocked: tuple[Database, MovedClock]) -> None:
    database, clock = clocked
    start = clock.now
    for name, back in (("first", 0), ("an hour", 60), ("more", 61)):
        clock.now = start - datetime.timedelta(minutes=back)
        await record_events(database, name)
    assert await _moments(database) == {
        "first": start,
        "an hour": start,
        "more": start - datetime.timedelta(minutes=61),
    }
