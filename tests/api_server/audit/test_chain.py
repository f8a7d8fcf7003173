"""The chain of events, its heads, the partitions of the table, and months that operators export and remove."""

import asyncio
import contextlib
import datetime
import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import psycopg2
import pytest
from click.testing import CliRunner

from api_server.audit import chain, queries
from api_server.audit.chain import MONTHS_AHEAD, Head
from api_server.state.database import Database
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.web.context import SERVICES
from forgelet.command_line import forgelet
from tests.api_server.audit.conftest import (
    MAKE_OLD_MONTH,
    partitions,
    record_events,
    run_command,
    without_triggers,
)
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.logs import lines_of_this_test


async def test_an_empty_trail_is_sound(database: Database) -> None:
    assert await chain.verify(database) == chain.Verdict(chain.Head(), 0, None)


async def test_fifty_writers_at_a_time_make_one_chain(database: Database) -> None:
    await asyncio.gather(*(record_events(database, f"{n}a", f"{n}b", fails=n % 10 == 9) for n in range(50)))
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
        await record_events(database, f"event {number}")
    assert (await chain.verify(database)).problem is None
    with without_triggers(database_url) as cursor:
        cursor.execute(tampering)
    assert (await chain.verify(database)).problem == problem
    shown = await asyncio.to_thread(run_command, database_url, "verify")
    assert (shown.exit_code, shown.stderr) == (1, f"Error: The audit trail is broken: {problem}\n")


async def test_a_head_kept_elsewhere_shows_a_chain_that_was_cut_or_forged(
    database: Database, database_url: str
) -> None:
    for number in range(1, 6):
        await record_events(database, f"event {number}")
    first = await asyncio.to_thread(run_command, database_url, "verify")
    assert first.exit_code == 0
    head = first.stdout.rpartition("head ")[2].strip()
    await record_events(database, "later")
    later = await asyncio.to_thread(run_command, database_url, "verify", "--expect", head)
    assert (later.exit_code, later.stdout[:15]) == (0, "intact: 6 event")

    with without_triggers(database_url) as cursor:
        cursor.execute("DELETE FROM audit_chain WHERE position > 4; DELETE FROM audit_events WHERE id > 4")
    assert (await chain.verify(database)).problem is None, "a cut chain is sound in itself"
    cut = await asyncio.to_thread(run_command, database_url, "verify", "--expect", head)
    assert (cut.exit_code, "ends at position 4, before the expected head 5" in cut.stderr) == (1, True)

    await record_events(database, "forged")
    forged = await asyncio.to_thread(run_command, database_url, "verify", "--expect", head)
    assert (forged.exit_code, "the chain was written anew" in forged.stderr) == (1, True)


def test_a_head_that_cannot_be_read_is_refused() -> None:
    answer = run_command("postgresql://nobody@127.0.0.1:1/none", "verify", "--expect", "nonsense")
    assert answer.exit_code == 2
    assert "a head is <position>:<64 hex digits>" in answer.stderr


def test_help_needs_no_settings() -> None:
    shown = CliRunner().invoke(forgelet, ["audit", "--help"])
    assert shown.exit_code == 0
    assert {"verify", "export", "remove"} <= set(shown.stdout.split())


def test_missing_settings_are_told_in_one_sentence() -> None:
    shown = CliRunner().invoke(
        forgelet, ["audit", "verify"], env={"FORGELET_API_DATABASE_URL": "postgresql://x"}
    )
    assert shown.exit_code == 2
    assert shown.stderr == (
        "Error: The setting data_dir is missing: set FORGELET_API_DATA_DIR, or data_dir in section [api_server]"
        " of the file that FORGELET_SETTINGS names\n"
    )


CUT = "DELETE FROM audit_chain WHERE position > 3; DELETE FROM audit_events WHERE id > 3"


@pytest.fixture
def objects(tmp_path: Path) -> Objects:
    return open_objects("", tmp_path)


