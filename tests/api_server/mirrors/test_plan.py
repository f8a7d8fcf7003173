"""The plan of a mirror run as a pure function: what must hold for any two lists of refs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from api_server.git.remote.connection import Refs
from api_server.mirrors.configuration import all_branches, branches_matching, protected_branches
from api_server.mirrors.pushing import Plan, Selection, compare, divergence_report, stages
from tests.api_server.mirrors.repositories import MAIN

# Commits are numbers of a little history: a number's ancestors are its divisors. 16 is unknown to the source.
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
    """What the target looks like after the plan; each change finds the ref where the plan says it is."""
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
