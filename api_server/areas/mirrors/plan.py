"""What a mirror run has to do, decided from the refs of both sides; pure."""

from collections.abc import Callable, Collection, Iterable, Sequence

import attrs
import re2

from api_server.git.remotes import Change, Refs

BRANCHES = "refs/heads/"
TAGS = "refs/tags/"
BATCH_SIZE = 10
REPORTED_DIVERGENT_REFS = 100

#: Says whether a branch, by its short name, takes part in the mirroring.
BranchSelector = Callable[[str], bool]
#: `(old, new)`: whether our repository has the commit `old`, and it is `new` or reachable from `new`.
Descent = tuple[str, str]


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


def open_questions(local: Refs, remote: Refs, options: Options) -> set[Descent]:
    """What `make_plan` has to know about the descent of commits; `descents_that_hold` answers."""
    sides = _Sides.of(local, remote, options)
    if options.keep_divergent_refs:
        return {sides.step(name) for name in sides.differing}
    if sides.default is None:
        return set()
    return {(sides.remote[name].commit, sides.default) for name in sides.only_remote}


def make_plan(local: Refs, remote: Refs, options: Options, descents: Collection[Descent]) -> Plan:
    """Compare the source with the target, given those of the `open_questions` that hold.

    Missing on the target: create. Different: update, but with `keep_divergent_refs` only forward. Only on the
    target: delete if its commit is contained in the source's default branch, and never with
    `keep_divergent_refs`. Branches outside the selection are not looked at; tags are always mirrored.
    """
    sides = _Sides.of(local, remote, options)
    keep = options.keep_divergent_refs
    divergent = [name for name in sides.differing if keep and sides.step(name) not in descents]
    kept = set(divergent)
    merged = [
        name
        for name in sides.only_remote
        if not keep and sides.default and (sides.remote[name].commit, sides.default) in descents
    ]
    return Plan(
        creates=tuple(Change(name, None, sides.local[name].sha) for name in sides.only_local),
        updates=tuple(
            Change(name, sides.remote[name].sha, sides.local[name].sha)
            for name in sides.differing
            if name not in kept
        ),
        deletions=tuple(Change(name, sides.remote[name].sha, None) for name in merged),
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


@attrs.frozen
class _Sides:
    """The refs that take part, in the three cases; `default` is the commit of the source's default branch."""

    local: Refs
    remote: Refs
    default: str | None
    only_local: list[str]
    differing: list[str]
    only_remote: list[str]

    @classmethod
    def of(cls, local: Refs, remote: Refs, options: Options) -> "_Sides":
        default = local.get(options.default_branch or "")
        symbolic = {name for side in (local, remote) for name, ref in side.items() if ref.symbolic}
        local, remote = (
            {
                name: ref
                for name, ref in side.items()
                if name not in symbolic and _takes_part(name, options.selects)
            }
            for side in (local, remote)
        )
        return cls(
            local,
            remote,
            default.commit if default else None,
            sorted(local.keys() - remote.keys()),
            sorted(name for name in local.keys() & remote.keys() if local[name].sha != remote[name].sha),
            sorted(remote.keys() - local.keys()),
        )

    def step(self, name: str) -> Descent:
        """What has to hold for the ref to move forward only."""
        return self.remote[name].commit, self.local[name].commit


def _takes_part(name: str, selects: BranchSelector) -> bool:
    if name.startswith(BRANCHES):
        return selects(name.removeprefix(BRANCHES))
    return name.startswith(TAGS)
