"""One mirror run without the database: check the target, compare the refs, push, say what happened."""

import asyncio
from pathlib import Path
from urllib.parse import urlsplit

import attrs
from aiohttp.abc import AbstractResolver

from api_server.areas.mirrors.plan import (
    BranchSelector,
    Options,
    Plan,
    batches,
    compare,
    divergence_report,
)
from api_server.git.mirror_source import descents_that_hold, read_source
from api_server.git.remote_access import Remote
from api_server.git.remote_errors import RemoteError
from api_server.git.remotes import Connection, Result, connect
from api_server.platform.outbound.checks import check_url
from api_server.platform.outbound.destinations import DEFAULT_PORTS, MIRROR_SCHEMES, BlockedError
from api_server.platform.outbound.policy import Policy


class RefsRefusedError(RemoteError):
    """The target did not take some refs; those of earlier pushes, and the others of this one, are there."""


@attrs.frozen
class Target:
    """Where a mirror pushes to; `url` has no credentials. With a `private_key` (ssh) no password is used."""

    url: str
    user: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    private_key: str | None = attrs.field(default=None, repr=False)
    host_keys: tuple[str, ...] = ()


@attrs.frozen
class Selection:
    """What a mirror pushes."""

    selects: BranchSelector
    keep_divergent_refs: bool = False


@attrs.define
class Outcome:
    """What a run did. `failure` is why it ended early; its text is for the user and free of credentials.

    `learnt_host_keys` are to be stored as the target's host keys whatever else happened.
    """

    changed: list[str] = attrs.field(factory=list)
    divergent: tuple[str, ...] = ()
    learnt_host_keys: tuple[str, ...] = ()
    failure: BlockedError | RemoteError | None = None

    @property
    def last_error(self) -> str | None:
        """The text of the API's field of this name."""
        if self.failure is None and not self.divergent:
            return None
        text = divergence_report(self.divergent) if self.failure is None else str(self.failure)
        return text.encode(errors="surrogateescape").decode(errors="replace")  # names of refs are bytes


async def check_target(target: Target, policy: Policy, resolver: AbstractResolver) -> Remote:
    """The target as git gets it: at addresses that were checked just now. Raises BlockedError."""
    checked = await check_url(target.url, policy, resolver, schemes=MIRROR_SCHEMES)
    destination = checked.destination
    host = destination.host.removesuffix(".")
    bracketed = f"[{host}]" if ":" in host else host
    port = "" if destination.port == DEFAULT_PORTS[destination.scheme] else f":{destination.port}"
    url = urlsplit(target.url)._replace(scheme=destination.scheme, netloc=f"{bracketed}{port}").geturl()
    return Remote(
        url=url,
        user=target.user,
        password=target.password,
        private_key=target.private_key,
        host_keys=target.host_keys,
        addresses=tuple(str(address) for address in checked.addresses),
    )


async def run_mirror(
    repository: Path,
    target: Target,
    selection: Selection,
    *,
    policy: Policy,
    resolver: AbstractResolver,
    time_limit: float,
    folder: Path | None = None,
) -> Outcome:
    """Make `target` look like `repository` as far as `selection` says, within `time_limit` seconds.

    `folder` is where secrets lie meanwhile. Ends at the first push that the target does not take as a whole.
    """
    outcome = Outcome()
    try:
        remote = await check_target(target, policy, resolver)
        async with connect(remote, time_limit=time_limit, folder=folder) as connection:
            try:
                await _mirror(connection, repository, selection, outcome)
            finally:
                outcome.learnt_host_keys = connection.learnt_host_keys()
    except BlockedError as problem:
        outcome.failure = BlockedError(f"The remote mirror URL is invalid: {problem}")
    except RemoteError as problem:
        outcome.failure = problem
    return outcome


async def _mirror(connection: Connection, repository: Path, selection: Selection, outcome: Outcome) -> None:
    plan, default_branch = await _plan(connection, repository, selection)
    outcome.divergent = plan.divergent
    for batch in batches(plan, default_branch):
        report = await connection.push(repository, batch)
        outcome.changed += [result.name for result in report.results if result.status == "done"]
        if refused := [result for result in report.results if result.status != "done"]:
            raise RefsRefusedError(_refusal(refused, report.messages))


async def _plan(connection: Connection, repository: Path, selection: Selection) -> tuple[Plan, str | None]:
    listing = asyncio.create_task(connection.list_refs())
    try:
        source = await read_source(repository)
        remote_refs = await listing
    finally:
        listing.cancel()
    options = Options(selection.selects, selection.keep_divergent_refs, source.default_branch)
    comparison = compare(source.refs, remote_refs, options)
    descents = await descents_that_hold(repository, comparison.open_questions())
    return comparison.plan(descents), source.default_branch


def _refusal(refused: list[Result], messages: str) -> str:
    lines = "\n".join(f"{result.name}: {_reason(result)}" for result in refused)
    said = f"\n\n{messages}" if messages else ""
    return f"Some refs have not been updated on the remote:\n\n{lines}{said}"


def _reason(result: Result) -> str:
    if result.status == "stale":
        return "has been changed on the remote during this run; the next run looks at it again"
    return result.reason
