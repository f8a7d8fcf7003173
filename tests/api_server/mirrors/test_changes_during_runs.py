"""What happens to a run when others push, sync, disable or delete meanwhile, and how many run at a time."""

import asyncio
from typing import Any

import pytest

from api_server.git.repositories import REPOSITORIES
from api_server.mirrors import running
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import Mirrored, database, with_credentials
from tests.api_server.mirrors.targets import Http, command_lines_with, hold_answers
from tests.support.forge import Forge
from tests.support.waiting import until


async def _run_under_way(forge: Forge, http_target: Http) -> tuple[Mirrored, asyncio.Event]:
    """A mirror whose run has called its target, which answers once the event is set."""
    mirrored = await Mirrored.create(forge, with_credentials(http_target[1]))
    gate, arrived = hold_answers(http_target[0])
    await mirrored.push({MAIN: mirrored.source.commit("first")})
    await asyncio.wait_for(arrived.wait(), 20)
    return mirrored, gate


async def test_a_second_push_during_a_run_is_one_more_run_after_it(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored, gate = await _run_under_way(working, http_target)
    second = mirrored.source.commit("second", mirrored.source.refs()[MAIN])
    await mirrored.push({MAIN: second})
    await mirrored.push({"refs/heads/x": second})
    assert sorted(await mirrored.jobs()) == ["doing", "todo"]
    gate.set()
    await mirrored.reaches("finished")
    await mirrored.hurry()
    assert (await mirrored.reaches("finished", "to_retry", run=2))["last_error"] is None
    await mirrored.idle()
    assert target.refs() == {MAIN: second, "refs/heads/x": second}
    assert (await mirrored.row()).run == 2


async def test_a_sync_during_a_run_queues_nothing(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored, gate = await _run_under_way(working, http_target)
    await mirrored.sync()
    assert await mirrored.jobs() == ["doing"]
    gate.set()
    await mirrored.reaches("finished")


async def test_a_mirror_that_is_disabled_during_a_run_ends_it_and_runs_no_more(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored, gate = await _run_under_way(working, http_target)
    await mirrored.push({"refs/heads/x": mirrored.source.commit("first")})
    await mirrored.owner.api.put(mirrored.path, {"enabled": False})
    gate.set()
    await mirrored.reaches("finished")
    await mirrored.hurry()
    await mirrored.idle()
    shown = await mirrored.show()
    assert (shown["enabled"], shown["update_status"]) == (False, "finished")
    assert (await mirrored.row()).run == 1


@pytest.mark.parametrize("what", ["mirror", "project", "url"])
async def test_what_is_deleted_or_aimed_elsewhere_during_a_run_ends_it_and_leaves_nothing(
    working: Forge, target: BareRepository, http_target: Http, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setattr(running, "NOTICED_AFTER", 0.05)
    mirrored, _ = await _run_under_way(working, http_target)
    if what == "url":
        changed = await mirrored.owner.api.put(mirrored.path, {"url": http_target[1]})
        assert changed.body["update_status"] == "finished"
    else:
        path = mirrored.path if what == "mirror" else f"/projects/{mirrored.project['id']}"
        assert (await mirrored.owner.api.delete(path)).status in (202, 204)
    await mirrored.idle()
    assert target.refs() == {}
    # The mirror of a deleted project has no queue any more whose end could be waited for.
    await until(lambda: not command_lines_with(str(mirrored.source.path), http_target[1]))
    if what == "url":
        assert (await mirrored.show())["update_status"] == "finished"
    if what == "project":
        async with asyncio.timeout(20):
            while working.server.app[REPOSITORIES].exists(mirrored.project["id"]):
                await asyncio.sleep(0.05)


async def test_a_process_runs_so_many_mirrors_at_a_time_and_the_others_wait(
    new_forge: Any, target: BareRepository, http_target: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow targets do not take the whole worker, which has deliveries and mail to send as well."""
    monkeypatch.setattr(running, "AT_ONCE", 1)
    async with new_forge(work=True, allow_local_requests=True) as forge:
        first, gate = await _run_under_way(forge, http_target)
        second = await Mirrored.create(forge, with_credentials(http_target[1]))
        await second.push({"refs/heads/second": second.source.commit("second")})
        async with asyncio.timeout(20):
            while not await database(forge).value(
                "SELECT scheduled_at FROM procrastinate_jobs WHERE lock = %(lock)s", lock=second.lock
            ):
                await asyncio.sleep(0.05)
        assert (await second.show())["update_status"] == "none"
        gate.set()
        await first.reaches("finished")
        await second.hurry()
        assert (await second.reaches("finished", "to_retry"))["last_error"] is None
    assert set(target.refs()) == {MAIN, "refs/heads/second"}
