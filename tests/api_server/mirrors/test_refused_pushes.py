"""Runs against targets that refuse a push, or some refs of it: what arrives all the same, and what is told."""

import pytest
from aiohttp import web

from api_server.mirrors.pushing import Outcome, RefsRefusedError
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.single_run import mirror
from tests.api_server.mirrors.targets import Http, HttpTarget

BRANCHES = [f"refs/heads/b{number:03}" for number in range(60)]


@pytest.fixture
def commit(source: BareRepository) -> str:
    """The commit that all branches of the source are at."""
    commit = source.commit("first")
    source.set_refs(dict.fromkeys([MAIN, *BRANCHES], commit))
    return commit


def refuse_pushes_with(target: BareRepository, *branches: str) -> None:
    """A hook that refuses every push with one of the branches in it."""
    tests = "".join(f"{branch}) echo 'no {branch} here' >&2; exit 1;;\n" for branch in branches)
    target.add_hook("pre-receive", f"while read old new ref; do case $ref in\n{tests}esac; done")


def pushes(http: HttpTarget) -> int:
    return http.requests.count("POST /target.git/git-receive-pack")


def named(outcome: Outcome) -> list[str]:
    """The refs that `last_error` says were not updated."""
    assert isinstance(outcome.failure, RefsRefusedError)
    lines = str(outcome.failure).split("\n\n")[1].splitlines()
    return [line.partition(":")[0] for line in lines]


async def test_a_ref_that_makes_a_hook_refuse_the_whole_push_holds_up_its_ten_only(
    source: BareRepository, target: BareRepository, http_target: Http, commit: str
) -> None:
    refuse_pushes_with(target, BRANCHES[25])
    outcome = await mirror(source, http_target[1])
    held_up = BRANCHES[19:29]
    assert named(outcome) == held_up
    assert f"{BRANCHES[25]}: [remote rejected] (pre-receive hook declined)" in (outcome.last_error or "")
    assert f"remote: no {BRANCHES[25]} here" in (outcome.last_error or "")
    assert target.refs() == dict.fromkeys([MAIN, *BRANCHES[:19], *BRANCHES[29:]], commit)
    assert sorted(outcome.changed) == sorted(target.refs())


async def test_after_three_refused_tens_the_rest_is_not_tried(
    source: BareRepository, target: BareRepository, http_target: Http, commit: str
) -> None:
    target.add_hook("pre-receive", "echo read-only >&2; exit 1")
    outcome = await mirror(source, http_target[1])
    assert target.refs() == {}
    assert pushes(http_target[0]) == 4
    assert named(outcome) == [MAIN, *BRANCHES]
    assert f"{BRANCHES[29]}: not tried" in (outcome.last_error or "")


async def test_a_push_that_a_proxy_does_not_let_through_is_made_in_tens(
    source: BareRepository, target: BareRepository, http_target: Http, commit: str
) -> None:
    http, url = http_target

    async def limit(request: web.Request) -> web.Response | None:
        too_many = (await request.read()).count(b"refs/heads/") > 10
        return web.Response(status=413) if too_many and request.method == "POST" else None

    http.before = limit
    outcome = await mirror(source, url)
    assert outcome.last_error is None
    assert target.refs() == dict.fromkeys([MAIN, *BRANCHES], commit)
    assert pushes(http) == 1 + 7


async def test_a_target_that_may_be_read_only_is_asked_to_take_a_push_once(
    source: BareRepository, target: BareRepository, http_target: Http, commit: str
) -> None:
    http, url = http_target
    http.before = lambda request: (
        web.Response(status=403) if "git-receive-pack" in str(request.rel_url) else None
    )
    outcome = await mirror(source, url)
    assert "The push to the target failed" in (outcome.last_error or "")
    assert "403" in (outcome.last_error or "")
    assert [line for line in http.requests if "receive-pack" in line] == [
        "GET /target.git/info/refs?service=git-receive-pack"
    ]


async def test_nothing_is_deleted_where_the_default_branch_is_refused_and_the_others_arrive(
    source: BareRepository, target: BareRepository, http_target: Http
) -> None:
    """What would be deleted is contained in the default branch here, which the target has not got."""
    first = source.commit("first")
    second = source.commit("second", first)
    target.commit("second", target.commit("first"))
    source.set_refs({MAIN: second, "refs/heads/new": second})
    target.set_refs({MAIN: first, "refs/heads/merged": second})
    target.add_hook("update", f"test $1 != {MAIN}")
    outcome = await mirror(source, http_target[1])
    assert named(outcome) == [MAIN]
    assert target.refs() == {MAIN: first, "refs/heads/merged": second, "refs/heads/new": second}


async def test_a_hundred_refused_refs_are_named_and_the_others_counted(
    source: BareRepository, target: BareRepository, http_target: Http, commit: str
) -> None:
    more = [f"refs/heads/c{number:03}" for number in range(60)]
    source.set_refs(dict.fromkeys(more, commit))
    target.add_hook("update", f"test $1 = {MAIN}")
    outcome = await mirror(source, http_target[1])
    assert pushes(http_target[0]) == 1
    assert named(outcome) == [*BRANCHES, *more[:40], "... and 20 more"]
    assert target.refs() == {MAIN: commit}
