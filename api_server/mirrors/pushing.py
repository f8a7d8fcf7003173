"""One mirror run without the database: check the target, compare the refs, push, and return the outcome."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from aiohttp.abc import AbstractResolver

from api_server.expressions import Allowance, TooCostly, allowed
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.git.remote.access import (
    AuthenticationFailedError,
    HostKeyRefusedError,
    Remote,
    RemoteError,
    RemoteTimeoutError,
)
from api_server.git.remote.connection import (
    Change,
    Connection,
    Push,
    PushReport,
    Refs,
    Result,
    connect,
    descents_that_hold,
    read_source,
)
from api_server.mirrors.configuration import BranchSelector, netloc
from api_server.outbound.destinations import MIRROR_SCHEMES, BlockedError
from api_server.outbound.policy import Policy, check_url

#: Maximum number of refs in a text for the user.
REPORTED_REFS = 100

#: `(old, new)` holds if our repository has the commit `old`, and it is `new` or reachable from `new`.
Descent = tuple[str, str]


@attrs.frozen
class Selection:
    """The mirror's selection of branches, and whether it leaves diverged refs unchanged."""

    selects: BranchSelector
    keep_divergent_refs: bool = False


@attrs.frozen
class Plan:
    """Disjoint sets of refs, each sorted by name; the `divergent` ones are not changed but reported."""

    creates: tuple[Change, ...]
    updates: tuple[Change, ...]
    deletions: tuple[Change, ...]
    divergent: tuple[str, ...]


@attrs.frozen
class Comparison:
    """The mirrored refs that differ between source and target: three sorted lists of names.

    Branches outside the selection and symbolic refs on either side are not mirrored; tags always are.
    """

    local: Refs
    remote: Refs
    only_local: list[str]
    differing: list[str]
    only_remote: list[str]
    keep_divergent_refs: bool
    default_commit: str | None

    def open_questions(self) -> set[Descent]:
        """Return the descents on which `plan` depends, to be checked by `descents_that_hold`."""
        if self.keep_divergent_refs:
            return {self._step(name) for name in self.differing}
        return {descent for name in self.only_remote if (descent := self._merge(name))}

    def plan(self, descents: Collection[Descent]) -> Plan:
        """Return the plan, given the open questions whose `descents` hold.

        A ref that is missing on the target is created. A different one is updated, with `keep_divergent_refs` only
        if that is a fast-forward. A ref that only the target has is deleted if its commit is contained in the
        source's default branch, and never with `keep_divergent_refs`.
        """
        keep = self.keep_divergent_refs
        divergent = [name for name in self.differing if keep and self._step(name) not in descents]
        skipped = set(divergent)
        merged = [name for name in self.only_remote if not keep and self._merge(name) in descents]
        return Plan(
            creates=self._changes(self.only_local),
            updates=self._changes(name for name in self.differing if name not in skipped),
            deletions=self._changes(merged),
            divergent=tuple(divergent),
        )

    def _changes(self, names: Iterable[str]) -> tuple[Change, ...]:
        return tuple(Change(name, self.remote.ids.get(name), self.local.ids.get(name)) for name in names)

    def _step(self, name: str) -> Descent:
        """Return the descent that must hold for a fast-forward of the ref."""
        return self.remote.commit(name), self.local.commit(name)

    def _merge(self, name: str) -> Descent | None:
        """Return the descent that must hold before the target's ref is deleted."""
        return (self.remote.commit(name), self.default_commit) if self.default_commit else None


def compare(local: Refs, remote: Refs, selection: Selection, default_branch: str | None) -> Comparison:
    """Compare the selected refs of source and target. `default_branch` is the full ref name of the source's default
    branch, if it has one."""
    symbolic = local.symbolic | remote.symbolic
    local_names = [name for name, sha in local.ids.items() if remote.ids.get(name) != sha]
    remote_names = [name for name in remote.ids if name not in local.ids]
    local_names, remote_names = (
        sorted(name for name in names if name not in symbolic and _takes_part(name, selection.selects))
        for names in (local_names, remote_names)
    )
    return Comparison(
        local,
        remote,
        only_local=[name for name in local_names if name not in remote.ids],
        differing=[name for name in local_names if name in remote.ids],
        only_remote=remote_names,
        keep_divergent_refs=selection.keep_divergent_refs,
        default_commit=local.ids.get(default_branch or ""),
    )


