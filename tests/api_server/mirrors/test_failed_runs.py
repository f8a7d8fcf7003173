"""Runs that fail, are interrupted, or meet changes: status, last_error, audit event, mail, and the next attempt."""

import asyncio
import copy
import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import web

from api_server.git.remote.access import secret_folder
from api_server.git.repositories import REPOSITORIES
from api_server.mirrors import queries, running
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import Mirrored, failures, mails, text_of, with_credentials
from tests.api_server.mirrors.targets import Http, command_lines_with, hold_answers
from tests.support.clock import MovedClock
from tests.support.disks import small_disk
from tests.support.forge import Forge, running_forge
from tests.support.server_process import server_process
from tests.support.waiting import until


async def test_divergence_is_a_failure_that_names_the_refs_and_is_mailed_once(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    """A.5: the run fails at once, maintainers get a mail when the status changes to it, and the audit trail has an
    event."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]), keep_divergent_refs=True)
    bob, carol = await working.user("bob"), await working.user("carol")
    await working.member("projects", mirrored.project["id"], bob, Role.MAINTAINER)
    await working.member("projects", mirrored.project["id"], carol, Role.DEVELOPER)
    names = [f"refs/heads/d{n:03}" for n in range(101)]
    target.set_refs(dict.fromkeys(names, target.commit("theirs")))
    await mirrored.push(
        {MAIN: mirrored.source.commit("ours"), **dict.fromkeys(names, mirrored.source.commit("x"))}
    )
    shown = await mirrored.reaches("failed", "finished")
    heading = "Some refs have diverged and have not been updated on the remote:\n\n"
    assert (shown["update_status"], shown["last_error"]) == ("failed", heading + "\n".join(names[:100]))
    assert shown["last_update_at"] is not None
    assert shown["last_successful_update_at"] is None
    sent = await mails(working, mirrored.mirror["id"])
    assert {mail["To"] for mail in sent} == {mirrored.owner.email, bob.email}
    assert [name for name in names[:100] if name not in text_of(sent[0])] == []
    assert await failures(working, mirrored.mirror["id"]) == [shown["last_error"]]
    await mirrored.sync()
    await mirrored.hurry()
    await mirrored.reaches("failed", run=2)
    assert len(await mails(working, mirrored.mirror["id"])) == 2
    assert len(await failures(working, mirrored.mirror["id"])) == 2


async def test_a_wrong_password_is_tried_three_times_more_and_then_failed(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    """A.5, A.6: each attempt waits for its back-off, and maintainers get a mail only at the end."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1], "wr@ng"))
    await mirrored.push({MAIN: mirrored.source.commit("first")})
    for run in (1, 2, 3):
        shown = await mirrored.reaches("to_retry", "failed", "finished", run=run)
        assert shown["update_status"] == "to_retry"
        assert "Authentication failed" in shown["last_error"]
        assert shown["last_update_at"] is None
        assert await mails(working, mirrored.mirror["id"]) == []
        async with asyncio.timeout(20):
            while await mirrored.jobs() != ["todo"]:
                await asyncio.sleep(0.02)
        await mirrored.hurry()
    shown = await mirrored.reaches("failed", "finished", run=4)
    assert shown["update_status"] == "failed"
    assert shown["last_update_at"] is not None
    (mail,) = await mails(working, mirrored.mirror["id"])
    assert "wr@ng" not in text_of(mail)
    assert "Authentication failed" in text_of(mail)
    await mirrored.idle()
    await mirrored.owner.api.put(mirrored.path, {"url": with_credentials(http_target[1])})
    await mirrored.sync()
    await mirrored.hurry()
    assert (await mirrored.reaches("finished", run=6))["last_error"] is None
    assert set(target.refs()) == {MAIN}


async def test_an_unreachable_target_is_told_and_tried_again(working: Forge) -> None:
    mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git")
    await mirrored.sync()
    shown = await mirrored.reaches("to_retry", "failed", "finished")
    assert shown["update_status"] == "to_retry"
    assert "Failed to connect" in shown["last_error"]


async def test_an_address_that_is_no_longer_allowed_is_not_called(
    working: Forge, http_target: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A.4: it is checked again before each run."""
    from api_server.outbound.client import OUTGOING_POLICY
    from api_server.outbound.policy import Policy

    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    services = copy.copy(working.server.app[SERVICES])
    services._parts = dict(services._parts)

    async def closed() -> Policy:
        return Policy()

    services[OUTGOING_POLICY] = closed
    await running.run_mirror_once(services, mirrored.mirror["id"])
    shown = await mirrored.show()
    text = "The remote mirror URL is invalid: Requests to loopback addresses are not allowed"
    assert (shown["update_status"], shown["last_error"]) == ("to_retry", text)
    assert http_target[0].requests == []


async def test_a_failure_of_the_service_itself_fails_the_mirror_at_once(
    working: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git")

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret thing")

    monkeypatch.setattr(running, "update_target", broken)
    await running.run_mirror_once(working.server.app[SERVICES], mirrored.mirror["id"])
    shown = await mirrored.show()
    assert (shown["update_status"], shown["last_error"]) == ("failed", running.UNEXPECTED)


async def test_a_target_whose_disk_is_full_is_told_in_its_words(
    working: Forge, tmp_path: Path, http_target: Http
) -> None:
    with small_disk(http_target[0].root / "full", 1) as disk:
        target = BareRepository.create(disk.path / "target.git")
        mirrored = await Mirrored.create(
            working, with_credentials(http_target[1].replace("/target.git", "/full/target.git"))
        )
        noise = mirrored.source.path / "noise"
        noise.write_bytes(
            subprocess.run(["head", "-c", "4000000", "/dev/urandom"], capture_output=True).stdout
        )
        blob = mirrored.source.git("hash-object", "-w", str(noise))
        tree = mirrored.source.git("mktree", stdin=f"100644 blob {blob}\tnoise\n")
        await mirrored.push({MAIN: mirrored.source.git("commit-tree", tree, "-m", "large")})
        shown = await mirrored.reaches("to_retry", "failed", "finished")
        assert shown["update_status"] == "to_retry"
        assert "No space left on device" in shown["last_error"]
        assert target.refs() == {}


async def test_a_run_that_was_cut_off_is_made_again(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    """Its process was killed and its task is lost: this is found at the next start, and every minute."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    commit = mirrored.source.commit("first")
    mirrored.source.set_refs({MAIN: commit})
    async with working.database.transaction() as transaction:
        await queries.begin_run(transaction, mirrored.mirror["id"])
    await running.attend_runs(working.server.app[SERVICES])
    assert (await mirrored.reaches("finished", "to_retry", run=2))["last_error"] is None
    assert target.refs() == {MAIN: commit}


@pytest.mark.parametrize("enabled", [True, False])
async def test_what_is_to_be_tried_again_waits_until_the_mirror_is_enabled(
    working: Forge, enabled: bool
) -> None:
    mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git", enabled=False)
    mirror_id = mirrored.mirror["id"]
    for status in ("started", "to_retry"):
        await working.execute(
            "UPDATE remote_mirrors SET update_status = %(status)s, enabled = %(enabled)s WHERE id = %(id)s",
            status=status,
            enabled=enabled,
            id=mirror_id,
        )
    unattended = await queries.unattended_runs(working.database, running.LOCK_PREFIX)
    assert (mirror_id in {mirror.id for mirror in unattended}) is enabled


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
    """A.5: the limit is an hour, or three for the first run; a little earlier the run is repeated."""
    for minutes, status in ((hours * 60 - 1, "started"), (hours * 60 + 1, "failed")):
        mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git")
        async with working.database.transaction() as transaction:
            await queries.begin_run(transaction, mirrored.mirror["id"])
            await transaction.row(
                "UPDATE remote_mirrors SET last_update_at = CASE WHEN %(earlier)s THEN %(now)s::timestamptz END, "
                "last_update_started_at = %(now)s - make_interval(mins => %(minutes)s) WHERE id = %(id)s",
                earlier=earlier,
                minutes=minutes,
                id=mirrored.mirror["id"],
            )
        unattended = await queries.unattended_runs(working.database, running.LOCK_PREFIX)
        stuck = {mirror.id: running.is_stuck(mirror, working.database.now) for mirror in unattended}
        assert stuck[mirrored.mirror["id"]] is (status == "failed")
        if status == "failed":
            await running.attend_runs(working.server.app[SERVICES])
            shown = await mirrored.show()
            assert (shown["update_status"], shown["last_error"]) == (status, running.STUCK)
            assert len(await mails(working, mirrored.mirror["id"])) == 1


async def test_secrets_that_a_killed_process_has_left_are_removed_without_a_start(working: Forge) -> None:
    left = Path(tempfile.mkdtemp(prefix="forgelet-secrets-"))
    with secret_folder() as used:
        for folder in (left, used):
            os.utime(folder, (0, 0))
        await running.attend_runs(working.server.app[SERVICES])
        assert (left.exists(), used.exists()) == (False, True)


async def test_a_clock_that_is_ahead_takes_no_secrets_from_a_run_that_is_under_way(new_forge) -> None:
    """The file system dates folders, and not the application's clock."""

    def years_ahead(app: web.Application) -> None:
        app[SERVICES].clock = MovedClock()

    with secret_folder() as used:
        async with new_forge(work=True, change_app=years_ahead) as forge:
            await running.attend_runs(forge.server.app[SERVICES])
        assert used.exists()


async def _run_under_way(forge: Forge, http_target: Http) -> tuple[Mirrored, asyncio.Event]:
    """Yield a mirror whose run has sent a request to its target, which answers once the event is set."""
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
    # The mirror of a deleted project has no queue for whose end the test could wait.
    await until(lambda: not command_lines_with(str(mirrored.source.path), http_target[1]))
    if what == "url":
        assert (await mirrored.show())["update_status"] == "finished"
    if what == "project":
        async with asyncio.timeout(20):
            while working.server.app[SERVICES][REPOSITORIES].exists(mirrored.project["id"]):
                await asyncio.sleep(0.05)


async def test_a_process_runs_so_many_mirrors_at_a_time_and_the_others_wait(
    new_forge: Any, target: BareRepository, http_target: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow targets do not use up the worker, which also sends deliveries and mails."""
    monkeypatch.setattr(running, "AT_ONCE", 1)
    async with new_forge(work=True, allow_local_requests=True) as forge:
        first, gate = await _run_under_way(forge, http_target)
        second = await Mirrored.create(forge, with_credentials(http_target[1]))
        await second.push({"refs/heads/second": second.source.commit("second")})
        async with asyncio.timeout(20):
            while not await forge.database.value(
                "SELECT scheduled_at FROM procrastinate_jobs WHERE lock = %(lock)s", lock=second.lock
            ):
                await asyncio.sleep(0.05)
        assert (await second.show())["update_status"] == "none"
        gate.set()
        await first.reaches("finished")
        await second.hurry()
        assert (await second.reaches("finished", "to_retry"))["last_error"] is None
    assert set(target.refs()) == {MAIN, "refs/heads/second"}
