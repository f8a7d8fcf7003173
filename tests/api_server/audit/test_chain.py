"""The audit trail cannot be changed, and when it is all the same, `verify` names the row (decision D7)."""

import asyncio
import contextlib
import datetime
import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from click.testing import CliRunner

from api_server.audit import chain
from api_server.audit.tasks import MONTHS_AHEAD
from api_server.commands import commands
from api_server.state import audit_trail
from api_server.state.audit_event_types import EVENT_TYPES
from api_server.state.audit_trail import INSTANCE, SYSTEM, Entity
from api_server.state.database import Database, connect

GROUP = Entity(type="Group", id=1, path="some/group")


@pytest.fixture
def database_url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
async def database(database_url: str) -> Any:
    async with connect(database_url, base_url="http://forge.example.org", size=10) as connected:
        yield connected


async def _record(database: Database, *names: str, fails: bool = False) -> None:
    """One transaction with a group_created event for each of `names`."""
    with contextlib.suppress(ZeroDivisionError):
        async with database.transaction() as transaction:
            for name in names:
                await audit_trail.record(
                    transaction,
                    "group_created",
                    author=SYSTEM,
                    entity=GROUP,
                    target_id=1,
                    target_details=name,
                    message="Added group",
                )
            if fails:
                raise ZeroDivisionError


@contextlib.contextmanager
def _without_triggers(url: str) -> Iterator[Any]:
    """The owner of the tables, for whom nothing is refused and nothing is chained meanwhile."""
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for do in ("DISABLE", "ENABLE"):
                cursor.execute(
                    f"ALTER TABLE audit_events {do} TRIGGER USER; ALTER TABLE audit_chain {do} TRIGGER USER"
                )
                if do == "DISABLE":
                    yield cursor


def _run(url: str, *arguments: str, **options: Any) -> Any:
    environment = {"FORGELET_API_DATABASE_URL": url, "FORGELET_API_DATA_DIR": "."}
    return CliRunner().invoke(commands, ["audit", *arguments], env=environment, **options)


# --- recording ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("event_type", "values", "problem"),
    [
        ("group_exploded", {}, "group_exploded is no type of audit event; add it to audit_event_types.py"),
        ("group_created", {"entity": INSTANCE}, "does not belong to a Service::Audit::InstanceScope"),
        ("group_created", {"color": "red"}, "has no details color"),
    ],
)
async def test_only_declared_events_are_recorded(
    database: Database, event_type: str, values: dict[str, Any], problem: str
) -> None:
    event: dict[str, Any] = {
        "author": SYSTEM,
        "entity": GROUP,
        "target_id": 1,
        "target_details": "x",
        "message": "x",
    }
    with pytest.raises(ValueError, match=problem.replace("(", ".")):
        async with database.transaction() as transaction:
            await audit_trail.record(transaction, event_type, **(event | values))


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
            author=SYSTEM,
            entity=Entity(type="Project", id=1, path="p" * 9000),
            target_id=1,
            target_details="d" * 9000,
            message="Project archived",
            change="archived",
            **{"from": False, "to": None},
        )
    row = await database.row("SELECT details, entity_path, target_details FROM audit_events")
    assert json.loads(row.details) == {
        "custom_message": "Project archived",
        "change": "archived",
        "from": "false",
        "to": "",
    }
    assert (len(row.entity_path), len(row.target_details)) == (5500, 5500)


async def test_an_event_of_a_change_that_is_undone_is_undone(database: Database) -> None:
    await _record(database, "kept")
    await _record(database, "undone", fails=True)
    assert await database.value("SELECT count(*) FROM audit_events") == 1
    verdict = await chain.verify(database)
    assert (verdict.head.position, verdict.problem) == (1, None)


@pytest.mark.parametrize("table", ["audit_events", "audit_chain"])
@pytest.mark.parametrize("statement", ["DELETE FROM {}", "UPDATE {} SET created_at = now()", "TRUNCATE {}"])
async def test_the_database_refuses_to_change_events(database: Database, table: str, statement: str) -> None:
    await _record(database, "event")
    with pytest.raises(psycopg2.errors.InsufficientPrivilege, match="audit events are only ever added"):
        async with database.transaction() as transaction:
            await transaction.row(statement.format(table))


