"""The rules of mirrors: the plan of a run, the states of a mirror, URLs, and parts of them that are never shown."""

import asyncio
import base64
import itertools
from urllib.parse import quote, quote_plus

import psycopg2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.remote.access import mask_url, sanitize
from api_server.git.remote.connection import Refs
from api_server.git.remote.ssh_keys import make_key_pair
from api_server.mirrors import queries
from api_server.mirrors.configuration import (
    MirrorUrl,
    all_branches,
    branches_matching,
    is_same_repository,
    protected_branches,
    split_mirror_url,
    uniqueness_key,
)
from api_server.mirrors.pushing import Plan, Selection, compare, divergence_report, stages
from api_server.mirrors.queries import RunResult
from api_server.mirrors.running import Attempt, record_run
from api_server.state.database import Transaction
from api_server.web.context import SERVICES
from tests.api_server.mirrors.repositories import MAIN
from tests.api_server.mirrors.service import Mirrored
from tests.support.forge import Forge
from tests.support.waiting import until_somebody_waits

# Commits are numbers of a small history: a number's ancestors are its divisors. 16 is unknown to the source.
COMMITS = st.sampled_from([1, 2, 3, 4, 6, 8, 12, 16])
NAMES = st.sampled_from(
    f"""{MAIN} refs/heads/x refs/heads/x/y refs/heads/-f refs/heads/r/1 refs/tags/x refs/tags/v1
    refs/notes/n refs/merge-requests/1/head refs/headsx""".split()
)
REFS = st.builds(
    lambda at, symbolic: Refs(
        {name: f"tag of {n}" if tag else str(n) for name, (n, tag) in at.items()},
        {name: str(n) for name, (n, tag) in at.items() if tag},
        frozenset(symbolic & at.keys()),
    ),
    st.dictionaries(NAMES, st.tuples(COMMITS, st.sampled_from([False] * 5 + [True]))),
    st.frozensets(NAMES, max_size=2),
)
SELECTIONS = st.builds(
    Selection,
    st.sampled_from([all_branches, protected_branches([]), protected_branches(["main", "r/*"])]),
    st.booleans(),
)
DEFAULTS = st.sampled_from([None, MAIN, "refs/heads/x"])


def is_ancestor(old: str, new: str) -> bool:
    numbers = [int(sha.removeprefix("tag of ")) for sha in (old, new)]
    return 16 not in numbers and numbers[1] % numbers[0] == 0


def plan_of(local: Refs, remote: Refs, selection: Selection, default: str | None) -> Plan:
    comparison = compare(local, remote, selection, default)
    return comparison.plan({pair for pair in comparison.open_questions() if is_ancestor(*pair)})


def taking_part(name: str, local: Refs, remote: Refs, selection: Selection) -> bool:
    if name in local.symbolic | remote.symbolic:
        return False
    branch = name.startswith("refs/heads/") and selection.selects(name.removeprefix("refs/heads/"))
    return branch or name.startswith("refs/tags/")


def applied(plan: Plan, remote: Refs) -> Refs:
    """Return the target's refs after the plan; each change has to find the ref where the plan expects it."""
    ids = dict(remote.ids)
    for change in (*plan.creates, *plan.updates, *plan.deletions):
        assert ids.get(change.name) == change.old
        if change.new is None:
            del ids[change.name]
        else:
            ids[change.name] = change.new
    peeled = {name: commit for name, commit in remote.peeled.items() if ids.get(name) == remote.ids[name]}
    return Refs(ids, peeled, remote.symbolic)


@given(REFS, REFS, SELECTIONS, DEFAULTS)
def test_every_selected_ref_of_the_source_is_mirrored_unless_it_is_reported(
    local, remote, selection, default
) -> None:
    plan = plan_of(local, remote, selection, default)
    after = applied(plan, remote)
    for name, sha in local.ids.items():
        if taking_part(name, local, remote, selection) and name not in plan.divergent:
            assert after.ids[name] == sha