async def _head(database: Database) -> Head:
    return (await chain.verify(database)).head


async def test_a_head_is_kept_once_in_log_and_object_store(
    database: Database, objects: Objects, tmp_path: Path
) -> None:
    with lines_of_this_test() as logged:
        await chain.keep_present_head(database, objects)
        assert (await chain.kept_heads(objects), logged) == ([], []), "nothing was recorded yet"
        await record_events(database, "one", "two")
        first = await _head(database)
        for _ in range(2):
            await chain.keep_present_head(database, objects)
        await record_events(database, "three")
        await chain.keep_present_head(database, objects)
    second = await _head(database)
    assert await chain.kept_heads(objects) == [first, second]
    assert [line["head"] for line in logged] == [str(first), str(second)]
    file = tmp_path / "objects" / chain.key_of(first)
    assert file.read_text().split() == [str(first), file.read_text().split()[1]]


async def test_a_tail_that_was_cut_off_is_missed(
    database: Database, database_url: str, objects: Objects, tmp_path: Path
) -> None:
    for number in range(1, 6):
        await record_events(database, f"event {number}")
    await chain.keep_present_head(database, objects)
    told = await asyncio.to_thread(run_command, database_url, "verify", data_dir=tmp_path)
    assert told.exit_code == 0, told
    assert told.stdout == f"intact: 5 events, 1 stored head agrees; head {await _head(database)}\n"

    with without_triggers(database_url) as cursor:
        cursor.execute(CUT)
    alone = await asyncio.to_thread(run_command, database_url, "verify")
    assert (alone.exit_code, "no head is stored" in alone.stdout) == (0, True)
    cut = await asyncio.to_thread(run_command, database_url, "verify", data_dir=tmp_path)
    assert (cut.exit_code, cut.stderr) == (
        1,
        "Error: The audit trail is broken: the chain ends at position 3, before the expected head 5:"
        " 2 or more events at its end are missing\n",
    )


async def test_a_chain_that_grew_again_after_the_cut_is_found_out(
    database: Database, database_url: str, objects: Objects, tmp_path: Path
) -> None:
    """`verify` always finds it, and so does the service when it stores the next head."""
    for number in range(1, 6):
        await record_events(database, f"event {number}")
    await chain.keep_present_head(database, objects)
    (kept,) = await chain.kept_heads(objects)
    with without_triggers(database_url) as cursor:
        cursor.execute(CUT)
    for number in range(4, 8):
        await record_events(database, f"forged {number}")
    with lines_of_this_test() as logged:
        await chain.keep_present_head(database, objects)
    assert [(line["log_level"], line.get("kept_head")) for line in logged] == [
        ("error", str(kept)),
        ("info", None),
    ]
    await chain.keep_present_head(database, objects)
    assert len(await chain.kept_heads(objects)) == 2, "the true one stays"
    found = await asyncio.to_thread(run_command, database_url, "verify", data_dir=tmp_path)
    assert found.exit_code == 1
    assert "(position 5) is not the head that was expected there: the chain was written anew" in found.stderr


async def test_months_that_were_exported_and_removed_are_not_missed(
    database: Database, database_url: str, objects: Objects, tmp_path: Path
) -> None:
    with without_triggers(database_url) as cursor:
        cursor.execute(MAKE_OLD_MONTH)
    clock = MovedClock()
    database._clock = clock
    clock.now = clock.now.replace(year=2021, month=10, day=5)
    await record_events(database, "old", "older")
    await chain.keep_present_head(database, objects)
    clock.now = clock.now.replace(year=2031)
    await record_events(database, "new")
    await chain.keep_present_head(database, objects)
    arguments = ["remove", "--before", "2021-11-01", "--export-to", str(tmp_path), "--yes"]
    removed = await asyncio.to_thread(run_command, database_url, *arguments, data_dir=tmp_path)
    assert removed.exit_code == 0, removed
    told = await asyncio.to_thread(run_command, database_url, "verify", data_dir=tmp_path)
    assert told.exit_code == 0, told
    assert "intact: 4 events, 2 of them exported and removed, 2 stored heads agree; " in told.stdout


