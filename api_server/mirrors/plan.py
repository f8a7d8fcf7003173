"""What a mirror run has to do, decided from the refs of both sides; pure."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

import attrs
import re2

from api_server.expressions import compile_expression
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.git.remote.connection import Change, Refs

#: A text names no more refs than these.
REPORTED_REFS = 100
#: Characters of protected names that are compared together.
_COMPARED_TOGETHER = 300

#: Says whether a branch, by its short name, takes part in the mirroring.
BranchSelector = Callable[[str], bool]
#: `(old, new)`: whether our repository has the commit `old`, and it is `new` or reachable from `new`.
Descent = tuple[str, str]


@attrs.frozen
class Selection:
    """What a mirror pushes."""

    selects: BranchSelector
    keep_divergent_refs: bool = False


@attrs.frozen
class Plan:
    """Disjoint sets of refs, each sorted by name; `divergent` are left alone and reported."""

    creates: tuple[Change, ...]
    updates: tuple[Change, ...]
    deletions: tuple[Change, ...]
    divergent: tuple[str, ...]


@attrs.frozen
class Comparison:
    """The refs that take part and are not the same on both sides, in three cases. Names are in order.

    Branches outside the selection and what is a symbolic ref on either side do not take part; tags always do.
    """

    local: Refs
    remote: Refs
    only_local: list[str]
    differing: list[str]
    only_remote: list[str]
    keep_divergent_refs: bool
    default_commit: str | None

    def open_questions(self) -> set[Descent]:
        """What `plan` has to know about the descent of commits; `descents_that_hold` answers."""
        if self.keep_divergent_refs:
            return {self._step(name) for name in self.differing}
        return {descent for name in self.only_remote if (descent := self._merge(name))}

    def plan(self, descents: Collection[Descent]) -> Plan:
        """The plan, given those of the open questions that hold.

        Missing on the target: create. Different: update, but with `keep_divergent_refs` only forward. Only on
        the target: delete if its commit is contained in the source's default branch, and never with
        `keep_divergent_refs`.
        """
        keep = self.keep_divergent_refs
        divergent = [name for name in self.differing if keep and self._step(name) not in descents]
        kept = set(divergent)
        merged = [name for name in self.only_remote if not keep and self._merge(name) in descents]
        return Plan(
            creates=self._changes(self.only_local),
            updates=self._changes(name for name in self.differing if name not in kept),
            deletions=self._changes(merged),
            divergent=tuple(divergent),
        )

    def _changes(self, names: Iterable[str]) -> tuple[Change, ...]:
        return tuple(Change(name, self.remote.ids.get(name), self.local.ids.get(name)) for name in names)

    def _step(self, name: str) -> Descent:
        """What has to hold for a ref to move forward only."""
        return self.remote.commit(name), self.local.commit(name)

    def _merge(self, name: str) -> Descent | None:
        """What has to hold for a ref of the target to be deleted."""
        return (self.remote.commit(name), self.default_commit) if self.default_commit else None


def compare(local: Refs, remote: Refs, selection: Selection, default_branch: str | None) -> Comparison:
    """Compare the source with the target, as far as `selection` says. `default_branch` is the source's, as a full ref
    name, if it has one."""
    symbolic = local.symbolic | remote.symbolic
    ours = [name for name, sha in local.ids.items() if remote.ids.get(name) != sha]
    theirs = [name for name in remote.ids if name not in local.ids]
    ours, theirs = (
        sorted(name for name in names if name not in symbolic and _takes_part(name, selection.selects))
        for names in (ours, theirs)
    )
    return Comparison(
        local,
        remote,
        only_local=[name for name in ours if name not in remote.ids],
        differing=[name for name in ours if name in remote.ids],
        only_remote=theirs,
        keep_divergent_refs=selection.keep_divergent_refs,
        default_commit=local.ids.get(default_branch or ""),
    )


def stages(plan: Plan, default_branch: str | None) -> list[tuple[Change, ...]]:
    """What is pushed one after the other, the default branch in the first stage unless it is up to date.

    Deletions go after the default branch, which contains what they take away, and before everything else, so
    that a merged `x` has made room for a new `x/y`.
    """
    changes = (*plan.creates, *plan.updates)
    first = tuple(change for change in changes if change.name == default_branch)
    rest = tuple(change for change in changes if change.name != default_branch)
    groups = (first, plan.deletions, rest) if plan.deletions else (first + rest,)
    return [group for group in groups if group]


def divergence_report(divergent: Sequence[str]) -> str:
    """`last_error` of a run that left refs alone because they have diverged; names the first hundred."""
    names = "\n".join(divergent[:REPORTED_REFS])
    return f"Some refs have diverged and have not been updated on the remote:\n\n{names}"


def all_branches(_name: str) -> bool:
    """The selector of a mirror without a filter."""
    return True


def protected_branches(patterns: Iterable[str]) -> BranchSelector:
    """Branches that match one of the protected names, where `*` stands for any text.

    Without a pattern no branch is selected (GitLab would push all).
    """
    rules = set(patterns)
    wildcards = [_wildcards(group) for group in _groups(sorted(rule for rule in rules if "*" in rule))]
    return lambda name: name in rules or any(selects(name) for selects in wildcards)


def _groups(patterns: Iterable[str]) -> Iterator[list[str]]:
    """The patterns, as many together as one expression may hold."""
    group: list[str] = []
    for pattern in patterns:
        if group and sum(map(len, group)) + len(pattern) > _COMPARED_TOGETHER:
            yield group
            group = []
        group.append(pattern)
    if group:
        yield group


def _wildcards(patterns: Iterable[str]) -> BranchSelector:
    return branches_matching("|".join(".*".join(map(re2.escape, pattern.split("*"))) for pattern in patterns))


def branches_matching(expression: str) -> BranchSelector:
    """Branches whose whole name matches an RE2 expression; raises ValueError when it is not one."""
    try:
        compiled = compile_expression(expression)
    except ValueError as problem:
        raise ValueError(f"is not a valid RE2 expression: {problem}") from problem
    # Git's names are bytes: one that is not UTF-8 is compared as it is, and simply does not match `.`.
    return lambda name: compiled.fullmatch(name.encode(errors="surrogateescape")) is not None


def _takes_part(name: str, selects: BranchSelector) -> bool:
    if name.startswith(BRANCHES):
        return selects(name.removeprefix(BRANCHES))
    return name.startswith(TAGS)
