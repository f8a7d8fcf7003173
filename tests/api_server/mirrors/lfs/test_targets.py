"""Targets that refuse LFS objects, have no LFS, hang or break off, and what is said of them."""

import asyncio

import pytest
from aiohttp import web

from api_server.git.remote.access import RemoteError
from api_server.mirrors import lfs
from api_server.mirrors.pushing import Outcome
from tests.api_server.code.lfs.client import oid_of
from tests.api_server.mirrors.lfs.servers import (
    ONE,
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
from tests.api_server.mirrors.service import with_credentials
from tests.api_server.mirrors.targets import BASIC, PASSWORD, Http
from tests.support.forge import Forge


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


#: What the target does, and the text that says so.
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
