"""What a mirror run has to do, decided from the refs of both sides; pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence

import attrs
import re2

BRANCHES = "refs/heads/"
TAGS = "refs/tags/"
BATCH_SIZE = 10
REPORTED_DIVERGENT_REFS = 100

#: Says whether a branch, by its short name, takes part in the mirroring.
BranchSelector = Callable[[str], bool]
#: `is_ancestor(old, new)`: whether the local repository has both commits and `old` is reachable from `new`.
IsAncestor = Callable[[str, str], bool]


@attrs.frozen
class Ref:
    """Where a ref points: `sha` may be an annotated tag; `commit` is what that peels to, else the same."""

    sha: str
    commit: str


#: Full names (`refs/heads/x`, `refs/tags/y`) of what is not a symbolic ref.
Refs = Mapping[str, Ref]


@attrs.frozen
class Change:
    """One ref of the target to move from `old` (None: it must not exist) to `new` (None: it goes away)."""

    name: str
    old: str | None
    new: str | None


@attrs.frozen
class Options:
    """How a mirror was configured. `default_branch` is the source's, as a full ref name, if it has one."""

    selects: BranchSelector
    keep_divergent_refs: bool = False
    default_branch: str | None = None


@attrs.frozen
class Plan:
    """Disjoint sets of refs, each sorted by name; `divergent` are left alone and reported."""

    creates: tuple[Change, ...]
    updates: tuple[Change, ...]
    deletions: tuple[Change, ...]
    divergent: tuple[str, ...]


def make_plan(local: Refs, remote: Refs, options: Options, is_ancestor: IsAncestor) -> Plan:
    """Compare the source with the target.

    Missing on the target: create. Different: update, but with `keep_divergent_refs` only forward. Only on the
    target: delete if its commit is contained in the source's default branch, and never with
    `keep_divergent_refs`. Branches outside the selection are not looked at; tags are always mirrored.
    """
    default = local.get(options.default_branch or "")
    local, remote = _mirrored(local, options.selects), _mirrored(remote, options.selects)
    differing = [name for name in sorted(local.keys() & remote.keys()) if local[name].sha != remote[name].sha]
    divergent = [
        name
        for name in differing
        if options.keep_divergent_refs and not is_ancestor(remote[name].commit, local[name].commit)
    ]
    kept = set(divergent)
    only_remote = [(name, remote[name]) for name in sorted(remote.keys() - local.keys())]
    return Plan(
        creates=tuple(Change(name, None, local[name].sha) for name in sorted(local.keys() - remote.keys())),
        updates=tuple(
            Change(name, remote[name].sha, local[name].sha) for name in differing if name not in kept
        ),
        deletions=tuple(_deletions(only_remote, default, options, is_ancestor)),
        divergent=tuple(divergent),
    )


def batches(plan: Plan, default_branch: str | None) -> list[tuple[Change, ...]]:
    """The pushes of a run in order, at most ten refs each, the default branch in the first one.

    Deletions go after the default branch, which contains what they take away, and before everything else, so
    that a merged `x` has made room for a new `x/y`.
    """
    changes = (*plan.creates, *plan.updates)
    first = [change for change in changes if change.name == default_branch]
    rest = [change for change in changes if change.name != default_branch]
    groups: list[Sequence[Change]] = [first, plan.deletions, rest] if plan.deletions else [first + rest]
    return [
        tuple(group[start : start + BATCH_SIZE])
        for group in groups
        for start in range(0, len(group), BATCH_SIZE)
    ]


def divergence_report(divergent: Sequence[str]) -> str:
    """`last_error` of a run that left refs alone because they have diverged; names the first hundred."""
    names = "\n".join(divergent[:REPORTED_DIVERGENT_REFS])
    return f"Some refs have diverged and have not been updated on the remote:\n\n{names}"


def all_branches(_name: str) -> bool:
    """The selector of a mirror without a filter."""
    return True


def protected_branches(patterns: Iterable[str]) -> BranchSelector:
    """Branches that match one of the protected names, where `*` stands for any text.

    No pattern selects no branch (D6).
    """
    wildcards = [".*".join(re2.escape(part) for part in pattern.split("*")) for pattern in patterns]
    if not wildcards:
        return lambda _name: False
    return branches_matching("|".join(wildcards))


def branches_matching(expression: str) -> BranchSelector:
    """Branches whose whole name matches an RE2 expression; raises ValueError when it is not one."""
    options = re2.Options()
    options.log_errors = False
    try:
        compiled = re2.compile(expression, options)
    except re2.error as problem:
        raise ValueError(f"is not a valid RE2 expression: {problem.args[0].decode()}") from problem
    # Git's names are bytes: one that is not UTF-8 is compared as it is, and simply does not match `.`.
    return lambda name: compiled.fullmatch(name.encode(errors="surrogateescape")) is not None


def _mirrored(refs: Refs, selects: BranchSelector) -> dict[str, Ref]:
    return {
        name: ref
        for name, ref in refs.items()
        if name.startswith(TAGS) or (name.startswith(BRANCHES) and selects(name.removeprefix(BRANCHES)))
    }


def _deletions(
    only_remote: Iterable[tuple[str, Ref]], default: Ref | None, options: Options, is_ancestor: IsAncestor
) -> Iterable[Change]:
    if default is None or options.keep_divergent_refs:
        return ()
    return (
        Change(name, ref.sha, None) for name, ref in only_remote if is_ancestor(ref.commit, default.commit)
    )
