"""Mirrors of a running server: what sets runs off, what they do to real targets, what is told afterwards."""

import asyncio
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email import message_from_bytes
from email.message import EmailMessage
from email.policy import default
from pathlib import Path
from typing import Any
from urllib.parse import quote

import attrs
import gitlab
import pytest
from aiohttp import web
from aiohttp.test_utils import unused_port

from api_server.areas.mirrors import runs, states, tasks
from api_server.git import processes
from api_server.platform.keys import REPOSITORIES
from api_server.state import queue
from api_server.web.access import Role
from tests.mirrors.repositories import BareRepository
from tests.mirrors.service import Mirrored, database, new_mirror, with_credentials
from tests.mirrors.targets import BASIC, PASSWORD, HttpTarget, SshTarget, process_list, serve_ssh
from tests.support.forge import Forge, running_forge
from tests.support.git_client import git_url, push_files

Http = tuple[HttpTarget, str]

MAIN = "refs/heads/main"


async def mails(forge: Forge, mirror_id: int) -> list[EmailMessage]:
    """The mails that told of this mirror, once they have left the queue."""
    waiting = "SELECT count(*) FROM procrastinate_jobs WHERE task_name = 'send_mail' AND status <> 'failed'"
    async with asyncio.timeout(10):
        while await database(forge).value(waiting):
            await asyncio.sleep(0.05)
    files = sorted((forge.settings.data_dir / "mail").glob(f"remote-mirror-{mirror_id}-*.eml"))
    return [message_from_bytes(file.read_bytes(), policy=default) for file in files]


def text_of(mail: EmailMessage) -> str:
    body = mail.get_body(("plain",))
    assert body is not None
    return str(body.get_content())


async def failures(forge: Forge, mirror_id: int) -> list[str]:
    rows = await database(forge).rows(
        "SELECT details ->> 'reason' AS reason FROM audit_events "
        "WHERE event_type = 'remote_mirror_update_failed' AND target_id = %(id)s ORDER BY id",
        id=mirror_id,
    )
    return [row.reason for row in rows]


async def test_a_git_push_arrives_at_the_target(
    working: Forge, target: BareRepository, http_target: Http, tmp_path: Path
) -> None:
    alice = await working.user("alice")
    project = await working.project(alice)
    mirror = await new_mirror(working, alice, project["id"], with_credentials(http_target[1]), enabled=True)
    sha = await push_files(working, tmp_path / "work", project, alice, {"README.md": "hello\n"})
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    async with asyncio.timeout(20):
        while (shown := (await alice.api.get(path)).body)["update_status"] in ("none", "started"):
            await asyncio.sleep(0.05)
    assert target.refs() == {MAIN: sha}
    assert shown["update_status"] == "finished"
    assert shown["last_error"] is None
    assert shown["last_update_started_at"] < shown["last_update_at"] == shown["last_successful_update_at"]