async def test_an_object_store_that_does_not_answer_is_one_sentence(
    database_url: str, tmp_path: Path
) -> None:
    (tmp_path / "objects" / "audit").mkdir(parents=True)
    (tmp_path / "objects" / "audit" / "heads").symlink_to("heads")
    told = await asyncio.to_thread(run_command, database_url, "verify", data_dir=tmp_path)
    assert (told.exit_code, told.stderr.count("\n")) == (1, 1), told
    assert told.stderr.startswith("Error: the object store ")


async def test_a_running_service_keeps_heads_as_often_as_the_setting_says(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with forge_with_clock(new_database(), tmp_path, audit_head_minutes=60) as (forge, clock):
        objects, kept = open_objects("", tmp_path), []
        task = forge.server.app[SERVICES].queue._app.tasks["keep_audit_head"]
        for minutes in (0, 59, 1):
            clock.move(minutes=minutes)
            await forge.group()
            await task(timestamp=0)
            kept.append(len(await chain.kept_heads(objects)))
        assert kept == [1, 1, 2]


PLACES = "SELECT target_details, tableoid::regclass::text AS partition FROM audit_events"


async def _places(database: Database) -> dict[str, str]:
    """Return the partition of each event, by the details of its target."""
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
    """An event later than all existing months is stored, and stays where it is when its month is created."""
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
    """Years in which the service did not run share one partition, in which later events of these years are stored."""
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
    """This happens if a service starts again after years."""
    database, _ = clocked
    async with database.transaction() as transaction:
        for name in await partitions(database):
            if name not in ("audit_events_past", "audit_events_future"):
                await transaction.run(f"ALTER TABLE audit_events DETACH PARTITION {name}")
                await transaction.run(f"DROP TABLE {name}")
    assert await _make(database) == 2 + MONTHS_AHEAD
    await record_events(database, "now")
    assert await _places(database) == {"now": "audit_events_2031_03"}


async def test_exported_lines_are_what_the_chain_digests(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    for name in ("plain", 'with \n \\ \t " and umlaut ü', "last"):
        await record_events(database, name)
    file = tmp_path / "events.ndjson"
    done = await asyncio.to_thread(run_command, database_url, "export", "--output", str(file))
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


async def test_an_export_that_fails_leaves_nothing(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """This applies to an event that was changed, and to a full disk."""
    await record_events(database, "first", "second")
    file = tmp_path / "events.ndjson"
    partial = tmp_path / "events.ndjson.partial"
    partial.write_text("what a killed export has left, longer than all that comes" * 1000)
    limited = await asyncio.create_subprocess_exec(
        "sh", "-c", 'ulimit -f 0; exec "$0" -m forgelet audit export --output "$1"', sys.executable, file,
        env=os.environ | {"FORGELET_API_DATABASE_URL": database_url, "FORGELET_API_DATA_DIR": str(tmp_path)},
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said = (await limited.communicate())[1].decode()
    assert (limited.returncode, said) == (
        1,
        f"Error: The events cannot be written: {os.strerror(errno.EFBIG)}\n",
    )
    assert list(tmp_path.iterdir()) == []
    with without_triggers(database_url) as cursor:
        cursor.execute("UPDATE audit_events SET target_details = 'other' WHERE target_details = 'second'")
    done = await asyncio.to_thread(run_command, database_url, "export", "--output", str(file))
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: The audit trail is broken: event ")
    assert list(tmp_path.iterdir()) == []
    nowhere = tmp_path / "nowhere" / "events.ndjson"
    done = await asyncio.to_thread(run_command, database_url, "export", "--output", str(nowhere))
    assert done.stderr == (
        f"Error: The events cannot be written: No such file or directory: {nowhere}.partial\n"
    )


async def test_a_stale_part_of_an_export_is_written_over(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    await record_events(database, "one")
    file = tmp_path / "events.ndjson"
    file.with_name("events.ndjson.partial").write_text("what a killed export has left" * 1000)
    done = await asyncio.to_thread(run_command, database_url, "export", "--output", str(file))
    assert (done.exit_code, list(tmp_path.iterdir())) == (0, [file])
    assert json.loads(file.read_text())["target_details"] == "one"


async def test_an_export_can_be_narrowed_and_goes_to_standard_output(
    database: Database, database_url: str
) -> None:
    await record_events(database, "one")
    none = await asyncio.to_thread(run_command, database_url, "export", "--until", "2020-01-01")
    assert (none.exit_code, none.stdout) == (0, "")
    all_of_them = await asyncio.to_thread(run_command, database_url, "export", "--since", "2020-01-01")
    assert json.loads(all_of_them.stdout)["target_details"] == "one"


async def _old_month(database: Database, url: str) -> None:
    """Insert three chained events into October 2021."""
    with contextlib.closing(psycopg2.connect(url)) as connection, connection.cursor() as cursor:
        cursor.execute(MAKE_OLD_MONTH)
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
    await record_events(database, "new")


async def test_old_months_are_removed_only_after_an_export(
    database: Database, database_url: str, tmp_path: Path
) -> None:
    """The chain stays valid, an event records the removal, and nothing else is removed."""
    await _old_month(database, database_url)
    head = (await chain.verify(database)).head
    arguments = ["remove", "--before", "2021-11-01", "--export-to", str(tmp_path)]
    refused = await asyncio.to_thread(run_command, database_url, *arguments, input="n\n")
    assert refused.exit_code == 1
    assert refused.stderr == "Remove audit_events_2021_10 from the database? [y/N]: n\n"
    done = await asyncio.to_thread(run_command, database_url, *arguments, "--yes")
    assert done.exit_code == 0, done

    exported = (tmp_path / "audit_events_2021_10.ndjson").read_bytes()
    digest = hashlib.sha256(exported).hexdigest()
    assert len(exported.splitlines()) == 3
    assert done.stdout == f"audit_events_2021_10: 3 events, SHA-256 {digest}\n"
    rows = await database.rows("SELECT event_type, details FROM audit_events ORDER BY id")
    assert [row.event_type for row in rows] == ["group_created", "audit_events_removed"]
    assert json.loads(rows[1].details)["sha256"] == digest
    verdict = await chain.verify(database, [head])
    assert (verdict.head.position, verdict.removed, verdict.problem) == (5, 3, None)
    again = await asyncio.to_thread(run_command, database_url, *arguments)
    assert again.stdout == "There is no whole month before that day.\n"


async def test_a_broken_month_is_not_removed(database: Database, database_url: str, tmp_path: Path) -> None:
    await _old_month(database, database_url)
    with without_triggers(database_url) as cursor:
        cursor.execute("DELETE FROM audit_events WHERE target_details = 'old' AND id = 2")
    arguments = ["remove", "--before", "2021-11-01", "--export-to", str(tmp_path), "--yes"]
    done = await asyncio.to_thread(run_command, database_url, *arguments)
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: The audit trail is broken: event 2 (position 2) is missing\n",
    )
    assert "audit_events_2021_10" in await partitions(database)


async def test_this_month_is_never_removed(database: Database, database_url: str, tmp_path: Path) -> None:
    await record_events(database, "now")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    arguments = ["remove", "--export-to", str(tmp_path), "--before"]
    done = await asyncio.to_thread(run_command, database_url, *arguments, today)
    assert done.stdout == "There is no whole month before that day.\n"
    future = await asyncio.to_thread(run_command, database_url, *arguments, "2999-01-01")
    assert future.exit_code == 2