@given(REFS, REFS, SELECTIONS, DEFAULTS)
def test_nothing_else_is_ever_touched(local, remote, selection, default) -> None:
    plan = plan_of(local, remote, selection, default)
    for change in (*plan.creates, *plan.updates, *plan.deletions):
        assert taking_part(change.name, local, remote, selection)
        assert change.old != change.new
    assert all(taking_part(name, local, remote, selection) for name in plan.divergent)


@given(REFS, REFS, SELECTIONS, DEFAULTS)
def test_only_what_the_default_branch_contains_is_deleted(local, remote, selection, default) -> None:
    for change in plan_of(local, remote, selection, default).deletions:
        assert change.name not in local.ids
        assert is_ancestor(remote.commit(change.name), local.ids[default])


@given(REFS, REFS, SELECTIONS, DEFAULTS)
def test_without_a_default_branch_nothing_is_deleted(local, remote, selection, default) -> None:
    if default not in local.ids:
        assert plan_of(local, remote, selection, default).deletions == ()


@given(REFS, REFS, SELECTIONS, DEFAULTS)
def test_in_keep_mode_refs_move_forward_only_and_the_others_are_reported(
    local, remote, selection, default
) -> None:
    plan = plan_of(local, remote, selection, default)
    if not selection.keep_divergent_refs:
        assert plan.divergent == ()
        return
    assert plan.deletions == ()
    assert all(is_ancestor(remote.commit(change.name), local.commit(change.name)) for change in plan.updates)
    assert not any(is_ancestor(remote.commit(name), local.commit(name)) for name in plan.divergent)


@given(REFS, REFS, SELECTIONS, DEFAULTS)
def test_a_second_run_has_nothing_left_to_do(local, remote, selection, default) -> None:
    plan = plan_of(local, remote, selection, default)
    again = plan_of(local, applied(plan, remote), selection, default)
    assert again == Plan((), (), (), plan.divergent)


@given(REFS, REFS, SELECTIONS, DEFAULTS)
def test_stages_are_the_whole_plan_once_with_the_default_branch_first_and_deletions_before_creations(
    local, remote, selection, default
) -> None:
    plan = plan_of(local, remote, selection, default)
    pushed = stages(plan, default)
    changes = [change for stage in pushed for change in stage]
    assert sorted(changes, key=lambda change: change.name) == sorted(
        [*plan.creates, *plan.updates, *plan.deletions], key=lambda change: change.name
    )
    assert all(stage for stage in pushed)
    assert len(pushed) <= (3 if plan.deletions else 1)
    if default in {change.name for change in (*plan.creates, *plan.updates)}:
        assert changes[0].name == default
    rest = [change.new is None for change in changes if change.name != default]
    assert rest == sorted(rest, reverse=True)
    assert not any({change.new is None for change in stage} == {True, False} for stage in pushed)


def test_a_hundred_divergent_refs_are_named_at_most() -> None:
    names = [f"refs/heads/b{number}" for number in range(101)]
    heading, blank, *reported = divergence_report(names).splitlines()
    assert heading == "Some refs have diverged and have not been updated on the remote:"
    assert blank == ""
    assert reported == names[:100]


@pytest.mark.parametrize(
    ("patterns", "name", "selected"),
    [
        (["main"], "main", True),
        (["main"], "mainline", False),
        (["release/*"], "release/1/2", True),
        (["*-stable"], "1-2-stable", True),
        (["*-stable"], "1-stable-2", False),
        (["a.c"], "abc", False),
        (["a|b"], "a", False),
        (["*"], "anything\udcff", False),  # not UTF-8
        ([], "main", False),
    ],
)
def test_protected_names_match_whole_names_with_wildcards(
    patterns: list[str], name: str, selected: bool
) -> None:
    assert protected_branches(patterns)(name) is selected


