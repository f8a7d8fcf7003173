"""Mirror runs send LFS objects before they push refs: answers and refusals of targets, and data that they must not
see."""

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.errors import GitError
from api_server.git.lfs_pointers import Pointer
from api_server.git.remote.access import Remote, RemoteError
from api_server.mirrors import lfs
from api_server.mirrors.lfs import (
    Action,
    LfsError,
    LfsTransfer,
    NoLfsError,
    RequestedObject,
    lfs_url,
    message_in,
    read_answer,
)
from api_server.mirrors.pushing import Outcome
from api_server.web.context import SERVICES
from tests.api_server.code.lfs.client import LfsClient, oid_of
from tests.api_server.code.lfs.test_git_lfs import clone
from tests.api_server.mirrors.lfs_servers import (
    ONE,
    THREE,
    TWO,
    Change,
    LargeFiles,
    LfsServer,
    Response,
    answers,
    diverged,
    unchanged,
)
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.service import new_mirror, with_credentials
from tests.api_server.mirrors.targets import BASIC, PASSWORD, Http
from tests.support.forge import Forge
from tests.support.git_client import git_url
from tests.support.waiting import until


@pytest.fixture
def server(http_target: Http) -> LfsServer:
    """The LFS server beside the target."""
    server = LfsServer()
    http_target[0].before = server.handle
    return server


@pytest.fixture
async def files(working: Forge, http_target: Http) -> LargeFiles:
    return await LargeFiles.create(working, with_credentials(http_target[1]))


async def test_objects_arrive_before_the_refs_that_point_to_them(
    files: LargeFiles, server: LfsServer, target: BareRepository, http_target: Http
) -> None:
    await files.client.bring(ONE)
    await files.client.bring(TWO)
    first = files.commit(ONE)
    sha = files.commit(TWO, first)
    shown = await files.push(sha, run=1)
    assert (shown["update_status"], shown["last_error"]) == ("finished", None)
    assert target.refs() == {"refs/heads/main": sha}
    assert server.objects == {oid_of(ONE): ONE, oid_of(TWO): TWO}
    assert server.verified == set(server.objects)
    requests = http_target[0].requests
    last_object = max(number for number, request in enumerate(requests) if "/info/lfs/" in request)
    first_push = min(
        number for number, request in enumerate(requests) if "POST /target.git/git-rec" in request
    )
    assert last_object < first_push


async def test_only_what_the_target_has_not_got_yet_is_asked_about(
    files: LargeFiles, server: LfsServer
) -> None:
    for content in (ONE, TWO, THREE):
        await files.client.bring(content)
    first = files.commit(ONE)
    await files.push(first, run=1)
    second = files.commit(TWO, first)
    await files.push(second, run=2)
    await files.sync(run=3)
    await files.push(first, run=4, ref="refs/heads/copy")
    assert server.asked == [[oid_of(ONE)], [oid_of(TWO)]]


async def test_what_is_not_mirrored_is_not_carried(
    working: Forge, http_target: Http, server: LfsServer
) -> None:
    files = await LargeFiles.create(working, with_credentials(http_target[1]), mirror_branch_regex="main")
    await files.client.bring(ONE)
    await files.client.bring(b"secret")
    secret = files.commit(b"secret")
    await files.mirrored.push({"refs/heads/secret": secret})
    await files.ended(run=1)
    await files.push(files.commit(ONE), run=2)
    assert server.objects == {oid_of(ONE): ONE}


