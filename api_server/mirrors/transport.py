"""One mirror run without the database: check the target, compare the refs, push, say what happened."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from aiohttp.abc import AbstractResolver

from api_server.expressions import Allowance, TooCostly, allowed
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
    Result,
    connect,
    descents_that_hold,
    read_source,
)
from api_server.mirrors.plan import (
    REPORTED_REFS,
    Plan,
    Selection,
    compare,
    divergence_report,
    stages,
)
from api_server.mirrors.urls import netloc
from api_server.outbound.destinations import MIRROR_SCHEMES, BlockedError
from api_server.outbound.policy import Policy, check_url

#: Refs of a push after one of which the target took nothing; GitLab never pushes more at a time.
SMALL_PUSH = 10
#: Small pushes that may be refused as a whole before the rest is given up.
MOST_REFUSALS = 3
#: Of the processor's time, to find out which branches take part.
CHOOSING_SECONDS = 5.0

Ids = Collection[str]
#: Brings LFS objects to the target: `(target, ids that its refs will get, ids that they have)`; why that failed.
BringObjects = Callable[[Remote, Ids, Ids], Awaitable[str | None]]


class RefsRefusedError(RemoteError):
    """The target did not take some refs; the others are there."""


@attrs.frozen
class Target:
    """Where a mirror pushes to; `url` has no credentials. With a `private_key` (ssh) no password is used."""

    url: str
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    host_keys: tuple[str, ...] = ()


@attrs.define
class Outcome:
    """What a run did. `failure` is why it ended early; its text is for the user and free of credentials.

    `lfs_problem` is why LFS objects have not been brought, which alone is no failure: targets may do without.
    `learnt_host_keys` are to be stored as the target's host keys whatever else happened.
    """

    changed: list[str] = attrs.field(factory=list)
    divergent: tuple[str, ...] = ()
    lfs_problem: str | None = None
    learnt_host_keys: tuple[str, ...] = ()
    failure: BlockedError | RemoteError | None = None

    @property
    def last_error(self) -> str | None:
        """The text of the API's field of this name."""
        if self.failure is None and not self.divergent:
            return None
        lfs = f"Error synchronizing LFS files:\n\n{self.lfs_problem}\n\n" if self.lfs_problem else ""
        text = lfs + (divergence_report(self.divergent) if self.failure is None else str(self.failure))
        return text.encode(errors="surrogateescape").decode(errors="replace")  # names of refs are bytes


async def check_target(target: Target, policy: Policy, resolver: AbstractResolver) -> Remote:
    """The target as git gets it: at addresses that were checked just now. Raises BlockedError."""
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
    """Make `target` look like `repository` as far as `selection` says, within `time_limit` seconds.

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
        plan, default_branch, theirs = await _plan(connection, repository, selection)
        outcome.divergent = plan.divergent
        if before_push is not None:
            pushed = {change.new for change in (*plan.creates, *plan.updates) if change.new}
            outcome.lfs_problem = await before_push(pushed, theirs)
        refused: list[Result] = []
        messages: list[str] = []
        for changes in stages(plan, default_branch):
            if refused and changes == plan.deletions:
                continue  # the target has not got the default branch, which contains what would go
            async for report in _pushed(push, changes):
                outcome.changed += [result.name for result in report.results if result.status == "done"]
                if failed := [result for result in report.results if result.status != "done"]:
                    refused += failed
                    messages.append(report.messages)
    if refused:
        raise RefsRefusedError(_refusal(refused, messages))


async def _pushed(push: Push, changes: Sequence[Change]) -> AsyncIterator[PushReport]:
    """Push `changes` at once; where the target takes nothing of them, in tens, until a third ten is refused.

    So a hook, a proxy or a limit that refuses a whole push because of one ref holds up that ref's ten only.
    """
    if report := await _taken_at_once(push, changes):
        yield report
        return
    refusals = 0
    for start in range(0, len(changes), SMALL_PUSH):
        report = await push(changes[start : start + SMALL_PUSH])
        yield report
        refusals += report.takes_nothing
        if refusals == MOST_REFUSALS:
            rest = changes[start + SMALL_PUSH :]
            yield PushReport(tuple(Result(change.name, "rejected", "not tried") for change in rest), "")
            return


async def _taken_at_once(push: Push, changes: Sequence[Change]) -> PushReport | None:
    """None where nothing was taken, and pushing less at a time might help."""
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
    said = "\n\n".join(text for text in messages if text)
    return "Some refs have not been updated on the remote:\n\n" + "\n".join(lines) + (said and f"\n\n{said}")


def _reason(result: Result) -> str:
    if result.status == "stale":
        return "has been changed on the remote during this run; the next run looks at it again"
    return result.reason
