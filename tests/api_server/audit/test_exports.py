"""Operators write events to files, and remove months that have been written."""

import asyncio
import contextlib
import datetime
import errno
import hashlib
import json
import os
import sys
from pathlib import Path

import psycopg2

from api_server.audit import chain
from api_server.state.database import Database
from tests.api_server.audit.trail import (
    MAKE_OLD_MONTH,
    partitions,
    record_events,
    run_command,
    without_triggers,
)


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
    """Of an event that was changed, as of a disk that is full."""
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
        f"Error: the events cannot be written: [Errno {errno.EFBIG}] {os.strerror(errno.EFBIG)}\n",
    )
    assert list(tmp_path.iterdir()) == []
    with without_triggers(database_url) as cursor:
        cursor.execute("UPDATE audit_events SET target_details = 'other' WHERE target_details = 'second'")
    done = await asyncio.to_thread(run_command, database_url, "export", "--output", str(file))
    assert done.exit_code == 1
    assert done.stderr.startswith("Error: the audit trail is broken: event ")
    assert list(tmp_path.iterdir()) == []
    nowhere = tmp_path / "nowhere" / "events.ndjson"
    done = await asyncio.to_thread(run_command, database_url, "export", "--output", str(nowhere))
    assert done.stderr == (
        f"Error: the events cannot be written: [Errno 2] No such file or directory: '{nowhere}.partial'\n"
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
    """Gives October 2021 three chained events."""
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
    """The chain stays whole, an event tells of the removal, and nothing else goes."""
    await _old_month(database, database_url)
    head = (await chain.verify(database)).head
    arguments = ["remove", "--before", "2021-11-01", "--export-to", str(tmp_path)]
    refused = await asyncio.to_thread(run_command, database_url, *arguments, input="n\n")
    assert refused.exit_code == 1
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
    again = await asyncio.to_thread(run_command, database_url, *arguments, "--yes")
    assert again.stdout == "There is no whole month before that day.\n"


async def test_a_broken_month_is_not_removed(database: Database, database_url: str, tmp_path: Path) -> None:
    await _old_month(database, database_url)
    with without_triggers(database_url) as cursor:
        cursor.execute("DELETE FROM audit_events WHERE target_details = 'old' AND id = 2")
    arguments = ["remove", "--before", "2021-11-01", "--export-to", str(tmp_path), "--yes"]
    done = await asyncio.to_thread(run_command, database_url, *arguments)
    assert (done.exit_code, done.stderr) == (
        1,
        "Error: the audit trail is broken: event 2 (position 2) is missing\n",
    )
    assert "audit_events_2021_10" in await partitions(database)


async def test_this_month_is_never_removed(database: Database, database_url: str, tmp_path: Path) -> None:
    await record_events(database, "now")
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    arguments = ["remove", "--export-to", str(tmp_path), "--yes", "--before"]
    done = await asyncio.to_thread(run_command, database_url, *arguments, today)
    assert done.stdout == "There is no whole month before that day.\n"
    future = await asyncio.to_thread(run_command, database_url, *arguments, "2999-01-01")
    assert future.exit_code == 2