async def test_a_project_without_objects_costs_no_request_and_no_search(
    files: LargeFiles, server: LfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(*_arguments: object) -> Any:
        raise AssertionError("searched")

    monkeypatch.setattr(lfs, "pointers_in", never)
    shown = await files.push(files.commit(ONE), run=1)
    assert shown["update_status"] == "finished"
    assert server.requests == []


async def test_objects_that_come_after_their_pointers_are_carried_by_the_next_run(
    files: LargeFiles, server: LfsServer
) -> None:
    first = files.commit(ONE)
    await files.push(first, run=1)
    await files.client.bring(TWO)
    await files.push(files.commit(TWO, first), run=2)
    assert set(server.objects) == {oid_of(TWO)}
    await files.client.bring(ONE)
    await files.sync(run=3)
    assert set(server.objects) == {oid_of(ONE), oid_of(TWO)}
    assert server.asked == [[oid_of(TWO)], [oid_of(ONE)]]


async def test_another_target_gets_everything_again(
    files: LargeFiles, http_target: Http, server: LfsServer
) -> None:
    await files.client.bring(ONE)
    await files.push(files.commit(ONE), run=1)
    server.objects.clear()
    url = http_target[1].removesuffix(".git")
    (http_target[0].root / "target").symlink_to(http_target[0].root / "target.git")
    answer = await files.mirrored.owner.api.put(files.mirrored.path, {"url": with_credentials(url)})
    assert answer.status == 200
    await files.sync(run=3)
    assert server.objects == {oid_of(ONE): ONE}


async def test_objects_reach_a_second_instance_of_this_service(
    working: Forge, forge: Forge, tmp_path: Path
) -> None:
    bob = await forge.user("bob")
    there = await forge.project(bob)
    url = git_url(forge, there["path_with_namespace"], bob)
    files = await LargeFiles.create(working, url)
    await files.client.bring(ONE)
    await files.client.bring(TWO)
    shown = await files.push(files.commit(TWO, files.commit(ONE)), run=1)
    assert (shown["update_status"], shown["last_error"]) == ("finished", None)
    arrived = LfsClient.of(forge, there, bob)
    for content in (ONE, TWO):
        assert (await arrived.request("GET", f"/objects/{oid_of(content)}")).body == content


@pytest.mark.skipif(shutil.which("git-lfs") is None, reason="git-lfs is not installed")
async def test_what_git_lfs_pushes_here_git_lfs_fetches_from_the_mirror(
    working: Forge, forge: Forge, tmp_path: Path
) -> None:
    alice, bob = await working.user("alice"), await forge.user("bob")
    here, there = await working.project(alice), await forge.project(bob)
    target = git_url(forge, there["path_with_namespace"], bob)
    mirror = await new_mirror(working, alice, here["id"], target, enabled=True)
    git = await clone(working, tmp_path / "work", here["path_with_namespace"], alice)
    await git("lfs", "track", "*.bin")
    await git.commit_files({"a.bin": TWO})
    await git("push", "--quiet", "origin", "main")

    async def finished() -> bool:
        path = f"/projects/{here['id']}/remote_mirrors/{mirror['id']}"
        return bool((await alice.api.get(path)).body["update_status"] == "finished")

    assert await until(finished)
    copy = await clone(forge, tmp_path / "copy", there["path_with_namespace"], bob)
    await copy("pull", "--quiet", "origin", "main")
    assert (tmp_path / "copy" / "a.bin").read_bytes() == TWO


async def test_a_mirror_over_ssh_carries_no_objects(files: LargeFiles, server: LfsServer) -> None:
    carry = LfsTransfer(files.mirrored.forge.server.app[SERVICES], await files.mirrored.found(), 10)
    assert await carry(Remote("ssh://git@example.org/x.git"), {"0" * 40}, set()) is None
    assert server.requests == []


async def test_a_search_that_fails_is_made_again_from_the_first_commit(
    files: LargeFiles, server: LfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_arguments: object) -> Any:
        raise GitError("log", 128, "broken")

    await files.client.bring(ONE)
    await files.client.bring(TWO)
    first = files.commit(ONE)
    await files.push(first, run=1)
    second = files.commit(TWO, first)
    with monkeypatch.context() as patched:
        patched.setattr(lfs, "pointers_in", broken)
        assert (await files.push(second, run=2))["update_status"] == "finished"
    assert set(server.objects) == {oid_of(ONE)}
    await files.sync(run=3)
    assert set(server.objects) == {oid_of(ONE), oid_of(TWO)}


async def test_a_run_that_has_been_superseded_records_nothing(files: LargeFiles, server: LfsServer) -> None:
    await files.client.bring(ONE)
    mirror = await files.mirrored.found()
    carry = LfsTransfer(
        files.mirrored.forge.server.app[SERVICES], attrs.evolve(mirror, run=mirror.run + 1), 10
    )
    assert await carry(Remote("http://example.org/x.git"), {files.commit(ONE)}, set()) is None
    assert not (await files.mirrored.row()).lfs_followed


async def test_a_target_that_refuses_objects_gets_the_refs_and_the_objects_later(
    files: LargeFiles, server: LfsServer, target: BareRepository
) -> None:
    await files.client.bring(ONE)
    server.statuses["/objects/batch"] = lambda: web.json_response({"message": "no room"}, status=507)
    sha = files.commit(ONE)
    shown = await files.push(sha, run=1)
    assert (shown["update_status"], shown["last_error"]) == ("finished", None)
    assert target.refs() == {"refs/heads/main": sha}
    server.statuses.clear()
    await files.sync(run=2)
    assert server.objects == {oid_of(ONE): ONE}
    await files.sync(run=3)
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "without",
    [
        lambda: web.Response(status=404),
        lambda: web.Response(status=501),
        lambda: web.Response(text="<html>hello</html>", content_type="text/html"),
        lambda: web.json_response({"hello": 1}),
    ],
    ids=["404", "501", "not JSON", "not LFS"],
)
async def test_a_target_without_lfs_is_no_error(
    working: Forge, http_target: Http, server: LfsServer, without: Response
) -> None:
    files = await LargeFiles.create(working, with_credentials(http_target[1]), keep_divergent_refs=True)
    server.statuses["/objects/batch"] = without
    await files.client.bring(ONE)
    sha = files.commit(ONE)
    shown = await files.push(sha, run=1)
    assert shown["update_status"] == "finished"
    diverged = await files.push(files.commit(TWO), run=2)
    assert diverged["last_error"] == (
        "Some refs have diverged and have not been updated on the remote:\n\nrefs/heads/main"
    )


