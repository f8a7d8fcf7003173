"""Heads that are kept outside of the database show what its owner has taken away (decision D11)."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from api_server.audit import chain
from api_server.audit.chain import Head
from api_server.state.database import Database
from api_server.state.object_store import open_objects
from api_server.state.objects import Objects
from api_server.state.queue import QUEUE
from tests.api_server.audit.trail import MAKE_OLD_MONTH, record_events, run_command, without_triggers
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.logs import lines_of_this_test

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
    assert told.stdout == f"sound: 5 events, as the 1 kept heads say; head {await _head(database)}\n"

    with without_triggers(database_url) as cursor:
        cursor.execute(CUT)
    alone = await asyncio.to_thread(run_command, database_url, "verify")
    assert (alone.exit_code, "compared with no kept head" in alone.stdout) == (0, True)
    cut = await asyncio.to_thread(run_command, database_url, "verify", data_dir=tmp_path)
    assert (cut.exit_code, cut.stderr) == (
        1,
        "Error: the audit trail is broken: the chain ends at position 3, before the expected head 5:"
        " 2 or more events at its end are missing\n",
    )


async def test_a_chain_that_grew_again_after_the_cut_is_found_out(
    database: Database, database_url: str, objects: Objects, tmp_path: Path
) -> None:
    """By `verify` for ever, and by the service itself when it comes to keep the next head."""
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
    assert "sound: 4 events, 2 of them exported and removed, as the 2 kept heads say; " in told.stdout


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
        task = forge.server.app[QUEUE]._app.tasks["keep_audit_head"]
        for minutes in (0, 59, 1):
            clock.move(minutes=minutes)
            await forge.group()
            await task(timestamp=0)
            kept.append(len(await chain.kept_heads(objects)))
        assert kept == [1, 1, 2]