@pytest.mark.parametrize(
    ("expression", "name", "selected"),
    [
        ("main|release", "release", True),
        ("main|release", "release2", False),
        (".*[0-9]", "v1", True),
        ("", "x", False),
    ],
)
def test_a_regular_expression_matches_whole_names(expression: str, name: str, selected: bool) -> None:
    assert branches_matching(expression)(name) is selected


def test_protected_names_fit_however_many_they_are() -> None:
    rules = [*(f"release/{number}/*" for number in range(1_000)), "*" * 255, "main"]
    selects = protected_branches(rules[:-2])
    assert [selects(name) for name in ("release/999/x", "release/1000", "main")] == [True, False, False]
    assert [protected_branches(rules[-2:])(name) for name in ("main", "anything")] == [True, True]


@pytest.mark.parametrize("expression", ["(", "a(?=b)", r"(a)\1", "a{2000}", r"\pL{400}"])
def test_what_re2_does_not_know_is_refused(expression: str) -> None:
    with pytest.raises(ValueError, match="is not a valid RE2 expression"):
        branches_matching(expression)


STATUSES = ("none", "started", "finished", "to_retry", "failed")
#: By event: the resulting state for each state in which it can happen.
EVENTS = {
    "begin": dict.fromkeys(STATUSES, "started"),
    "succeed": {"started": "finished"},
    "diverge": {"started": "failed"},
    "retry": {"started": "to_retry"},
    "fail": {"started": "failed"},
    "retarget": dict.fromkeys(STATUSES, "finished"),
}


@pytest.fixture(scope="module")
async def mirrored(working: Forge) -> Mirrored:
    return await Mirrored.create(working, "http://127.0.0.1:9/x.git")


async def put(transaction: Transaction, mirror_id: int, status: str, retries: int = 0) -> None:
    """Set the state, without the transitions to it."""
    await transaction.row("ALTER TABLE remote_mirrors DISABLE TRIGGER remote_mirrors_transition")
    await transaction.row(
        "UPDATE remote_mirrors SET update_status = %(status)s, retries = %(retries)s, last_error = 'old', "
        "last_update_at = NULL, last_successful_update_at = NULL, failure_told = false WHERE id = %(id)s",
        id=mirror_id,
        status=status,
        retries=retries,
    )
    await transaction.row("ALTER TABLE remote_mirrors ENABLE TRIGGER remote_mirrors_transition")


@pytest.mark.parametrize(("event", "before"), list(itertools.product(EVENTS, STATUSES)))
async def test_each_event_from_each_state(mirrored: Mirrored, event: str, before: str) -> None:
    mirror_id = mirrored.mirror["id"]
    async with mirrored.forge.database.transaction() as transaction:
        await put(transaction, mirror_id, before)
        run = (await mirrored.row()).run
        if event == "begin":
            await queries.begin_run(transaction, mirror_id)
        elif event == "retarget":
            await queries.retarget(transaction, mirror_id)
        else:
            await queries.end_run(transaction, mirror_id, run, event, None if event == "succeed" else "new")  # type: ignore[arg-type]
        row = await transaction.row("SELECT * FROM remote_mirrors WHERE id = %(id)s", id=mirror_id)
    after = EVENTS[event].get(before, before)
    assert row.update_status == after
    if before not in EVENTS[event]:
        assert (row.last_error, row.last_update_at) == ("old", None)
    elif event in ("succeed", "diverge", "fail"):
        assert row.last_update_at is not None
        assert (row.last_successful_update_at is not None) == (event == "succeed")
        assert row.last_error == (None if event == "succeed" else "new")
    elif event == "retry":
        assert (row.last_error, row.last_update_at, row.retries) == ("new", None, 1)
    elif event == "retarget":
        assert (row.last_error, row.last_update_at, row.run) == (None, None, run + 1)
    else:
        assert (row.last_error, row.run) == ("old", run + 1)
        assert row.last_update_started_at is not None


