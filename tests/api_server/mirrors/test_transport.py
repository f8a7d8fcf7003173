"""Whole mirror runs against a real HTTP target."""

import asyncio
import base64
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from aiohttp import web

from api_server.git import processes
from api_server.mirrors import pushing
from api_server.mirrors.configuration import branches_matching, protected_branches
from api_server.mirrors.pushing import RefsRefusedError, Selection
from api_server.outbound.policy import Policy
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.single_run import KEEP, mirror
from tests.api_server.mirrors.targets import BASIC, PASSWORD, USER, Http, process_list


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
    """A.7: pushing to it, or deleting it, would change the branch that it stands for."""
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
