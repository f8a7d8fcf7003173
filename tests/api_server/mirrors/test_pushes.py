"""Pushing refs: every change finds the ref where it was listed, and a refusal is reported with the refs that
arrived."""

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.remote import connection as connections
from api_server.git.remote.access import Remote, RemoteError
from api_server.git.remote.connection import Change, PushReport, Result, connect, parse_statuses
from api_server.mirrors.pushing import Outcome, RefsRefusedError
from tests.api_server.mirrors.repositories import MAIN, BareRepository
from tests.api_server.mirrors.service import mirror
from tests.api_server.mirrors.targets import PASSWORD, USER, Http, HttpTarget

X = "refs/heads/x"


@pytest.fixture(params=["http", "git"])
def remote(request: pytest.FixtureRequest, http_target: Http, git_url: str) -> Remote:
    """The target by HTTP, and by another protocol, for which pushes work differently."""
    return Remote(http_target[1], USER, PASSWORD) if request.param == "http" else Remote(git_url)


async def push(remote: Remote, source: BareRepository, *changes: Change) -> PushReport:
    async with connect(remote, time_limit=20) as connection, connection.pushing(source.path) as push:
        return await push(changes)


async def test_creates_forces_and_deletes_refs_in_one_push(
    source: BareRepository, target: BareRepository, remote: Remote
) -> None:
    old, new = source.commit("old"), source.commit("new")
    target.commit("old")
    target.set_refs({MAIN: old, "refs/heads/gone": old, "refs/tags/v1": old, "refs/heads/x": old})
    report = await push(
        remote,
        source,
        Change(MAIN, old, new),
        Change("refs/heads/gone", old, None),
        Change("refs/tags/v1", old, new),
        Change("refs/heads/v1", None, new),
        Change("refs/heads/--force", None, new),
    )
    assert [result.status for result in report.results] == ["done"] * 5
    assert target.refs() == {
        MAIN: new,
        "refs/tags/v1": new,
        "refs/heads/v1": new,
        "refs/heads/--force": new,
        "refs/heads/x": old,
    }


async def test_a_ref_that_moved_on_the_target_since_it_was_listed_is_left_alone(
    source: BareRepository, target: BareRepository, remote: Remote
) -> None:
    listed, new = source.commit("listed"), source.commit("new")
    theirs = target.commit("theirs")
    target.set_refs({MAIN: theirs, "refs/heads/created": theirs, "refs/heads/kept": theirs})
    report = await push(
        remote,
        source,
        Change(MAIN, listed, new),
        Change("refs/heads/created", None, new),
        Change("refs/heads/kept", listed, None),
        Change("refs/heads/other", None, new),
    )
    assert [result.status for result in report.results] == ["stale", "stale", "stale", "done"]
    assert target.refs() == {
        MAIN: theirs,
        "refs/heads/created": theirs,
        "refs/heads/kept": theirs,
        "refs/heads/other": new,
    }


async def test_a_ref_that_somebody_else_has_moved_to_the_same_place_is_done(
    source: BareRepository, target: BareRepository, remote: Remote
) -> None:
    old, new = source.commit("old"), source.commit("new")
    target.commit("new")
    target.set_refs({MAIN: new})
    assert (await push(remote, source, Change(MAIN, old, new))).results == (Result(MAIN, "done"),)


async def test_a_ref_that_the_target_refuses_is_told_with_its_reason(
    source: BareRepository, target: BareRepository, remote: Remote
) -> None:
    commit = source.commit("new")
    target.add_hook("update", 'echo "no entry for $1" >&2; test "$1" != refs/heads/closed')
    report = await push(remote, source, Change(MAIN, None, commit), Change("refs/heads/closed", None, commit))
    assert report.results == (
        Result(MAIN, "done"),
        Result("refs/heads/closed", "rejected", "[remote rejected] (hook declined)"),
    )
    assert "no entry for refs/heads/closed" in report.messages


async def test_pushes_one_after_the_other_find_what_the_first_has_done(
    source: BareRepository, target: BareRepository, remote: Remote
) -> None:
    old, new = source.commit("old"), source.commit("new")
    async with connect(remote, time_limit=20) as connection, connection.pushing(source.path) as push:
        for change in (Change(X, None, old), Change(X, old, new), Change(X, new, None)):
            assert (await push([change])).results == (Result(X, "done"),)
    assert target.refs() == {}


async def test_more_leases_than_a_command_line_takes_are_several_pushes(
    source: BareRepository, target: BareRepository, git_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "ARGUMENT_BYTES", 120)
    commit = source.commit("first")
    changes = [Change(f"refs/heads/b{number}", None, commit) for number in range(5)]
    report = await push(Remote(git_url), source, *changes)
    assert report.results == tuple(Result(change.name, "done") for change in changes)
    assert set(target.refs()) == {change.name for change in changes}


@given(st.lists(st.integers(1, 300), min_size=1))
def test_the_parts_of_a_push_are_all_changes_in_order_and_no_part_is_too_large_or_empty(lengths) -> None:
    changes = [Change("x" * length, None, "1" * 40) for length in lengths]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "ARGUMENT_BYTES", 400)
        parts = list(connections._parts(changes))
    assert [change for part in parts for change in part] == changes
    assert all(0 < sum(len(connections._lease(change)) for change in part) <= 400 for part in parts)


async def test_a_failed_connection_is_told_when_something_is_to_be_pushed(
    source: BareRepository, http_target: Http
) -> None:
    wrong = Remote(http_target[1], USER, "wr@ng")
    async with connect(wrong, time_limit=20) as connection, connection.pushing(source.path) as push:
        with pytest.raises(RemoteError, match=r"The push to the target failed: .*Authentication failed"):
            await push([Change(MAIN, None, source.commit("first"))])
    async with connect(wrong, time_limit=20) as connection, connection.pushing(source.path):
        pass


def test_statuses_are_read_with_their_reasons_and_those_of_other_refs_left_out() -> None:
    output = (
        b"ok refs/heads/a\nok refs/heads/b up to date\nerror refs/heads/c no match\n"
        b'error refs/heads/d "sch\\303\\266n \\"quoted\\""\nerror refs/heads/e stale info\n'
        b"error refs/heads/\xff\n\n"
    )
    assert list(parse_statuses(output).values()) == [
        Result("refs/heads/a", "done"),
        Result("refs/heads/b", "done"),
        Result("refs/heads/d", "rejected", '[remote rejected] (schön "quoted")'),
        Result("refs/heads/e", "stale"),
        Result("refs/heads/\udcff", "rejected", "[remote rejected]"),
    ]


BRANCHES = [f"refs/heads/b{number:03}" for number in range(60)]


@pytest.fixture
def commit(source: BareRepository) -> str:
    """Return the commit of all branches of the source."""
    commit = source.commit("first")
    source.set_refs(dict.fromkeys([MAIN, *BRANCHES], commit))
    return commit


def refuse_pushes_with(target: BareRepository, *branches: str) -> None:
    """Install a hook that refuses every push with one of the branches in it."""
    tests = "".join(f"{branch}) echo 'no {branch} here' >&2; exit 1;;\n" for branch in branches)
    target.add_hook("pre-receive", f"while read old new ref; do case $ref in\n{tests}esac; done")


def pushes(http: HttpTarget) -> int:
    return http.requests.count("POST /target.git/git-receive-pack")


def named(outcome: Outcome) -> list[str]:
    """Return the refs that were not updated according to `last_error`."""
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
    """The refs to delete are contained only in the default branch here, which the target does not have."""
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