async def test_the_database_refuses_every_move_that_is_no_event(mirrored: Mirrored) -> None:
    async def move(before: str, after: str) -> None:
        async with mirrored.forge.database.transaction() as transaction:
            await put(transaction, mirrored.mirror["id"], before)
            await transaction.row(
                "UPDATE remote_mirrors SET update_status = %(status)s WHERE id = %(id)s",
                id=mirrored.mirror["id"],
                status=after,
            )

    allowed = {(before, after) for moves in EVENTS.values() for before, after in moves.items()}
    for before, after in itertools.product(STATUSES, [*STATUSES, "scheduled"]):
        if (before, after) not in allowed and before != after:
            with pytest.raises(psycopg2.errors.CheckViolation, match=f"from {before} to {after}"):
                await move(before, after)


@pytest.mark.parametrize("why", ["the mirror", "the repository"])
async def test_what_is_disabled_does_not_begin(working: Forge, why: str) -> None:
    mirrored = await Mirrored.create(working, "http://127.0.0.1:9/x.git")
    if why == "the mirror":
        answer = await mirrored.owner.api.put(mirrored.path, {"enabled": False})
    else:
        values = {"repository_access_level": "disabled"}
        answer = await mirrored.owner.api.put(f"/projects/{mirrored.project['id']}", values)
    assert answer.status == 200
    async with working.database.transaction() as transaction:
        assert await queries.begin_run(transaction, mirrored.mirror["id"]) is None


async def test_a_run_whose_number_has_passed_changes_nothing(mirrored: Mirrored) -> None:
    mirror_id = mirrored.mirror["id"]
    async with mirrored.forge.database.transaction() as transaction:
        first = await queries.begin_run(transaction, mirror_id)
        second = await queries.begin_run(transaction, mirror_id)
        assert first is not None
        assert second is not None
        assert not await queries.is_current_run(transaction, mirror_id, first.run)
        assert await queries.end_run(transaction, mirror_id, first.run, "fail", "late") is None
        assert await queries.is_current_run(transaction, mirror_id, second.run)
        ended = await queries.end_run(transaction, mirror_id, second.run, "succeed", None)
        assert ended == RunResult("finished", to_be_told=False)


async def test_a_mirror_is_enabled_while_it_gets_another_url(mirrored: Mirrored) -> None:
    """Neither waits for the other in a circle: what enables holds the project, what retargets holds the mirror."""
    database, project_id, mirror_id = mirrored.forge.database, mirrored.project["id"], mirrored.mirror["id"]
    async with database.transaction() as transaction:
        before = await queries.lock(transaction, project_id, mirror_id)
        called = asyncio.create_task(mirrored.owner.api.put(mirrored.path, {"enabled": True}))
        await until_somebody_waits(database)
        await queries.retarget(transaction, mirror_id)
        await queries.update(transaction, mirror_id, before)
    answer = await called
    assert (answer.status, answer.body["enabled"]) == (200, True)


async def test_a_run_ends_while_its_project_is_being_removed(mirrored: Mirrored) -> None:
    """It does not wait for the project, whose removal waits for the mirror. The first keys are pinned."""
    forge, services = mirrored.forge, mirrored.forge.server.app[SERVICES]
    lines = [f"127.0.0.1 {' '.join(make_key_pair('host').public.split()[:2])}" for _ in range(2)]
    for line in lines:
        async with forge.database.transaction() as transaction:
            mirror = await queries.begin_run(transaction, mirrored.mirror["id"])
            assert mirror is not None
        async with forge.database.transaction() as removal:
            await removal.run("SELECT FROM projects WHERE id = %(id)s FOR UPDATE", id=mirror.project_id)
            async with asyncio.timeout(3):
                await record_run(services, mirror, Attempt("succeed", learnt_host_keys=(line,)))
        mirror = await queries.find(forge.database, mirror.project_id, mirror.id)
        assert (mirror.update_status, [key.line for key in mirror.pinned_keys]) == ("finished", lines[:1])