async def test_a_run_creates_updates_forces_moves_tags_and_deletes_what_is_merged(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    source = mirrored.source
    first = source.commit("first")
    second, amended = source.commit("second", first), source.commit("amended", first)
    unmerged = target.commit("theirs")
    target.commit("first")
    target.set_refs({"refs/heads/merged": first, "refs/heads/unmerged": unmerged, "refs/tags/v1": first})
    await mirrored.push(
        {MAIN: first, "refs/heads/forced": second, "refs/heads/v1": first, "refs/heads/--mirror": first}
        | {"refs/tags/v1": second}
    )
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    kept = {"refs/heads/v1": first, "refs/heads/--mirror": first, "refs/heads/unmerged": unmerged}
    expected = {MAIN: first, "refs/heads/forced": second, "refs/tags/v1": second, **kept}
    assert target.refs() == expected
    await mirrored.push({MAIN: second, "refs/heads/forced": amended, "refs/heads/v1": None})
    await mirrored.hurry()
    assert (await mirrored.reaches("finished", "to_retry", run=2))["last_error"] is None
    del expected["refs/heads/v1"]
    assert target.refs() == expected | {MAIN: second, "refs/heads/forced": amended}


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
        async with asyncio.timeout(10):
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
    from api_server.platform.outbound.outgoing import OUTGOING_POLICY
    from api_server.platform.outbound.policy import Policy

    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    app = {key: working.server.app[key] for key in working.server.app}

    async def closed() -> Policy:
        return Policy()

    app[OUTGOING_POLICY] = closed
    await runs.run(app, mirrored.mirror["id"])  # type: ignore[arg-type]
    shown = await mirrored.show()
    text = "The remote mirror URL is invalid: Requests to loopback addresses are not allowed"
    assert (shown["update_status"], shown["last_error"]) == ("to_retry", text)
    assert http_target[0].requests == []


async def test_an_empty_project_leaves_the_target_alone(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    alice = await working.user("alice")
    project = await working.project(alice)
    mirror = await new_mirror(working, alice, project["id"], with_credentials(http_target[1]), enabled=True)
    theirs = target.commit("theirs")
    target.set_refs({MAIN: theirs})
    await runs.run(working.server.app, mirror["id"])
    shown = (await alice.api.get(f"/projects/{project['id']}/remote_mirrors/{mirror['id']}")).body
    assert (shown["update_status"], shown["last_error"]) == ("finished", None)
    assert target.refs() == {MAIN: theirs}


@pytest.mark.parametrize(
    ("values", "protected", "expected"),
    [
        ({"only_protected_branches": True}, ["main", "release/*"], {MAIN, "refs/heads/release/1"}),
        ({"only_protected_branches": True}, [], set()),
        ({"mirror_branch_regex": "m.*|x"}, ["main"], {MAIN}),
    ],
)
async def test_only_the_selected_branches_and_all_tags_are_pushed(
    working: Forge,
    target: BareRepository,
    http_target: Http,
    values: dict[str, Any],
    protected: list[str],
    expected: set[str],
) -> None:
    """A.7; with no protected branch none is pushed (decision D6)."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]), **values)
    names = [MAIN, "refs/heads/release/1", "refs/heads/x1", "refs/tags/v1"]
    mirrored.source.set_refs(dict.fromkeys(names, mirrored.source.commit("first")))
    async with database(working).transaction() as transaction:
        await transaction.row(
            "INSERT INTO protected_branches (project_id, name) SELECT %(id)s, unnest(%(names)s::text[])",
            id=mirrored.project["id"],
            names=protected,
        )
    await mirrored.sync()
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert set(target.refs()) == expected | {"refs/tags/v1"}


async def test_mirrors_by_ssh_with_the_key_that_the_service_made(
    working: Forge, target: BareRepository, tmp_path: Path
) -> None:
    """The public half is given to the target, whose host key is learnt at the first run and pinned from then on."""
    alice = await working.user("alice")
    project = await working.project(alice)
    mirror = await new_mirror(
        working, alice, project["id"], "ssh://x@127.0.0.1:1/x.git", auth_method="ssh_public_key"
    )
    path = f"/projects/{project['id']}/remote_mirrors/{mirror['id']}"
    public_key = (await alice.api.get(f"{path}/public_key")).body["public_key"]
    with serve_ssh(tmp_path / "ssh", authorized=public_key) as server:
        if isinstance(server, str):
            pytest.skip(server)
        url = f"ssh://{server.user}@127.0.0.1:{server.port}{target.path}"
        assert (await alice.api.put(path, {"url": url, "enabled": True})).status == 200
        sha = await push_files(working, tmp_path / "work", project, alice, {"a": "1"})
        async with asyncio.timeout(20):
            while not (shown := (await alice.api.get(path)).body)["last_update_at"]:
                await asyncio.sleep(0.05)
        assert (shown["update_status"], shown["last_error"]) == ("finished", None)
        assert target.refs() == {MAIN: sha}
        expected = subprocess.run(
            ["ssh-keygen", "-lf", "-"],
            input=server.host_key.public,
            text=True,
            capture_output=True,
            check=True,
        ).stdout.split()[1]
        assert shown["host_keys"] == [{"fingerprint_sha256": expected}]


async def test_mirrors_by_ssh_with_a_password(
    working: Forge, target: BareRepository, ssh_by_password: SshTarget
) -> None:
    url = with_credentials(f"ssh://127.0.0.1:{ssh_by_password.port}{target.path}")
    mirrored = await Mirrored.create(working, url)
    commit = mirrored.source.commit("first")
    await mirrored.push({MAIN: commit})
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert target.refs() == {MAIN: commit}


async def test_mirrors_by_the_git_protocol(working: Forge, target: BareRepository, git_url: str) -> None:
    mirrored = await Mirrored.create(working, git_url)
    commit = mirrored.source.commit("first")
    await mirrored.push({MAIN: commit})
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert target.refs() == {MAIN: commit}


async def test_another_instance_of_this_service_is_a_target(
    working: Forge, new_forge: Any, tmp_path: Path
) -> None:
    """And what it does not take is told in its words."""
    folder = tmp_path / "other"
    folder.mkdir()
    async with new_forge(data_dir=folder) as other:
        bob = await other.user("bob")
        theirs = await other.project(bob)
        url = git_url(other, theirs["path_with_namespace"], bob)
        mirrored = await Mirrored.create(working, url)
        source = mirrored.source
        first = source.commit("first")
        branches = {f"refs/heads/b{n:02}": first for n in range(20)}
        await mirrored.push({MAIN: first, "refs/tags/v1": source.tag_object("v1", first), **branches})
        assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
        listed = await bob.api.get(f"/projects/{theirs['id']}/repository/branches?per_page=100")
        assert {branch["name"] for branch in listed.body} == {"main", *(f"b{n:02}" for n in range(20))}
        await mirrored.push({MAIN: source.commit("amended"), "refs/heads/b00": None})
        await mirrored.hurry()
        shown = await mirrored.reaches("to_retry", "finished", run=2)
        assert "You are not allowed to force push" in shown["last_error"]
        assert shown["last_error"].startswith(
            "Some refs have not been updated on the remote:\n\nrefs/heads/main"
        )


async def test_a_second_push_during_a_run_is_one_more_run_after_it(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    http, url = http_target
    mirrored = await Mirrored.create(working, with_credentials(url))
    gate, arrived = _gate(http)
    first = mirrored.source.commit("first")
    await mirrored.push({MAIN: first})
    await asyncio.wait_for(arrived.wait(), 10)
    second = mirrored.source.commit("second", first)
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
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    gate, arrived = _gate(http_target[0])
    await mirrored.push({MAIN: mirrored.source.commit("first")})
    await asyncio.wait_for(arrived.wait(), 10)
    await mirrored.sync()
    assert await mirrored.jobs() == ["doing"]
    gate.set()
    await mirrored.reaches("finished")


async def test_a_mirror_that_is_disabled_during_a_run_ends_it_and_runs_no_more(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    gate, arrived = _gate(http_target[0])
    await mirrored.push({MAIN: mirrored.source.commit("first")})
    await asyncio.wait_for(arrived.wait(), 10)
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
    monkeypatch.setattr(runs, "NOTICED_AFTER", 0.05)
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    _, arrived = _gate(http_target[0])
    await mirrored.push({MAIN: mirrored.source.commit("first")})
    await asyncio.wait_for(arrived.wait(), 10)
    if what == "url":
        changed = await mirrored.owner.api.put(mirrored.path, {"url": http_target[1]})
        assert changed.body["update_status"] == "finished"
    else:
        path = mirrored.path if what == "mirror" else f"/projects/{mirrored.project['id']}"
        assert (await mirrored.owner.api.delete(path)).status in (202, 204)
    await mirrored.idle()
    assert target.refs() == {}
    assert [
        line for line in _git_children() if str(mirrored.source.path) in line or http_target[1] in line
    ] == []
    if what == "url":
        assert (await mirrored.show())["update_status"] == "finished"
    if what == "project":
        async with asyncio.timeout(10):
            while working.server.app[REPOSITORIES].exists(mirrored.project["id"]):
                await asyncio.sleep(0.05)


async def test_a_process_runs_so_many_mirrors_at_a_time_and_the_others_wait(
    new_forge: Any, target: BareRepository, http_target: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slow targets do not take the whole worker, which has deliveries and mail to send as well."""
    monkeypatch.setattr(tasks, "AT_ONCE", 1)
    async with new_forge(allow_local_requests=True) as forge:
        first = await Mirrored.create(forge, with_credentials(http_target[1]))
        second = await Mirrored.create(forge, with_credentials(http_target[1]))
        gate, arrived = _gate(http_target[0])
        await first.push({MAIN: first.source.commit("first")})
        await asyncio.wait_for(arrived.wait(), 10)
        await second.push({"refs/heads/second": second.source.commit("second")})
        async with asyncio.timeout(10):
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


async def test_a_run_that_was_cut_off_is_made_again(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    """Its process was killed and its task is lost: found at the next start, and every minute."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    commit = mirrored.source.commit("first")
    mirrored.source.set_refs({MAIN: commit})
    async with database(working).transaction() as transaction:
        await states.begin(transaction, mirrored.mirror["id"])
    await runs.attend(working.server.app)
    assert (await mirrored.reaches("finished", "to_retry", run=2))["last_error"] is None
    assert target.refs() == {MAIN: commit}


async def test_a_run_whose_process_was_killed_is_finished_by_the_next_one(
    new_database: Callable[[], str],
    tmp_path: Path,
    target: BareRepository,
    http_target: Http,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    url, folder = new_database(), tmp_path / "data"
    folder.mkdir()
    async with running_forge(url, folder, work=False, allow_local_requests=True) as forge:
        mirrored = await Mirrored.create(forge, with_credentials(http_target[1]))
        commit = mirrored.source.commit("first")
        await mirrored.push({MAIN: commit})
    gate, arrived = _gate(http_target[0])
    environment = {"DATABASE_URL": url, "DATA_DIR": str(folder), "PORT": str(unused_port())}
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "api_server"),
        env=os.environ
        | {f"FORGELET_API_{name}": value for name, value in environment.items()}
        | {"FORGELET_API_ALLOW_LOCAL_REQUESTS": "true"},
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        await asyncio.wait_for(arrived.wait(), 30)
    finally:
        process.kill()
        await process.wait()
    monkeypatch.setattr(queue, "STALLED_SECONDS", 0.5)
    async with running_forge(url, folder, allow_local_requests=True) as forge:
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
            await states.begin(transaction, mirrored.mirror["id"])
            await transaction.row(
                "UPDATE remote_mirrors SET last_update_at = CASE WHEN %(earlier)s THEN now() END, "
                "last_update_started_at = now() - make_interval(mins => %(minutes)s) WHERE id = %(id)s",
                earlier=earlier,
                minutes=minutes,
                id=mirrored.mirror["id"],
            )
        found = {row.id: row.stuck for row in await states.unattended(database(working))}
        assert found[mirrored.mirror["id"]] is (status == "failed")
        if status == "failed":
            await runs.attend(working.server.app)
            shown = await mirrored.show()
            assert (shown["update_status"], shown["last_error"]) == (status, states.STUCK)
            assert len(await mails(working, mirrored.mirror["id"])) == 1


async def test_a_failure_of_the_service_itself_fails_the_mirror_at_once(
    working: Forge, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git")

    async def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret thing")

    monkeypatch.setattr(runs, "run_mirror", broken)
    await runs.run(working.server.app, mirrored.mirror["id"])
    shown = await mirrored.show()
    assert (shown["update_status"], shown["last_error"]) == ("failed", runs.UNEXPECTED)


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


async def test_the_password_is_found_nowhere(
    working: Forge,
    target: BareRepository,
    http_target: Http,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Not in the process list during a run, nor in logs, database, answers, mails or git's own traces afterwards."""
    http, url = http_target
    seen: list[str] = []
    plain_environment = processes.environment
    traces = {name: str(tmp_path / name) for name in ("GIT_TRACE", "GIT_TRACE_CURL", "GIT_TRACE2_EVENT")}
    monkeypatch.setattr(processes, "environment", lambda *arguments: plain_environment(*arguments) | traces)

    async def look(_request: web.Request) -> None:
        seen.extend(await asyncio.to_thread(process_list))

    http.before = look
    mirrored = await Mirrored.create(working, with_credentials(url), keep_divergent_refs=True)
    target.set_refs({MAIN: target.commit("theirs")})
    await mirrored.push(
        {MAIN: mirrored.source.commit("ours"), "refs/heads/x": mirrored.source.commit("ours")}
    )
    seen.append(str(await mirrored.reaches("failed")))
    http.before = lambda _request: web.Response(status=500, text=f"{PASSWORD} {with_credentials(url)}")
    await mirrored.hurry()
    await mirrored.sync()
    await mirrored.hurry()
    seen.append(str(await mirrored.reaches("to_retry", run=2)))
    (mail,) = await mails(working, mirrored.mirror["id"])
    seen += [text_of(mail), *capfd.readouterr(), await _whole_database(working)]
    seen += [Path(trace).read_text() for trace in traces.values()]
    for proof in (
        "git-remote-http",
        mirrored.mirror["url"],
        "mirror run ended",
        "Authorization: Basic <redacted>",
    ):
        assert any(proof in text for text in seen), proof
    forms = [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), BASIC]
    assert [form for form in forms for text in seen if form in text] == []


async def test_python_gitlab_syncs_a_mirror(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]))
    commit = mirrored.source.commit("first")
    mirrored.source.set_refs({MAIN: commit})

    def sync() -> None:
        client = gitlab.Gitlab(working.base, private_token=mirrored.owner.token)
        (mirror,) = client.projects.get(mirrored.project["id"]).remote_mirrors.list()
        mirror.sync()

    await asyncio.to_thread(sync)
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert target.refs() == {MAIN: commit}


def _gate(http: HttpTarget) -> tuple[asyncio.Event, asyncio.Event]:
    """The target answers nothing until the first event is set; the second tells that somebody has called."""
    opened, arrived = asyncio.Event(), asyncio.Event()

    async def wait(_request: web.Request) -> None:
        arrived.set()
        await opened.wait()

    http.before = wait
    return opened, arrived


def _git_children() -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue
    return lines


async def _whole_database(forge: Forge) -> str:
    tables = await database(forge).rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    texts = []
    for table in tables:
        rows = await database(forge).rows(f"SELECT t::text AS text FROM {table.tablename} t")
        texts += [row.text for row in rows]
    return "\n".join(texts)


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
