"""Runs of mirrors, from a push to the target's refs: of a running server by each protocol, and single ones with a real
HTTP target."""

import asyncio
import base64
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import gitlab
import pytest
from aiohttp import web

from api_server.git import processes
from api_server.mirrors import pushing, running
from api_server.mirrors.configuration import branches_matching, protected_branches
from api_server.mirrors.pushing import RefsRefusedError, Selection
from api_server.outbound.policy import Policy
from api_server.web.context import SERVICES
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import (
    KEEP,
    Mirrored,
    mails,
    mirror,
    new_mirror,
    text_of,
    with_credentials,
)
from tests.api_server.mirrors.targets import BASIC, PASSWORD, USER, Http, SshTarget, process_list, serve_ssh
from tests.support.forge import Forge
from tests.support.git_client import git_url, push_files


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


async def test_an_empty_project_leaves_the_target_alone(
    working: Forge, target: BareRepository, http_target: Http
) -> None:
    alice = await working.user("alice")
    project = await working.project(alice)
    mirror = await new_mirror(working, alice, project["id"], with_credentials(http_target[1]), enabled=True)
    theirs = target.commit("theirs")
    target.set_refs({MAIN: theirs})
    await running.run_mirror_once(working.server.app[SERVICES], mirror["id"])
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
    """A.7; without a protected branch none is pushed (decision D6)."""
    mirrored = await Mirrored.create(working, with_credentials(http_target[1]), **values)
    names = [MAIN, "refs/heads/release/1", "refs/heads/x1", "refs/tags/v1"]
    mirrored.source.set_refs(dict.fromkeys(names, mirrored.source.commit("first")))
    async with working.database.transaction() as transaction:
        await transaction.row(
            "INSERT INTO protected_branches (project_id, name) SELECT %(id)s, unnest(%(names)s::text[])",
            id=mirrored.project["id"],
            names=protected,
        )
    await mirrored.sync()
    assert (await mirrored.reaches("finished", "to_retry"))["last_error"] is None
    assert set(target.refs()) == expected | {"refs/tags/v1"}


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


async def test_mirrors_by_ssh_with_the_key_that_the_service_made(
    working: Forge, target: BareRepository, tmp_path: Path
) -> None:
    """The target gets the public half; its host key is learnt at the first run and pinned from then on."""
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
    working: Forge, forge: Forge, tmp_path: Path
) -> None:
    """Refusals of that instance are reported in its words."""
    bob = await forge.user("bob")
    theirs = await forge.project(bob)
    url = git_url(forge, theirs["path_with_namespace"], bob)
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
    assert shown["last_error"].startswith("Some refs have not been updated on the remote:\n\nrefs/heads/main")


async def test_the_password_is_found_nowhere(
    working: Forge,
    target: BareRepository,
    http_target: Http,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """It is neither in the process list during a run, nor in logs, database, answers, mails or git's own traces
    afterwards."""
    http, url = http_target
    seen: list[str] = []
    plain_environment = processes.child_environment
    traces = {name: str(tmp_path / name) for name in ("GIT_TRACE", "GIT_TRACE_CURL", "GIT_TRACE2_EVENT")}
    monkeypatch.setattr(
        processes, "child_environment", lambda *arguments: plain_environment(*arguments) | traces
    )

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
        "mirror run failed",
        "Authorization: Basic <redacted>",
    ):
        assert any(proof in text for text in seen), proof
    forms = [PASSWORD, quote(PASSWORD), quote(PASSWORD, safe=""), BASIC]
    assert [form for form in forms for text in seen if form in text] == []