async def test_a_partition_cannot_be_emptied_by_its_own_name(database: Database) -> None:
    await _record(database, "event")
    name = await database.value("SELECT tableoid::regclass::text FROM audit_events")
    for statement in (f"TRUNCATE {name}", f"DELETE FROM {name}"):
        with pytest.raises(psycopg2.errors.InsufficientPrivilege):
            async with database.transaction() as transaction:
                await transaction.row(statement)


# --- partitions -----------------------------------------------------------------------------------------------------

PARTITIONS = """
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'audit_events'::regclass ORDER BY relname
"""


async def _partitions(database: Database) -> list[str]:
    return [row.relname for row in await database.rows(PARTITIONS)]


async def test_partitions_are_made_ahead(database: Database) -> None:
    before = await _partitions(database)
    assert len(before) == 1 + MONTHS_AHEAD + len({"audit_events_past", "audit_events_future"})
    async with database.transaction() as transaction:
        assert await transaction.value("SELECT make_audit_partitions(3)") == 0
        assert await transaction.value("SELECT make_audit_partitions(5)") == 2
    assert len(await _partitions(database)) == len(before) + 2


async def test_no_event_is_refused_for_want_of_a_partition(database: Database, database_url: str) -> None:
    """Events later than all months made so far find a place, and keep it when the months are made at last."""
    await _record(database, "now")
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
    async with database.transaction() as transaction:
        assert await transaction.value("SELECT make_audit_partitions(14)") > 0
    row = await database.row(
        "SELECT tableoid::regclass::text AS name, created_at FROM audit_events WHERE target_details = 'next year'"
    )
    assert row.name == f"audit_events_{row.created_at:%Y_%m}"
    verdict = await chain.verify(database)
    assert (verdict.head.position, verdict.problem) == (2, None)


# --- verifying ------------------------------------------------------------------------------------------------------


async def test_an_empty_trail_is_sound(database: Database) -> None:
    assert await chain.verify(database) == chain.Verdict(chain.Head(), 0, None)


async def test_fifty_writers_at_a_time_make_one_chain(database: Database) -> None:
    await asyncio.gather(*(_record(database, f"{n}a", f"{n}b", fails=n % 10 == 9) for n in range(50)))
    verdict = await chain.verify(database)
    assert (verdict.head.position, verdict.problem) == (90, None)
    together = await database.rows(
        """
        SELECT string_agg(target_details, ' ' ORDER BY position) AS pair
        FROM audit_chain JOIN audit_events ON audit_events.id = event_id GROUP BY (position - 1) / 2
        """
    )
    assert {row.pair for row in together} == {f"{n}a {n}b" for n in range(50) if n % 10 != 9}


@pytest.mark.parametrize(
    ("tampering", "problem"),
    [
        ("UPDATE audit_events SET author_name = 'mallory' WHERE id = 3", "event 3 (position 3) was changed"),
        ("UPDATE audit_events SET details = '{}' WHERE id IN (4, 3)", "event 3 (position 3) was changed"),
        ("UPDATE audit_events SET ip_address = '' WHERE id = 1", "event 1 (position 1) was changed"),
        (
            "UPDATE audit_events SET created_at = created_at + interval '1 ms' WHERE id = 3",
            "event 3 (position 3) is missing",
        ),
        ("DELETE FROM audit_events WHERE id = 3", "event 3 (position 3) is missing"),
        ("DELETE FROM audit_chain WHERE position = 3", "position 3 of the chain is missing"),
        (
            "DELETE FROM audit_chain WHERE position = 3; DELETE FROM audit_events WHERE id = 3;"
            "UPDATE audit_chain SET position = position - 1 WHERE position > 3",
            "event 4 (position 3) is not linked to the one before it",
        ),
        (
            "UPDATE audit_events SET author_name = 'mallory' WHERE id = 3; UPDATE audit_chain SET digest ="
            "sha256(convert_to(audit_event_line(e), 'UTF8')) FROM audit_events e WHERE e.id = 3 AND event_id = 3",
            "event 3 (position 3) is not linked to the one before it",
        ),
        (
            "INSERT INTO audit_events SELECT (jsonb_populate_record(e, '{\"id\": 99}')).* FROM audit_events e"
            " WHERE id = 3",
            "event 99 was added past the chain",
        ),
    ],
)
async def test_verify_names_the_first_broken_row(
    database: Database, database_url: str, tampering: str, problem: str
) -> None:
    for number in range(1, 6):
        await _record(database, f"event {number}")
    assert (await chain.verify(database)).problem is None
    with _without_triggers(database_url) as cursor:
        cursor.execute(tampering)
    assert (await chain.verify(database)).problem == problem
    shown = await asyncio.to_thread(_run, database_url, "verify")
    assert (shown.exit_code, shown.stderr) == (1, f"Error: the audit trail is broken: {problem}\n")