#: The behaviour of the target, and the resulting text.
REFUSALS: dict[str, tuple[dict[str, Response], Change, str]] = {
    "batch refused": (
        {"/objects/batch": answers(403, f"no room for alice:{PASSWORD} {BASIC}")},
        unchanged,
        "The target answered 403: no room for *****:***** *****",
    ),
    "redirect": ({"/objects/batch": answers(307)}, unchanged, "The target answered 307."),
    "upload refused": (
        {f"/objects/{oid_of(ONE)}": answers(507, "full")},
        unchanged,
        f"{oid_of(ONE)}: The target answered 507: full",
    ),
    "verification refused": (
        {"/verify": answers(422, "what\nis it?")},
        unchanged,
        f"{oid_of(ONE)}: The target answered 422: what is it?",
    ),
    "object refused": (
        {},
        lambda answer: answer["objects"][0].update(error={"code": 422, "message": "too large"}),
        f"{oid_of(ONE)}: too large",
    ),
    "nothing said": (
        {},
        lambda answer: answer["objects"].clear(),
        f"{oid_of(ONE)}: the target said nothing about it",
    ),
    "other transfer": (
        {},
        lambda answer: answer.update(transfer="tus"),
        "The target wants LFS objects in a way that is not supported.",
    ),
    "nonsense": (
        {},
        lambda answer: answer["objects"][0]["actions"].update(upload={"href": 7}),
        f"{oid_of(ONE)}: the target's answer is not understood",
    ),
    "not a URL": (
        {},
        lambda answer: answer["objects"][0]["actions"].update(upload={"href": "file:///etc/passwd"}),
        f"{oid_of(ONE)}: An address that the target names is blocked: Only allowed schemes are http, https",
    ),
    "broken header": (
        {},
        lambda answer: answer["objects"][0]["actions"]["upload"].update(header={"X-A": "b\r\nc: d"}),
        f"{oid_of(ONE)}: The connection to the target failed.",
    ),
}


@pytest.mark.parametrize(
    ("statuses", "change", "text"),
    list(REFUSALS.values()),
    ids=list(REFUSALS),
)
async def test_a_failure_is_told_before_the_divergence(
    working: Forge,
    http_target: Http,
    server: LfsServer,
    statuses: dict[str, Response],
    change: Change,
    text: str,
) -> None:
    files = await diverged(working, http_target, ONE)
    server.statuses, server.change = statuses, change
    shown = await files.push(files.commit(b"ours"), run=2)
    assert shown["update_status"] == "failed"
    before, divergence = shown["last_error"].split("\n\nSome refs have diverged")
    assert before == f"Error synchronizing LFS files:\n\n{text}"
    assert divergence.endswith("refs/heads/main")


async def test_more_objects_than_a_batch_holds_and_problems_that_a_text_holds(
    working: Forge, http_target: Http, server: LfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lfs, "BATCH_SIZE", 5)
    contents = [b"%d" % number for number in range(13)]
    files = await diverged(working, http_target, *contents)
    server.change = lambda answer: [
        each.update(error={"code": 422, "message": "no"}) for each in answer["objects"]
    ]
    shown = await files.push(files.commit(b"ours"), run=2)
    lines = shown["last_error"].split("\n\n")[1].splitlines()
    assert (len(lines), lines[-1]) == (11, "... and 3 more")
    assert [len(asked) for asked in server.asked] == [5, 5, 3]
    server.change = lambda _: None
    await files.sync(run=3)
    assert len(server.objects) == 13


