"""What is told of runs that fail: status, last_error, audit event, mail; and when they are tried again."""

import asyncio
import copy
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from api_server.mirrors import running
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import Mirrored, failures, mails, text_of, with_credentials
from tests.api_server.mirrors.targets import Http
from tests.support.forge import Forge


async def test_divergence_is_a_failure_that_names_the_refs_and_is_mailed_once(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    """A.5: failed at once, mail to the maintainers on the change to it, event in the audit trail."""
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
    """A.5, A.6: each try waits for its back-off, and the maintainers are told at the end only."""
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
    """A.4: checked again before each run."""
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
    with _small_disk(http_target[0].root / "full") as mounted:
        if isinstance(mounted, str):
            pytest.skip(mounted)
        target = BareRepository.create(mounted / "target.git")
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


@contextmanager
def _small_disk(folder: Path) -> Iterator[Path | str]:
    """A file system of one megabyte; a word instead where this user cannot mount one."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(command, capture_output=True).returncode:
        yield "only somebody who may mount file systems can try a full disk"
        return
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)