async def test_a_head_kept_elsewhere_shows_a_chain_that_was_cut_or_forged(
    database: Database, database_url: str
) -> None:
    for number in range(1, 6):
        await _record(database, f"event {number}")
    first = await asyncio.to_thread(_run, database_url, "verify")
    assert first.exit_code == 0
    head = first.stdout.split("head ")[1].strip()
    await _record(database, "later")
    later = await asyncio.to_thread(_run, database_url, "verify", "--expect", head)
    assert (later.exit_code, later.stdout[:15]) == (0, "sound: 6 events")

    with _without_triggers(database_url) as cursor:
        cursor.execute("DELETE FROM audit_chain WHERE position > 4; DELETE FROM audit_events WHERE id > 4")
    assert (await chain.verify(database)).problem is None, "a cut chain is sound in itself"
    cut = await asyncio.to_thread(_run, database_url, "verify", "--expect", head)
    assert (cut.exit_code, "ends at position 4, before the expected head 5" in cut.stderr) == (1, True)

    await _record(database, "forged")
    forged = await asyncio.to_thread(_run, database_url, "verify", "--expect", head)
    assert (forged.exit_code, "the chain was written anew" in forged.stderr) == (1, True)


def test_a_head_that_cannot_be_read_is_refused() -> None:
    answer = _run("postgresql://nobody@127.0.0.1:1/none", "verify", "--expect", "nonsense")
    assert answer.exit_code == 2
    assert "a head is <position>:<64 hex digits>" in answer.stderr


def test_help_needs_no_settings() -> None:
    shown = CliRunner().invoke(commands, ["audit", "--help"])
    assert shown.exit_code == 0
    assert {"verify", "export", "remove"} <= set(shown.stdout.split())


def test_missing_settings_are_told_in_one_sentence() -> None:
    shown = CliRunner().invoke(
        commands, ["audit", "verify"], env={"FORGELET_API_DATABASE_URL": "postgresql://x"}
    )
    assert shown.exit_code == 1
    assert "data_dir" in shown.stderr


# --- export and removal ---------------------------------------------------------------------------------------------