async def test_a_target_that_hangs_holds_up_the_refs_no_longer_than_its_time(
    files: LargeFiles,
    http_target: Http,
    server: LfsServer,
    target: BareRepository,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hang(request: web.Request) -> web.StreamResponse | None:
        if "/info/lfs/" in request.path:
            await asyncio.sleep(60)
        return None

    http_target[0].before = hang
    monkeypatch.setattr(lfs, "SILENCE_SECONDS", 0.3)
    await files.client.bring(ONE)
    sha = files.commit(ONE)
    shown = await files.push(sha, run=1)
    assert (shown["update_status"], target.refs()) == ("finished", {"refs/heads/main": sha})
    http_target[0].before = server.handle
    await files.sync(run=2)
    assert server.objects == {oid_of(ONE): ONE}


async def test_objects_at_which_the_connection_breaks_hold_up_no_others(
    files: LargeFiles, server: LfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lfs, "BATCH_SIZE", 3)
    contents = [b"%d" % number for number in range(9)]
    tip: tuple[str, ...] = ()
    for content in contents:
        await files.client.bring(content)
        tip = (files.commit(content, *tip),)
    server.breaks_at = set(sorted(map(oid_of, contents))[:2])
    await files.push(tip[0], run=1)
    assert set(server.objects) == {oid_of(content) for content in contents} - server.breaks_at
    server.breaks_at, server.asked = set(), []
    await files.sync(run=2)
    assert len(server.objects) == 9
    assert [len(asked) for asked in server.asked] == [2]


async def test_a_target_that_answers_nothing_is_given_up(
    files: LargeFiles, server: LfsServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lfs, "BATCH_SIZE", 10)
    contents = [b"%d" % number for number in range(30)]
    tip: tuple[str, ...] = ()
    for content in contents:
        await files.client.bring(content)
        tip = (files.commit(content, *tip),)
    server.breaks_at = set(map(oid_of, contents))
    assert (await files.push(tip[0], run=1))["update_status"] == "finished"
    assert len(server.asked) == 1
    uploads = {request for request in server.requests if request.startswith("PUT")}
    assert 4 <= len(uploads) <= 7


@pytest.mark.parametrize(
    ("outcome", "last_error"),
    [
        (Outcome(lfs_problem="no"), None),
        (
            Outcome(lfs_problem="no", failure=RemoteError("refused")),
            "Error synchronizing LFS files:\n\nno\n\nrefused",
        ),
        (Outcome(failure=RemoteError("refused")), "refused"),
    ],
)
def test_a_failure_with_objects_alone_is_none_of_the_mirror(outcome: Outcome, last_error: str | None) -> None:
    assert outcome.last_error == last_error


ASKED = [Pointer(f"{number:064x}", number) for number in range(4)]
_ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
_ACTION = _ANYTHING | st.fixed_dictionaries(
    {"href": st.text(max_size=9) | _ANYTHING},
    optional={"header": _ANYTHING | st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)},
)
_OBJECT = st.fixed_dictionaries(
    {"oid": st.sampled_from([pointer.oid for pointer in ASKED] + ["f" * 64]) | _ANYTHING},
    optional={
        "size": _ANYTHING,
        "error": _ANYTHING | st.fixed_dictionaries({"message": _ANYTHING}),
        "authenticated": _ANYTHING,
        "actions": _ANYTHING | st.fixed_dictionaries({"upload": _ACTION}, optional={"verify": _ACTION}),
    },
)
_ANSWER = st.fixed_dictionaries(
    {"objects": _ANYTHING | st.lists(_OBJECT | _ANYTHING, max_size=6)},
    optional={"transfer": st.just("basic") | _ANYTHING, "hash_algo": st.just("sha256") | _ANYTHING},
)


@given(sent=_ANSWER | _ANYTHING)
def test_whatever_is_answered_each_object_that_was_asked_about_has_one_fate_and_no_other_has_any(
    sent: Any,
) -> None:
    try:
        answer = read_answer(json.dumps(sent).encode(), ASKED)
    except (NoLfsError, LfsError):
        return
    fates = [*answer.present, *(wanted.oid for wanted in answer.requested), *answer.refused]
    assert sorted(fates) == [pointer.oid for pointer in ASKED]
    for wanted in answer.requested:
        for action in filter(None, (wanted.upload, wanted.verify)):
            assert isinstance(action.href, str)
            assert all(isinstance(value, str) for value in action.header.values())


@given(body=st.binary(max_size=200))
def test_what_is_no_json_is_no_lfs(body: bytes) -> None:
    message_in(body)
    with pytest.raises((NoLfsError, LfsError)):
        read_answer(body, ASKED)