async def test_the_fourth_failure_in_a_row_is_told_and_the_next_one_is_not(mirrored: Mirrored) -> None:
    mirror_id = mirrored.mirror["id"]
    async with mirrored.forge.database.transaction() as transaction:
        await put(transaction, mirror_id, "finished")
        ends = []
        for _ in range(8):
            begun = await queries.begin_run(transaction, mirror_id)
            assert begun is not None
            ends.append(await queries.end_run(transaction, mirror_id, begun.run, "retry", "x"))
    again = RunResult("to_retry", to_be_told=False)
    failed_unseen, failed_told = (
        RunResult("failed", to_be_told=False),
        RunResult("failed", to_be_told=True),
    )
    assert ends == [again, again, again, failed_told, again, again, again, failed_unseen]


PRINTABLE = st.text(st.characters(codec="utf-8", exclude_categories=("C",)), min_size=1, max_size=20)


@pytest.mark.parametrize(
    ("url", "parts"),
    [
        ("https://alice:p%40ss@h/p.git", MirrorUrl("https://h/p.git", "alice", "p@ss")),
        ("https://token@h:8443/p.git", MirrorUrl("https://h:8443/p.git", "token", None)),
        ("https://alice@example.org:pw@h/p", MirrorUrl("https://h/p", "alice@example.org", "pw")),
        ("ssh://git@h:2222/p.git", MirrorUrl("ssh://h:2222/p.git", "git", None)),
        ("https://:pw@h/p.git", MirrorUrl("https://h/p.git", None, "pw")),
        ("git://[2001:db8::1]/p.git", MirrorUrl("git://[2001:db8::1]/p.git", None, None)),
        ("http://h/p.git", MirrorUrl("http://h/p.git", None, None)),
    ],
)
def test_credentials_are_taken_out_and_decoded(url: str, parts: MirrorUrl) -> None:
    assert split_mirror_url(url) == parts


@given(st.none() | PRINTABLE, st.none() | PRINTABLE)
def test_with_user_gives_back_the_user_but_never_the_password(user: str | None, password: str | None) -> None:
    shown = MirrorUrl("https://h/p.git", user, password).with_user
    again = split_mirror_url(shown)
    assert (again.url, again.user) == ("https://h/p.git", user)
    assert (again.password is None) is (password is None)
    assert again.password in (None, "*")


def test_masked_forms_of_stored_mirrors() -> None:
    def masked(url: str) -> str | None:
        return mask_url(split_mirror_url(url).with_user)

    assert masked("https://user:pw@h/p.git") == "https://*****:*****@h/p.git"
    assert masked("https://user@h/p.git") == "https://*****@h/p.git"
    assert masked("ssh://git@h/p.git") == "ssh://git@h/p.git"
    assert masked("http://h/p.git") == "http://h/p.git"


def test_a_url_that_cannot_be_parsed_is_refused() -> None:
    with pytest.raises(ValueError, match=r"IPv6|address"):
        split_mirror_url("http://[0:0:0:0:ffff:123.123.123.123]/foo.git")


def test_a_mirror_url_does_not_show_its_password() -> None:
    assert "s3cret" not in repr(split_mirror_url("https://alice:s3cret@h/p.git"))


@pytest.mark.parametrize(
    "other",
    ["https://a:b@example.org/p.git", "HTTPS://EXAMPLE.org:443/p.git", "https://example.org./p.git/"],
)
def test_spellings_of_one_url_have_one_key(other: str) -> None:
    assert uniqueness_key(other) == uniqueness_key("https://example.org/p.git")