async def test_exported_lines_are_what_the_chain_digests(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    for name in ("plain", 'with \n \\ \t " and umlaut ü', "last"):
        await _record(database, name)
    file = tmp_path / "events.ndjson"
    done = await asyncio.to_thread(_run, database_url, "export", "--output", str(file))
    assert done.exit_code == 0, done
    lines = file.read_bytes().split(b"\n")
    assert lines.pop() == b""
    events = [json.loads(line) for line in lines]
    assert [event["target_details"] for event in events] == [
        "plain",
        'with \n \\ \t " and umlaut ü',
        "last",
    ]
    digests = await database.rows("SELECT digest FROM audit_chain ORDER BY position")
    assert [hashlib.sha256(line).digest() for line in lines] == [bytes(row.digest) for row in digests]
    assert done.stderr == f"3 events, SHA-256 {hashlib.sha256(file.read_bytes()).hexdigest()}\n"
    assert list(tmp_path.iterdir()) == [file], "nothing half-written stays"


async def test_an_export_can_be_narrowed_and_goes_to_standard_output(
    database: Database, database_url: str
) -> None:
    await _record(database, "one")
    none = await asyncio.to_thread(_run, database_url, "export", "--until", "2020-01-01")
    assert (none.exit_code, none.stdout) == (0, "")
    all_of_them = await asyncio.to_thread(_run, database_url, "export", "--since", "2020-01-01")
    assert json.loads(all_of_them.stdout)["target_details"] == "one"


async def _old_month(database: Database, url: str) -> None:
    """Makes October 2021 a month with three chained events, as if the service had run then."""
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute("ALTER TABLE audit_events DETACH PARTITION audit_events_past")
        cursor.execute("DROP TABLE audit_events_past")
        cursor.execute("SELECT make_audit_partition('audit_events_past', NULL, '2021-10-01')")
        cursor.execute("SELECT make_audit_partition('audit_events_2021_10', '2021-10-01', '2021-11-01')")
        for day in (5, 6, 7):
            cursor.execute(
                """
                INSERT INTO audit_events (created_at, author_id, author_name, entity_type, entity_id, entity_path,
                    event_type, target_type, target_details, details)
                VALUES (%s, 1, 'alice', 'Group', 1, 'g', 'group_created', 'Group', 'old', '{}')
                """,
                (datetime.datetime(2021, 10, day, tzinfo=datetime.UTC),),
            )
        connection.commit()
    await _record(database, "new")


async def test_old_months_are_removed_only_after_an_export(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The chain stays whole, an event tells of the removal, and nothing else goes."""
    await _old_month(database, database_url)
    head = (await chain.verify(database)).head
    arguments = ["remove", "--before", "2021-11-01", "--export-to", str(tmp_path)]
    refused = await asyncio.to_thread(_run, database_url, *arguments, input="n\n")
    assert refused.exit_code == 1
    done = await asyncio.to_thread(_run, database_url, *arguments, "--yes")
    assert done.exit_code == 0, done

    exported = (tmp_path / "audit_events_2021_10.ndjson").read_bytes()
    digest = hashlib.sha256(exported).hexdigest()
    assert len(exported.splitlines()) == 3
    assert done.stdout == f"audit_events_2021_10: 3 events, SHA-256 {digest}\n"
    rows = await database.rows("SELECT event_type, details FROM audit_events ORDER BY id")
    assert [row.event_type for row in rows] == ["group_created", "audit_events_removed"]
    assert json.loads(rows[1].details)["sha256"] == digest
    verdict = await chain.verify(database, head)
    assert (verdict.head.position, verdict.removed, verdict.problem) == (5, 3, None)
    again = await asyncio.to_thread(_run, database_url, *arguments, "--yes")
    assert again.stdout == "There is no whole month before that day.\n"


async def test_a_broken_month_is_not_removed(database: Database, database_url: str, tmp_path: Path) -> None:
    await _old_month(database, database_url)
    with _without_triggers(database_url) as cursor:
        cursor.execute("DELETE FROM audit_events WHERE target_details = 'old' AND id = 2")
    arguments = ["remove", "--before", "2021-11-01", "--export-to", str(tmp_path), "--yes"]
    done = await asyncio.to_thread(_run, database_url, *arguments)
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: the audit trail is broken: event 2 (position 2) is missing\n",
    )
    assert "audit_events_2021_10" in await _partitions(database)


async def test_this_month_is_never_removed(database: Database, database_url: str, tmp_path: Path) -> None:
    await _record(database, "now")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    arguments = ["remove", "--export-to", str(tmp_path), "--yes", "--before"]
    done = await asyncio.to_thread(_run, database_url, *arguments, today)
    assert done.stdout == "There is no whole month before that day.\n"
    future = await asyncio.to_thread(_run, database_url, *arguments, "2999-01-01")
    assert future.exit_code == 2
