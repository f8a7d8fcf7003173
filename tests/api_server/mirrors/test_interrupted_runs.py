"""Runs that were cut off: made again by the next process, or failed when their time is over."""

import asyncio
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import attrs
import pytest
from aiohttp import web

from api_server.git.remote.access import secret_folder
from api_server.mirrors import queries, running
from api_server.web.context import CLOCK
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import Mirrored, database, mails, with_credentials
from tests.api_server.mirrors.targets import Http, command_lines_with, hold_answers
from tests.support.clock import MovedClock
from tests.support.forge import Forge, running_forge
from tests.support.server_process import server_process


async def test_a_run_that_was_cut_off_is_made_again(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    """Its process was killed and its task is lost: found at the next start, and every minute."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    commit = mirrored.source.commit("first")
    mirrored.source.set_refs({MAIN: commit})
    async with database(working).transaction() as transaction:
        await queries.begin_run(transaction, mirrored.mirror["id"])
    await running.attend_runs(working.server.app)
    assert (await mirrored.reaches("finished", "to_retry", run=2))["last_error"] is None
    assert target.refs() == {MAIN: commit}


async def test_a_run_whose_process_was_killed_is_finished_by_the_next_one(
    new_database: Callable[[], str],
    tmp_path: Path,
    target: BareRepository,
    http_target: Http,
) -> None:
    url, folder = new_database(), tmp_path / "data"
    folder.mkdir()
    async with running_forge(url, folder, work=False, allow_local_requests=True) as forge:
        mirrored = await Mirrored.create(forge, with_credentials(http_target[1]))
        commit = mirrored.source.commit("first")
        await mirrored.push({MAIN: commit})
    gate, arrived = hold_answers(http_target[0])
    async with server_process(url, folder, allow_local_requests=True) as server:
        await asyncio.wait_for(arrived.wait(), 30)
        assert command_lines_with(http_target[1])
        server.kill()
        await server.wait()
    async with asyncio.timeout(20):
        while command_lines_with(http_target[1]):
            await asyncio.sleep(0.05)
    async with running_forge(url, folder, allow_local_requests=True, worker_timeout=2) as forge:
        mirrored = attrs.evolve(mirrored, forge=forge)
        gate.set()
        async with asyncio.timeout(20):
            while (row := await mirrored.row()).update_status != "finished":
                await asyncio.sleep(0.05)
    assert (row.run, row.last_error) == (2, None)
    assert target.refs() == {MAIN: commit}


@pytest.mark.parametrize(("earlier", "hours"), [(True, 1), (False, 3)])
async def test_a_run_whose_time_is_over_has_failed(working: Forge, earlier: bool, hours: int) -> None:
    """A.5: an hour, or three for the first; a little earlier it is made again."""
    for minutes, status in ((hours * 60 - 1, "started"), (hours * 60 + 1, "failed")):
        mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git")
        async with database(working).transaction() as transaction:
            await queries.begin_run(transaction, mirrored.mirror["id"])
            await transaction.row(
                "UPDATE remote_mirrors SET last_update_at = CASE WHEN %(earlier)s THEN %(now)s::timestamptz END, "
                "last_update_started_at = %(now)s - make_interval(mins => %(minutes)s) WHERE id = %(id)s",
                earlier=earlier,
                minutes=minutes,
                id=mirrored.mirror["id"],
            )
        unattended = await queries.unattended_runs(database(working), running.LOCK_PREFIX)
        stuck = {mirror.id: running.is_stuck(mirror, database(working).now) for mirror in unattended}
        assert stuck[mirrored.mirror["id"]] is (status == "failed")
        if status == "failed":
            await running.attend_runs(working.server.app)
            shown = await mirrored.show()
            assert (shown["update_status"], shown["last_error"]) == (status, running.STUCK)
            assert len(await mails(working, mirrored.mirror["id"])) == 1


async def test_secrets_that_a_killed_process_has_left_are_removed_without_a_start(working: Forge) -> None:
    left = Path(tempfile.mkdtemp(prefix="forgelet-secrets-"))
    with secret_folder() as used:
        for folder in (left, used):
            os.utime(folder, (0, 0))
        await running.attend_runs(working.server.app)
        assert (left.exists(), used.exists()) == (False, True)


async def test_a_clock_that_is_ahead_takes_no_secrets_from_a_run_that_is_under_way(new_forge) -> None:
    """Folders are dated by the file system, and not by the application's clock."""

    def years_ahead(app: web.Application) -> None:
        app[CLOCK] = MovedClock()

    with secret_folder() as used:
        async with new_forge(work=True, change_app=years_ahead) as forge:
            await running.attend_runs(forge.server.app)
        assert used.exists()