async def _whole_database(forge: Forge) -> str:
    tables = await forge.database.rows("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
    texts = []
    for table in tables:
        rows = await forge.database.rows(f"SELECT t::text AS text FROM {table.tablename} t")
        texts += [row.text for row in rows]
    return "\n".join(texts)


async def test_creates_updates_forces_moves_tags_and_deletes_only_what_is_merged(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    first = source.commit("first")
    second, amended = source.commit("second", first), source.commit("amended", first)
    unmerged = target.commit("theirs", target.commit("first"))
    target.commit("second", first)
    tag = source.tag_object("v2", second)
    source.set_refs(
        {
            MAIN: second,
            "refs/heads/amended": amended,
            "refs/heads/v1": first,
            "refs/heads/--force": first,
            "refs/tags/v1": second,
            "refs/tags/v2": tag,
            "refs/merge-requests/1/head": amended,
        }
    )
    target.set_refs(
        {
            MAIN: first,
            "refs/heads/amended": second,
            "refs/heads/merged": first,
            "refs/heads/unmerged": unmerged,
            "refs/tags/v1": first,
            "refs/tags/gone": second,
            "refs/tags/theirs": unmerged,
            "refs/notes/theirs": unmerged,
        }
    )
    outcome = await mirror(source, http_target[1])
    assert outcome.last_error is None
    assert target.refs() == {
        MAIN: second,
        "refs/heads/amended": amended,
        "refs/heads/v1": first,
        "refs/heads/--force": first,
        "refs/heads/unmerged": unmerged,
        "refs/tags/v1": second,
        "refs/tags/v2": tag,
        "refs/tags/theirs": unmerged,
        "refs/notes/theirs": unmerged,
    }
    assert (await mirror(source, http_target[1])).changed == []


async def test_one_listing_and_one_push_make_all_changes_unless_something_is_deleted(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    commit = source.commit("first")
    names = [f"refs/heads/b{number:02}" for number in range(20)]
    source.set_refs(dict.fromkeys([*names, MAIN], commit))
    outcome = await mirror(source, http_target[1])
    assert outcome.last_error is None
    assert target.refs() == dict.fromkeys([*names, MAIN], commit)
    assert outcome.changed[0] == MAIN
    assert sorted(http_target[0].requests) == [
        "GET /target.git/info/refs?service=git-receive-pack",
        "GET /target.git/info/refs?service=git-upload-pack",
        "POST /target.git/git-receive-pack",
        "POST /target.git/git-upload-pack",
    ]


async def test_keeping_divergent_refs_updates_forward_deletes_nothing_and_names_a_hundred(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    first = source.commit("first")
    second = source.commit("second", first)
    theirs = target.commit("theirs", target.commit("first"))
    names = [f"refs/heads/b{number:03}" for number in range(101)]
    source.set_refs({MAIN: second} | dict.fromkeys(names, second))
    kept = dict.fromkeys(names, theirs) | {"refs/heads/merged": first, "refs/heads/merged-tag": first}
    target.set_refs({MAIN: first, **kept})
    outcome = await mirror(source, http_target[1], KEEP)
    assert target.refs() == {MAIN: second, **kept}
    assert outcome.failure is None
    assert len(outcome.divergent) == 101
    heading = "Some refs have diverged and have not been updated on the remote:\n\n"
    assert outcome.last_error == heading + "\n".join(names[:100])


@pytest.mark.parametrize(
    ("selection", "expected"),
    [
        (
            Selection(protected_branches(["main", "release/*"])),
            {MAIN, "refs/heads/release/1", "refs/tags/v1"},
        ),
        (Selection(protected_branches([])), {"refs/tags/v1"}),
        (Selection(branches_matching("m.*|x")), {MAIN, "refs/tags/v1"}),
    ],
)
async def test_only_selected_branches_and_all_tags_are_pushed(
    source: BareRepository,
    target: BareRepository,
    http_target: Http,
    selection: Selection,
    expected: set[str],
) -> None:
    commit = source.commit("first")
    names = [MAIN, "refs/heads/release/1", "refs/heads/x1", "refs/tags/v1"]
    source.set_refs(dict.fromkeys(names, commit))
    assert (await mirror(source, http_target[1], selection)).last_error is None
    assert set(target.refs()) == expected


async def test_an_empty_source_leaves_the_target_alone(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    theirs = target.commit("theirs")
    target.set_refs({MAIN: theirs})
    outcome = await mirror(source, http_target[1])
    assert (outcome.last_error, outcome.changed) == (None, [])
    assert target.refs() == {MAIN: theirs}


async def test_a_name_that_is_not_utf8_is_mirrored_and_told(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    name = "refs/heads/" + os.fsdecode(b"\xff")
    first = source.commit("first")
    source.git("update-ref", name, first)
    assert (await mirror(source, http_target[1])).last_error is None
    assert (target.path / name).read_text().strip() == first
    source.git("update-ref", name, source.commit("other"))
    assert (await mirror(source, http_target[1], KEEP)).last_error == (
        "Some refs have diverged and have not been updated on the remote:\n\nrefs/heads/\ufffd"
    )


async def test_an_annotated_tag_that_only_the_target_knows_is_deleted_by_the_commit_that_it_tags(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    commit, theirs = source.commit("first"), target.commit("theirs")
    target.commit("first")
    source.set_refs({MAIN: commit})
    kept = {"refs/tags/unmerged": target.tag_object("unmerged", theirs)}
    target.set_refs({"refs/tags/merged": target.tag_object("merged", commit), **kept})
    assert (await mirror(source, http_target[1])).last_error is None
    assert target.refs() == {MAIN: commit, **kept}


async def test_a_branch_that_stands_for_another_one_on_the_target_is_neither_moved_nor_deleted(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    """A.7: a push or deletion would change the branch to which it refers."""
    first = source.commit("first")
    second = source.commit("second", first)
    target.commit("first")
    source.set_refs({MAIN: second, "refs/heads/moved": second})
    target.set_refs({MAIN: first, "refs/heads/x": first})
    for alias in ("refs/heads/moved", "refs/heads/gone"):
        target.git("symbolic-ref", alias, "refs/heads/x")
    source.set_refs({"refs/heads/x": first})
    assert (await mirror(source, http_target[1])).changed == [MAIN]
    assert target.refs()["refs/heads/x"] == first
    assert target.git("symbolic-ref", "refs/heads/gone") == "refs/heads/x"


async def test_a_merged_branch_makes_room_for_branches_below_its_name(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    commit = source.commit("first")
    target.commit("first")
    source.set_refs({MAIN: commit, "refs/heads/x/y": commit})
    target.set_refs({"refs/heads/x": commit})
    assert (await mirror(source, http_target[1])).last_error is None
    assert target.refs() == {MAIN: commit, "refs/heads/x/y": commit}


async def test_a_ref_that_changes_on_the_target_during_the_run_is_not_overwritten(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    http, url = http_target
    ours, theirs = source.commit("ours"), target.commit("theirs")
    source.set_refs({MAIN: ours})

    def somebody_pushes(request: web.Request) -> None:
        if request.path.endswith("/git-receive-pack"):
            target.set_refs({MAIN: theirs})

    http.before = somebody_pushes
    outcome = await mirror(source, url)
    assert target.refs() == {MAIN: theirs}
    assert isinstance(outcome.failure, RefsRefusedError)
    assert "remote: error: cannot lock ref 'refs/heads/main'" in (outcome.last_error or "")


async def test_a_target_without_room_is_told_in_its_words(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    source.set_refs({MAIN: source.commit("first")})
    target.git("config", "receive.maxInputSize", "1")
    outcome = await mirror(source, http_target[1])
    assert isinstance(outcome.failure, RefsRefusedError)
    assert f"{MAIN}: [remote rejected] (unpacker error)" in (outcome.last_error or "")
    assert target.refs() == {}


async def test_a_blocked_address_is_never_called(source: BareRepository, http_target: Http) -> None:
    outcome = await mirror(source, http_target[1], policy=Policy())
    expected = "The remote mirror URL is invalid: Requests to loopback addresses are not allowed"
    assert outcome.last_error == expected
    assert http_target[0].requests == []


async def test_a_run_ends_with_its_time_limit(source: BareRepository, http_target: Http) -> None:
    http, url = http_target

    async def hang(_request: web.Request) -> None:
        await asyncio.sleep(60)

    http.before = hang
    outcome = await mirror(source, url, time_limit=0.3)
    assert outcome.last_error == "The refs of the target could not be listed: the target took too long."


async def test_a_run_whose_branches_take_too_long_to_choose_says_so(
    source: BareRepository, http_target: Http, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushing, "CHOOSING_SECONDS", 0.0)
    source.set_refs({MAIN: source.commit("first")})
    outcome = await mirror(source, http_target[1], Selection(branches_matching("m.*")))
    assert outcome.last_error == (
        "The branches to be pushed cannot be chosen: "
        "Regular expressions and path patterns take too long; try simpler ones, or later"
    )


@pytest.mark.parametrize("accepted", [True, False])
async def test_the_password_is_in_no_process_list_trace_log_or_result(
    source: BareRepository,
    target: BareRepository,
    http_target: Http,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    accepted: bool,
) -> None:
    http, url = http_target
    traces = tmp_path / "traces"
    traces.mkdir()
    seen: list[str] = []
    plain_environment = processes.child_environment

    def traced(
        extra: Mapping[str, str] | None = None, configuration: Sequence[tuple[str, str]] = ()
    ) -> dict[str, str]:
        names = ("GIT_TRACE", "GIT_TRACE_CURL", "GIT_TRACE_PACKET", "GIT_TRACE_SETUP", "GIT_TRACE2_EVENT")
        return plain_environment(extra, configuration) | {name: str(traces / name) for name in names}

    async def look(_request: web.Request) -> None:
        seen.extend(await asyncio.to_thread(process_list))

    monkeypatch.setattr(processes, "child_environment", traced)
    http.before = look
    password = PASSWORD if accepted else f"x{PASSWORD}"
    source.set_refs({MAIN: source.commit("first")})
    outcome = await mirror(source, url, password=password)
    assert (outcome.last_error is None) is accepted
    traced_text = "".join(file.read_text() for file in traces.iterdir())
    assert "Authorization: Basic <redacted>" in traced_text
    assert any("ls-remote" in text for text in seen)
    texts = "\n".join([*seen, traced_text, caplog.text, *capfd.readouterr(), repr(outcome)])
    forms = [password, quote(password), quote(password, safe=""), BASIC]
    forms += [base64.b64encode(text.encode()).decode() for text in (password, f"{USER}:{password}")]
    assert [form for form in forms if form in texts] == []
