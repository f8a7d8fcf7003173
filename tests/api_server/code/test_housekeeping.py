"""Repositories are packed by the queue once they are at rest, one at a time."""

from pathlib import Path
from typing import Any

import pytest

from api_server.code import housekeeping
from api_server.git.at_work import at_work, written_mark
from api_server.git.upkeep import Style
from api_server.web.context import SERVICES
from tests.support.clock import forge_with_clock
from tests.support.folders import files_below
from tests.support.forge import Forge
from tests.support.waiting import until

QUEUED = """
    SELECT args ->> 'project_id' AS project_id FROM procrastinate_jobs
    WHERE task_name = 'pack_repository' AND status = 'todo'
"""


async def _new_repository(forge: Forge) -> Path:
    """Of three loose objects."""
    project = await forge.project(initialize_with_readme=True)
    return forge.repository_path(project["id"])


async def _queued(forge: Forge) -> list[str]:
    return [row.project_id for row in await forge.database.rows(QUEUED)]


async def test_what_wants_to_be_packed_is_packed_by_the_queue(new_forge: Any) -> None:
    async with new_forge(work=True, housekeeping_loose_objects=3) as forge:
        repository = await _new_repository(forge)
        await housekeeping.look_after(forge.server.app[SERVICES])
        await until(lambda: not list(repository.glob("objects/??/*")))
        assert len(list(repository.glob("objects/pack/*.pack"))) == 1
        assert (repository / "packed-refs").exists()
        await forge.root.get(f"/projects/{repository.stem}/repository/files/README%2Emd?ref=main", expect=200)


async def test_packing_waits_until_nobody_is_at_work_but_not_for_ever(
    new_database: Any, tmp_path: Path
) -> None:
    async with forge_with_clock(
        new_database(), tmp_path, housekeeping_loose_objects=3, housekeeping_patience=600
    ) as (forge, clock):
        clock.now = clock.now.now(clock.now.tzinfo)
        app, repository = forge.server.app, await _new_repository(forge)
        async with at_work(repository, "transferring"):
            await housekeeping.look_after(app[SERVICES])
            assert (await _queued(forge), written_mark(repository).exists()) == ([], True)
            clock.move(minutes=11)
            await housekeeping.look_after(app[SERVICES])
            assert await _queued(forge) == [repository.stem]
        await housekeeping.look_after(app[SERVICES])  # it waits already
        assert (await _queued(forge), written_mark(repository).exists()) == ([repository.stem], False)


@pytest.mark.parametrize("settings", [{"housekeeping_loose_objects": 4}, {"housekeeping": False}])
async def test_what_does_not_want_it_or_may_not_is_left_alone(
    new_forge: Any, settings: dict[str, Any]
) -> None:
    async with new_forge(**{"housekeeping_loose_objects": 3} | settings) as forge:
        repository = await _new_repository(forge)
        await housekeeping.look_after(forge.server.app[SERVICES])
        assert (await _queued(forge), written_mark(repository).exists()) == ([], False)


async def test_one_that_cannot_be_looked_at_stops_no_other(new_forge: Any) -> None:
    async with new_forge(housekeeping_loose_objects=3) as forge:
        broken, fine = await _new_repository(forge), await _new_repository(forge)
        for file in files_below(broken / "at-work"):
            file.unlink()
        (broken / "at-work").rmdir()
        (broken / "at-work").touch()
        await housekeeping.look_after(forge.server.app[SERVICES])
        assert await _queued(forge) == [fine.stem]


def test_settings_and_defaults_agree(forge: Forge) -> None:
    assert housekeeping.style_of(forge.settings) == Style()
    assert housekeeping.thresholds(forge.server.app[SERVICES]) == housekeeping.Thresholds()