def test_what_is_there_what_is_wanted_and_what_is_refused() -> None:
    there, wanted, refused, _ = (pointer.oid for pointer in ASKED)
    objects = [
        {"oid": there, "size": 0},
        {
            "oid": wanted,
            "authenticated": True,
            "actions": {
                "upload": {"href": "http://a/"},
                "verify": {"href": "http://b/", "header": {"x": "y"}},
            },
        },
        {"oid": refused, "error": {"code": 422, "message": "no"}},
        {"oid": "f" * 64, "actions": {"upload": {"href": "http://c/"}}},
    ]
    answer = read_answer(json.dumps({"objects": objects}).encode(), ASKED)
    assert answer.present == {there}
    assert answer.requested == (
        RequestedObject(wanted, Action("http://a/", {}), Action("http://b/", {"x": "y"}), True),
    )
    assert answer.refused == {refused: "no", ASKED[3].oid: "the target said nothing about it"}


@pytest.mark.parametrize(
    ("repository", "lfs"),
    [
        ("https://example.org/group/app.git", "https://example.org/group/app.git/info/lfs"),
        ("https://example.org/group/app", "https://example.org/group/app.git/info/lfs"),
        ("http://example.org:8080/app/?x=y", "http://example.org:8080/app.git/info/lfs"),
    ],
)
def test_the_lfs_server_is_found_beside_the_repository(repository: str, lfs: str) -> None:
    assert lfs_url(repository) == lfs


@pytest.mark.parametrize(
    "href",
    ["http://10.0.0.1/objects", "http://169.254.169.254/latest", "http://127.0.0.1:1/x", "http://[::1]/"],
)
async def test_an_answer_that_points_to_a_private_address_is_not_followed(
    forge: Forge, http_target: Http, server: LfsServer, href: str
) -> None:
    host = http_target[1].split("/")[2]
    async with forge.instance_settings(outbound_local_requests_whitelist=[host]):
        files = await diverged(forge, http_target, ONE, TWO)
        server.change = lambda answer: [
            each["actions"]["upload"].update(href=href) for each in answer["objects"]
        ]
        shown = await files.push(files.commit(b"ours"), run=2)
        assert shown["last_error"].startswith(
            f"Error synchronizing LFS files:\n\n{min(oid_of(ONE), oid_of(TWO))}: "
            "An address that the target names is blocked: Requests to "
        )
        assert server.objects == {}


async def test_credentials_go_to_the_targets_own_server_only(
    files: LargeFiles, server: LfsServer, working: Forge
) -> None:
    seen: list[dict[str, str]] = []

    async def take(request: web.Request) -> web.Response:
        seen.append(dict(request.headers))
        await request.read()
        return web.Response()

    elsewhere = web.Application()
    elsewhere.router.add_put("/bucket", take)
    async with TestServer(elsewhere, host="127.0.0.1") as storage:
        signed = str(storage.make_url("/bucket")) + "?X-Signature=a%2Fb%20c"

        def to_storage(answer: dict[str, Any]) -> None:
            actions = answer["objects"][0]["actions"]
            actions.pop("verify")
            actions["upload"] = {
                "href": signed,
                "header": {"X-Kind": "lfs", "Host": "x", "Content-Length": "1"},
            }

        server.change = to_storage
        await files.client.bring(ONE)
        await files.push(files.commit(ONE), run=1)
    (headers,) = seen
    assert "Authorization" not in headers
    assert (headers["X-Kind"], headers["Content-Length"]) == ("lfs", str(len(ONE)))
    assert headers["Host"] != "x"


async def test_what_an_action_says_takes_the_place_of_the_mirrors_credentials(
    files: LargeFiles, server: LfsServer
) -> None:
    server.needs_token = True
    await files.client.bring(ONE)
    await files.push(files.commit(ONE), run=1)
    assert server.objects == {oid_of(ONE): ONE}


async def test_nothing_of_the_credentials_is_kept_or_logged(
    working: Forge, http_target: Http, server: LfsServer, capfd: pytest.CaptureFixture[str]
) -> None:
    files = await diverged(working, http_target, ONE)
    server.statuses["/objects/batch"] = answers(500, f"alice:{PASSWORD} {BASIC}")
    shown = await files.push(files.commit(b"ours"), run=2)
    assert "The target answered 500" in shown["last_error"]
    rows = await working.database.rows("SELECT row_to_json(remote_mirrors)::text AS row FROM remote_mirrors")
    said = "".join(capfd.readouterr()) + "".join(row.row for row in rows)
    assert "LFS objects did not get to the target" in said
    for secret in (PASSWORD, BASIC):
        assert secret not in said