def stages(plan: Plan, default_branch: str | None) -> list[tuple[Change, ...]]:
    """Return the changes to be pushed, one stage after the other. The first contains the default branch if it changes.

    Deletions come after the default branch, which contains the deleted commits, and before everything else, so
    that a merged `x` is deleted before a new `x/y` is created.
    """
    changes = (*plan.creates, *plan.updates)
    first = tuple(change for change in changes if change.name == default_branch)
    rest = tuple(change for change in changes if change.name != default_branch)
    groups = (first, plan.deletions, rest) if plan.deletions else (first + rest,)
    return [group for group in groups if group]


def divergence_report(divergent: Sequence[str]) -> str:
    """Return the `last_error` of a run that did not update diverged refs. It names the first hundred."""
    names = "\n".join(divergent[:REPORTED_REFS])
    return f"Some refs have diverged and have not been updated on the remote:\n\n{names}"


def _takes_part(name: str, selects: BranchSelector) -> bool:
    if name.startswith(BRANCHES):
        return selects(name.removeprefix(BRANCHES))
    return name.startswith(TAGS)


#: Number of refs per push after a push from which the target took nothing; GitLab never pushes more at once.
SMALL_PUSH = 10
#: Number of completely refused small pushes after which the rest is given up.
MAX_REFUSALS = 3
#: Maximum processor time for the selection of branches, in seconds.
CHOOSING_SECONDS = 5.0

Ids = Collection[str]
#: Uploads LFS objects: `(target, ids that its refs will get, ids that they have)`; returns a problem or None.
BringObjects = Callable[[Remote, Ids, Ids], Awaitable[str | None]]


class RefsRefusedError(RemoteError):
    """The target refused some refs; the others have been pushed."""


@attrs.frozen
class Target:
    """A mirror's target. `url` has no credentials; with a `private_key` (SSH) no password is used."""

    url: str
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    host_keys: tuple[str, ...] = ()


@attrs.define
class Outcome:
    """The outcome of a run. `failure` is the error that ended it; its text is for the user and without credentials.

    `lfs_problem` is the reason why LFS objects could not be uploaded; alone it is not a failure, because a target may
    not need them. `learnt_host_keys` are to be stored as the target's host keys even after a failure.
    """

    changed: list[str] = attrs.field(factory=list)
    divergent: tuple[str, ...] = ()
    lfs_problem: str | None = None
    learnt_host_keys: tuple[str, ...] = ()
    failure: BlockedError | RemoteError | None = None

    @property
    def last_error(self) -> str | None:
        """The value of the API's field `last_error`."""
        if self.failure is None and not self.divergent:
            return None
        lfs = f"Error synchronizing LFS files:\n\n{self.lfs_problem}\n\n" if self.lfs_problem else ""
        text = lfs + (divergence_report(self.divergent) if self.failure is None else str(self.failure))
        return text.encode(errors="surrogateescape").decode(errors="replace")  # names of refs are bytes


async def check_target(target: Target, policy: Policy, resolver: AbstractResolver) -> Remote:
    """Return the target for git, with the addresses that have just been checked. Raise BlockedError."""
    checked = await check_url(target.url, policy, resolver, schemes=MIRROR_SCHEMES)
    destination = checked.destination
    server = netloc(destination.scheme, destination.host, destination.port)
    return Remote(
        url=urlsplit(target.url)._replace(scheme=destination.scheme, netloc=server).geturl(),
        user=target.user,
        password=target.password,
        private_key=target.private_key,
        host_keys=target.host_keys,
        addresses=tuple(str(address) for address in checked.addresses),
    )