@pytest.mark.parametrize(
    "other",
    [
        "https://example.org/p",
        "https://example.org/P.git",
        "http://example.org/p.git",
        "https://example.org:8443/p.git",
    ],
)
def test_different_urls_have_different_keys(other: str) -> None:
    assert uniqueness_key(other) != uniqueness_key("https://example.org/p.git")


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://forge.example.org/g/p", "https://forge.example.org/g/p.git"),
        ("https://a:b@forge.example.org/g/p.git/", "https://forge.example.org/g/p.git"),
        ("http://Forge.example.org//g/P.git", "https://forge.example.org/g/p.git"),
        ("http://forge.example.org:8080/g/%70", "http://forge.example.org:8080/g/p.git"),
        ("ssh://git@forge.example.org/g/p.git", "git@forge.example.org:g/p.git"),
        ("ssh://bob@forge.example.org:2222/g/p", "ssh://git@forge.example.org:2222/g/p.git"),
        ("git@forge.example.org:g/p", "ssh://git@forge.example.org/g/p.git"),
    ],
)
def test_the_project_itself_is_recognised(url: str, own: str) -> None:
    assert is_same_repository(url, own)


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://forge.example.org/g/p2.git", "https://forge.example.org/g/p.git"),
        ("http://127.0.0.1:8081/g/p.git", "http://127.0.0.1:8080/g/p.git"),
        ("ssh://git@forge.example.org:2222/g/p.git", "git@forge.example.org:g/p.git"),
        ("https://example.com/g/p.git", "https://forge.example.org/g/p.git"),
    ],
)
def test_other_repositories_are_not_the_project(url: str, own: str) -> None:
    assert not is_same_repository(url, own)


_CHARACTERS = st.characters(codec="utf-8", exclude_categories=("C",), exclude_characters="*")
SECRETS, LONG_SECRETS = st.text(_CHARACTERS, min_size=4), st.text(_CHARACTERS, min_size=8)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://user:pw@h/p.git", "https://*****:*****@h/p.git"),
        ("https://user@h/p.git", "https://*****@h/p.git"),
        ("ssh://git@h/p.git", "ssh://git@h/p.git"),
        ("ssh://git:pw@h/p.git", "ssh://*****:*****@h/p.git"),
        ("ssh://bob@h:22/p.git", "ssh://*****@h:22/p.git"),
        ("http://h/p.git", "http://h/p.git"),
        ("https://a@b:c@d@h/p", "https://*****:*****@h/p"),
        ("http://[0:0:0:0:ffff:123.123.123.123]/foo.git", None),
    ],
)
def test_urls_are_shown_masked(url: str, shown: str | None) -> None:
    assert mask_url(url) == shown


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ("at 'https://user:pw@h/p.git': no", "at 'https://*****:*****@h/p.git': no"),
        ("http://a@h/ and ssh://b:c@i/", "http://*****@h/ and ssh://*****:*****@i/"),
        ("git://h/p and git@h:p and ssh://git@h/p", "git://h/p and git@h:p and ssh://git@h/p"),
        ("https://h/path@2 stays", "https://h/path@2 stays"),
        ("ssh://", ""),
    ],
)
def test_urls_within_texts_are_masked(text: str, clean: str) -> None:
    assert sanitize(text) == clean


@given(LONG_SECRETS, SECRETS, st.text(max_size=10))
def test_no_known_form_of_a_secret_is_left_in_a_text(user: str, password: str, between: str) -> None:
    forms = [
        password,
        quote(password),
        quote(password, safe=""),
        quote_plus(password),
        base64.b64encode(password.encode()).decode(),
        base64.b64encode(f"{user}:{password}".encode()).decode(),
        base64.urlsafe_b64encode(f"{user}:{password}".encode()).decode().rstrip("="),
        user,
    ]
    clean = sanitize(between.join(forms), user=user, password=password)
    assert [form for form in forms if form in clean] == []


def test_a_short_user_name_is_masked_only_as_a_word() -> None:
    text = "fatal: cannot read 'ann' of ann@h: ann_2"
    assert sanitize(text, user="ann", password="hunter22") == "fatal: cannot read '*****' of *****@h: ann_2"


def test_the_service_user_git_is_no_secret() -> None:
    assert sanitize("git push: no", user="git", password="hunter22") == "git push: no"
