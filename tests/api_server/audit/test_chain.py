"""When the audit trail is changed all the same, `verify` names the row (decision D7)."""

import asyncio

import pytest
from click.testing import CliRunner

from api_server.audit import chain
from api_server.state.database import Database
from forgelet.command_line import forgelet
from tests.api_server.audit.trail import record_events, run_command, without_triggers


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
    assert (shown.exit_code, shown.stderr) == (1, f"Error: the audit trail is broken: {problem}\n")


async def test_a_head_kept_elsewhere_shows_a_chain_that_was_cut_or_forged(
    database: Database, database_url: str
) -> None:
    for number in range(1, 6):
        await record_events(database, f"event {number}")
    first = await asyncio.to_thread(run_command, database_url, "verify")
    assert first.exit_code == 0
    head = first.stdout.split("head ")[1].strip()
    await record_events(database, "later")
    later = await asyncio.to_thread(run_command, database_url, "verify", "--expect", head)
    assert (later.exit_code, later.stdout[:15]) == (0, "sound: 6 events")

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