async def update_target(
    repository: Path,
    target: Target,
    selection: Selection,
    *,
    policy: Policy,
    resolver: AbstractResolver,
    time_limit: float,
    bring_objects: BringObjects | None = None,
) -> Outcome:
    """Push the selected refs of `repository` to `target` within `time_limit` seconds and return the outcome.

    `bring_objects` is called before refs are pushed.
    """
    outcome = Outcome()
    try:
        remote = await check_target(target, policy, resolver)
        async with connect(remote, time_limit=time_limit) as connection:
            before_push = partial(bring_objects, remote) if bring_objects else None
            try:
                await _mirror(connection, repository, selection, outcome, before_push)
            finally:
                outcome.learnt_host_keys = connection.learnt_host_keys()
    except BlockedError as problem:
        outcome.failure = BlockedError(f"The remote mirror URL is invalid: {problem}")
    except RemoteError as problem:
        outcome.failure = problem
    return outcome


async def _mirror(
    connection: Connection,
    repository: Path,
    selection: Selection,
    outcome: Outcome,
    before_push: Callable[[Ids, Ids], Awaitable[str | None]] | None,
) -> None:
    async with connection.pushing(repository) as push:
        plan, default_branch, remote_ids = await _plan(connection, repository, selection)
        outcome.divergent = plan.divergent
        if before_push is not None:
            pushed = {change.new for change in (*plan.creates, *plan.updates) if change.new}
            outcome.lfs_problem = await before_push(pushed, remote_ids)
        refused: list[Result] = []
        messages: list[str] = []
        for changes in stages(plan, default_branch):
            if refused and changes == plan.deletions:
                continue  # the target lacks the default branch, which contains the commits of these refs
            async for report in _pushed(push, changes):
                outcome.changed += [result.name for result in report.results if result.status == "done"]
                if failed := [result for result in report.results if result.status != "done"]:
                    refused += failed
                    messages.append(report.messages)
    if refused:
        raise RefsRefusedError(_refusal(refused, messages))


async def _pushed(push: Push, changes: Sequence[Change]) -> AsyncIterator[PushReport]:
    """Push all `changes` at once; if the target takes none, push ten at a time until three of these are refused.

    If a hook, a proxy or a limit refuses a whole push because of one ref, only the ten with that ref fail.
    """
    if report := await _push_at_once(push, changes):
        yield report
        return
    refusals = 0
    for start in range(0, len(changes), SMALL_PUSH):
        report = await push(changes[start : start + SMALL_PUSH])
        yield report
        refusals += report.takes_nothing
        if refusals == MAX_REFUSALS:
            rest = changes[start + SMALL_PUSH :]
            yield PushReport(tuple(Result(change.name, "rejected", "not tried") for change in rest), "")
            return


async def _push_at_once(push: Push, changes: Sequence[Change]) -> PushReport | None:
    """Push all `changes`. Return None if nothing was taken and smaller pushes might succeed."""
    try:
        report = await push(changes)
    except (AuthenticationFailedError, HostKeyRefusedError, RemoteTimeoutError):
        raise
    except RemoteError:
        if len(changes) <= SMALL_PUSH:
            raise
        return None
    return None if report.takes_nothing and len(changes) > SMALL_PUSH else report


async def _plan(
    connection: Connection, repository: Path, selection: Selection
) -> tuple[Plan, str | None, Ids]:
    listing = asyncio.create_task(connection.list_refs())
    try:
        source = await read_source(repository)
        remote_refs = await listing
    finally:
        listing.cancel()
    try:
        with allowed(Allowance(CHOOSING_SECONDS)):
            comparison = await asyncio.to_thread(
                compare, source.refs, remote_refs, selection, source.default_branch
            )
    except TooCostly as problem:
        raise RemoteError(f"The branches to be pushed cannot be chosen: {problem}") from None
    descents = await descents_that_hold(repository, comparison.open_questions())
    return comparison.plan(descents), source.default_branch, set(remote_refs.ids.values())


def _refusal(refused: Sequence[Result], messages: Sequence[str]) -> str:
    lines = [f"{result.name}: {_reason(result)}" for result in refused[:REPORTED_REFS]]
    if (more := len(refused) - REPORTED_REFS) > 0:
        lines.append(f"... and {more} more")
    tail = "\n\n".join(text for text in messages if text)
    return "Some refs have not been updated on the remote:\n\n" + "\n".join(lines) + (tail and f"\n\n{tail}")


def _reason(result: Result) -> str:
    if result.status == "stale":
        return "has been changed on the remote during this run; the next run looks at it again"
    return result.reason
