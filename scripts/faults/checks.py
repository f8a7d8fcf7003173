"""What has to hold when all faults are over and nobody works any more."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from scripts.faults import repository_load
from scripts.faults.client import Worker
from scripts.faults.environment import OWNER, Environment
from scripts.faults.repository_load import mirror_of
from scripts.harness.processes import descendants
from tests.support.git_client import Git

#: Locks that nobody holds are looked for every minute.
SETTLE_SECONDS = 75.0
REPLICA_READS = "forgelet_database_replica_reads_total"


async def check(ground: Environment, workers: Sequence[Worker], tell: Callable[[str], None]) -> None:
    """Looks at all invariants; what does not hold is a finding of the ledger. The ledger gets what is there of each
    kind, so that it can tell what is lost and what was done twice."""
    tell("Looking at what is there ...")
    if not await ground.ready():
        ground.ledger.find("the service is not ready a minute after the last fault")
        return
    for worker in workers:
        for kind, present in (await worker.present()).items():
            ground.ledger.present[kind] = ground.ledger.present.get(kind, type(present)()) + present
    await _branches_can_be_written(ground)
    await _audit_is_sound(ground)
    await _repositories_are_sound(ground)
    await _replica_is_in_step(ground)
    await _nothing_is_left(ground)


async def _branches_can_be_written(ground: Environment) -> None:
    """Each branch by one push of all of them; and by a commit through the API, where that is where faults hit."""
    for project in (repository_load.WRITES_PROJECT, repository_load.MERGE_PROJECT):
        clone = await mirror_of(ground.folder / "scratch" / f"all-of-{project}", ground.git_url(project))
        lines = (await clone("for-each-ref", "--format=%(refname) %(objectname)", "refs/heads")).splitlines()
        pushed = []
        for number, (ref, commit) in enumerate(line.split() for line in lines):
            new = await clone("commit-tree", f"{commit}^{{tree}}", "-p", commit, "-m", f"last {number}")
            pushed.append(f"{new}:{ref}")
        for part in range(0, len(pushed), 400):
            ran = await clone.run("push", ground.git_url(project), *pushed[part : part + 400])
            if ran.code:
                refused = [line for line in ran.output.splitlines() if "!" in line or "error" in line]
                ground.ledger.find(f"{project}: branches cannot be pushed to: {' | '.join(refused[:5])}")
        names = [line.split()[0].removeprefix("refs/heads/") for line in lines]
        often = [name for name in names if not name.startswith(("b-", "source-"))]
        for name in {*often, *names[-20:]}:
            await _commit(ground, project, name)


async def _commit(ground: Environment, project: str, branch: str) -> None:
    actions = [{"action": "create", "file_path": f"last/{branch}.txt", "content": branch}]
    commit = {"branch": branch, "commit_message": "last", "actions": actions}
    where = f"/projects/{OWNER}%2F{project}/repository/commits"
    answer = await ground.owner.ask("last", "POST", where, json=commit)
    if answer is None:
        ground.ledger.find(f"{project}: no commit to {branch} when all is over")


async def _audit_is_sound(ground: Environment) -> None:
    command = [sys.executable, "-P", "-m", "forgelet", "audit", "verify"]
    done = await asyncio.to_thread(
        subprocess.run, command, env=ground.api.environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        ground.ledger.find(f"audit verify: {done.stdout.strip()} {done.stderr.strip()}")


async def _replica_is_in_step(ground: Environment) -> None:
    """Where there is one: it has what the primary has, and the API servers read from it."""
    replication = ground.databases.replication
    if replication.standby is None:
        return
    if not await replication.caught_up():
        ground.ledger.find("the replica does not catch up with the primary when all is over")
    for api, url in zip(ground.apis, ground.urls, strict=False):
        if not await _answers_by_replica(ground, url):
            ground.ledger.find(f"{api.name}: the replica has answered nothing since it started")


async def _answers_by_replica(ground: Environment, url: str) -> bool:
    """Whether this API server shows what it reads from the replica."""
    http, headers = ground.owner.http, {"PRIVATE-TOKEN": ground.owner.token}
    async with http.get(f"{url}/api/v4{repository_load.APP}/variables", headers=headers) as shown:
        await shown.read()
    async with http.get(f"{url}/-/metrics") as metrics:
        lines = (await metrics.text()).splitlines()
    return any(line.startswith(REPLICA_READS) and float(line.split()[-1]) > 0 for line in lines)


async def _repositories_are_sound(ground: Environment) -> None:
    for head in sorted(ground.data.part("api").rglob("HEAD")):
        if not (head.parent / "objects").is_dir():
            continue
        ran = await Git(head.parent).run("fsck", "--full", "--strict", "--no-dangling", "--no-progress")
        if ran.code:
            ground.ledger.find(f"git fsck of {head.parent.name}: {ran.output[-300:]}")


async def _nothing_is_left(ground: Environment) -> None:
    """Locks that no git holds, processes that no server knows, descriptors of what is no more."""
    deadline = asyncio.get_running_loop().time() + SETTLE_SECONDS
    while left := [*_locks(ground), *_strays(ground), *_held_files(ground)]:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(0.5)
    for what in left:
        ground.ledger.find(f"left behind: {what}")


def _locks(ground: Environment) -> list[str]:
    folder = ground.data.part("api")
    return sorted(
        f"lock {lock.relative_to(folder)}" for lock in folder.rglob("*.lock") if "objects" not in lock.parts
    )


def _held_files(ground: Environment) -> list[str]:
    """Files that a server holds open though they have gone."""
    found = []
    for kept in (*ground.apis, *ground.edges):
        for entry in Path(f"/proc/{kept.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                to = str(entry.readlink())
                if to.startswith(str(ground.data.path)) and not entry.stat().st_nlink:
                    found.append(f"descriptor of {kept.name}: {to}")
    return found


def _strays(ground: Environment) -> list[str]:
    """Processes that work in the folders of the service, or were started by one that has gone."""
    known = {pid for kept in ground.kept if kept.pid for pid in (kept.pid, *descendants(kept.pid))}
    mark = str(ground.folder).encode()
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        pid = int(entry.name)
        try:
            words = (entry / "cmdline").read_bytes()
            inside = str((entry / "cwd").readlink()).startswith(str(ground.folder))
            marked = mark in (entry / "environ").read_bytes() or mark in words
        except OSError:
            continue
        if pid not in known and (inside or marked):
            found.append(f"process {pid}: {words.replace(bytes(1), b' ').decode(errors='replace')[:150]}")
    return found
