"""Invariants that are checked when all faults are over and no load runs any more."""

import asyncio
import contextlib
import operator
from pathlib import Path

from scripts.faults import repository_load
from scripts.faults.environment import OWNER, Environment
from scripts.faults.repository_load import mirror_of
from scripts.harness.contents import commit_values
from scripts.harness.processes import descendants, retry_until, run_forgelet
from tests.support.git_client import Git

#: Seconds to wait for clean-up: the service looks for abandoned locks every minute.
SETTLE_SECONDS = 75.0
REPLICA_READS = "forgelet_database_replica_reads_total"


async def check_all(environment: Environment) -> None:
    """Check all invariants; record each violation as a finding of the ledger."""
    await _branches_can_be_written(environment)
    await _audit_is_sound(environment)
    await check_repositories(environment)
    await _replica_is_in_step(environment)
    await _nothing_is_left(environment)


async def _branches_can_be_written(environment: Environment) -> None:
    """Push to all branches at once, and commit through the API to those that faults affected."""
    for project in (repository_load.WRITES_PROJECT, repository_load.MERGE_PROJECT):
        clone = await mirror_of(
            environment.folder / "scratch" / f"all-of-{project}", environment.git_url(project)
        )
        lines = (await clone("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads")).splitlines()
        pushed = []
        for number, (ref, commit) in enumerate(line.split() for line in lines):
            new = await clone("commit-tree", f"{commit}^{{tree}}", "-p", commit, "-m", f"last {number}")
            pushed.append(f"{new}:{ref}")
        for part in range(0, len(pushed), 400):
            result = await clone.run("push", environment.git_url(project), *pushed[part : part + 400])
            if result.code:
                refused = [line for line in result.output.splitlines() if "!" in line or "error" in line]
                environment.ledger.find(f"{project}: branches cannot be pushed to: {' | '.join(refused[:5])}")
        names = [line.split()[0].removeprefix("refs/heads/") for line in lines]
        often = [name for name in names if not name.startswith(("b-", "source-"))]
        for name in {*often, *names[-20:]}:
            await _commit(environment, project, name)


async def _commit(environment: Environment, project: str, branch: str) -> None:
    commit = commit_values(branch, {f"last/{branch}.txt": branch}, message="last")
    path = f"/projects/{OWNER}%2F{project}/repository/commits"
    answer = await environment.owner.ask("last", "POST", path, json=commit)
    if answer is None:
        environment.ledger.find(f"{project}: no commit to {branch} when all is over")


async def _audit_is_sound(environment: Environment) -> None:
    try:
        await asyncio.to_thread(run_forgelet, ["audit", "verify"], environment.api.environment)
    except RuntimeError as problem:
        environment.ledger.find(str(problem))


async def _replica_is_in_step(environment: Environment) -> None:
    """Check that the replica, if there is one, catches up with the primary, and that the API servers read from it."""
    replication = environment.databases.replication
    if replication.standby is None:
        return
    if not await replication.caught_up():
        environment.ledger.find("the replica does not catch up with the primary when all is over")
    for api in environment.apis:
        if not await _answers_by_replica(environment, api.url):
            environment.ledger.find(f"{api.name}: the replica has answered nothing since it started")


async def _answers_by_replica(environment: Environment, url: str) -> bool:
    """Return whether this API server answers reads from the replica."""
    http, headers = environment.owner.http, {"PRIVATE-TOKEN": environment.owner.token}
    async with http.get(f"{url}/api/v4{repository_load.APP}/variables", headers=headers) as response:
        await response.read()
    async with http.get(f"{url}/-/metrics") as metrics:
        lines = (await metrics.text()).splitlines()
    return any(line.startswith(REPLICA_READS) and float(line.split()[-1]) > 0 for line in lines)


async def check_repositories(environment: Environment) -> None:
    for head in sorted(environment.data.part("api").rglob("HEAD")):
        if not (head.parent / "objects").is_dir():
            continue
        result = await Git(head.parent).run("fsck", "--full", "--strict", "--no-dangling", "--no-progress")
        if result.code:
            environment.ledger.find(f"git fsck of {head.parent.name}: {result.output[-300:]}")


async def _nothing_is_left(environment: Environment) -> None:
    """Check that no lock without git, no unknown process, and no descriptor of a deleted file is left."""

    async def look() -> list[str]:
        return [*_locks(environment), *_strays(environment), *_held_files(environment)]

    for leftover in await retry_until(look, SETTLE_SECONDS, is_done=operator.not_):
        environment.ledger.find(f"left behind: {leftover}")


def _locks(environment: Environment) -> list[str]:
    folder = environment.data.part("api")
    return sorted(
        f"lock {lock.relative_to(folder)}" for lock in folder.rglob("*.lock") if "objects" not in lock.parts
    )


def _held_files(environment: Environment) -> list[str]:
    """Return the deleted files that a server still holds open."""
    leftovers = []
    for process in (*environment.apis, *environment.edges):
        for entry in Path(f"/proc/{process.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                to = str(entry.readlink())
                if to.startswith(str(environment.data.path)) and not entry.stat().st_nlink:
                    leftovers.append(f"descriptor of {process.name}: {to}")
    return leftovers


def _strays(environment: Environment) -> list[str]:
    """Return the processes that work in the folders of the service, or were started by one that has ended."""
    expected = {pid for kept in environment.kept if kept.pid for pid in (kept.pid, *descendants(kept.pid))}
    mark = str(environment.folder).encode()
    strays = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            command = (entry / "cmdline").read_bytes()
            inside = str((entry / "cwd").readlink()).startswith(str(environment.folder))
            marked = mark in (entry / "environ").read_bytes() or mark in command
        except OSError:
            continue
        if pid not in expected and (inside or marked):
            strays.append(f"process {pid}: {command.replace(bytes(1), b' ').decode(errors='replace')[:150]}")
    return strays
