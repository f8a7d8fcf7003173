"""What a drill does: back up a service under load, wipe it, restore it, and look whether everything is there."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import attrs
import psycopg2

from forgelet.local.api_client import answers
from scripts.faults import checks
from scripts.faults.environment import Ground, prepared
from scripts.faults.load import jobs
from scripts.faults.load.repositories import mirror_of
from scripts.faults.processes import KeptProgram, until
from scripts.faults.scenario import Load
from scripts.restores.crawl import Crawl, differences

#: Of the ledger: while nothing is backed up, and from the moment on in which it may already be too late for a backup.
BEFORE, MEANWHILE = 0, 1
#: What jobs have become, of which those that the backup has as running have become nothing.
_OF_LATER = frozenset({"pipeline", "hand-out"})
#: Seconds for which what a wiped service had begun is waited for.
PATIENCE_SECONDS = 20.0
Tell = Callable[[str], None]


def forgelet(
    arguments: list[str], environment: Mapping[str, str], *, expected: int = 0
) -> "subprocess.CompletedProcess[str]":
    """Runs a command of forgelet to its end. Raises RuntimeError where it ends with another status."""
    command = [sys.executable, "-P", "-m", "forgelet", *arguments]
    done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    if done.returncode != expected:
        raise RuntimeError(
            f"forgelet {arguments[0]} ended with {done.returncode}: {done.stdout}{done.stderr}"
        )
    return done


@attrs.define
class Drill:
    """One service, its backups, and what was found to be wrong."""

    ground: Ground
    tell: Tell
    restored: int = 0
    wrong: list[str] = attrs.field(factory=list)

    @property
    def passphrase_file(self) -> Path:
        file = self.ground.folder / "passphrase"
        if not file.exists():
            file.write_text("correct horse battery staple\n")
        return file

    def back_up(self, name: str) -> Path:
        """A backup of the service as it runs."""
        file = self.ground.folder / name
        arguments = ["backup", str(file), "--passphrase-file", str(self.passphrase_file), "--verify"]
        begun = time.monotonic()
        self.tell(forgelet(arguments, self.ground.api.environment).stdout.strip())
        self.tell(f"... in {time.monotonic() - begun:.1f} s")
        return file

    async def wipe_and_restore(self, file: Path) -> None:
        """Ends the API server, removes its files, restores into a new database. The edge goes on with what it has."""
        ground = self.ground
        await stopped(ground.api)
        folder = ground.data.part("api")
        for one in folder.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        self.restored += 1
        before = ground.api.environment["FORGELET_API_DATABASE_URL"]
        url = await asyncio.to_thread(new_database, before, f"restored_{self.restored}")
        ground.api.environment["FORGELET_API_DATABASE_URL"] = url
        arguments = [
            "restore",
            str(file),
            "--data-dir",
            str(folder),
            "--passphrase-file",
            str(self.passphrase_file),
        ]
        environment = ground.api.environment | {"FORGELET_DATABASE_URL": url}
        self.tell((await asyncio.to_thread(forgelet, arguments, environment)).stdout.strip())
        await started(ground.api)
        if not await ground.ready():
            raise RuntimeError(
                f"The restored service is not ready: {ground.api.newest_log().read_text()[-2000:]}"
            )

    async def look(self) -> None:
        """All that commands say of what is there."""
        for arguments in (["audit", "verify"], ["store", "check"], ["repository", "check"]):
            try:
                done = await asyncio.to_thread(forgelet, arguments, self.ground.api.environment)
                self.tell(f"{' '.join(arguments)}: {done.stdout.strip()}")
            except RuntimeError as problem:
                self.wrong.append(str(problem))

    async def crawl(self) -> dict[str, tuple[int, str]]:
        ground = self.ground
        base = ground.root.base.removesuffix("/api/v4")
        found = await asyncio.to_thread(Crawl(base, ground.root.token).answers)
        failed = [f"{path}: {status}" for path, (status, _) in found.items() if status >= 500]
        self.wrong += failed
        return found


async def stopped(kept: KeptProgram) -> None:
    """Ends a program that would be started again otherwise."""
    await kept.__aexit__()


async def started(kept: KeptProgram) -> None:
    kept._closing = False
    await kept.__aenter__()
    await until(lambda: kept.pid, 10)


def new_database(url: str, name: str) -> str:
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        connection.cursor().execute(f"CREATE DATABASE {name}")
    return urlunsplit(urlsplit(url)._replace(path=f"/{name}"))


async def under_load(drill: Drill, load: Load, seconds: float) -> None:
    """Backs up while everybody works. What was acknowledged before the backup began has to be in it."""
    ground = drill.ground
    async with load.working():
        await asyncio.sleep(seconds)
        ground.ledger.fault = MEANWHILE
        file = await asyncio.to_thread(drill.back_up, "under-load.backup")
        await asyncio.sleep(seconds / 4)  # which the backup must not have
    acknowledged = {one.kind for one in ground.ledger.operations if one.outcome == "acknowledged"}
    await drill.wipe_and_restore(file)
    await drill.look()
    for worker in load.workers:
        for kind, present in (await worker.present()).items():
            if kind not in _OF_LATER:
                ground.ledger.present[kind] = ground.ledger.present.get(kind, type(present)()) + present
    ground.ledger.present["pipeline"] = await _pipelines(ground)
    lost = [one for one in ground.ledger.lost() if one.fault == BEFORE]
    before = sum(one.fault == BEFORE and one.outcome == "acknowledged" for one in ground.ledger.operations)
    drill.tell(f"{before} writes of {len(acknowledged)} kinds were acknowledged before; {len(lost)} are lost")
    drill.wrong += [f"lost: {one.kind} {one.identity}" for one in lost]
    drill.wrong += [f"twice: {one.kind} {one.identity}" for one in ground.ledger.doubled()]
    await drill.crawl()


async def _pipelines(ground: Ground) -> Counter[str]:
    """By what each was made as."""
    found: Counter[str] = Counter()
    for pipeline in await ground.owner.all(f"{jobs.HERE}/pipelines"):
        shown = await ground.owner.ask("list", "GET", f"{jobs.HERE}/pipelines/{pipeline['id']}/variables")
        found += Counter(one["value"] for one in (shown.json if shown else ()) if one["key"] == jobs.MARK)
    return found


async def at_rest(drill: Drill) -> None:
    """Every answer before and after is the same; clones and what the edge serves too."""
    await asyncio.sleep(5)  # until background work has come to rest
    before, files = await drill.crawl(), await clones(drill, "before")
    file = await asyncio.to_thread(drill.back_up, "at-rest.backup")
    await drill.wipe_and_restore(file)
    after = await drill.crawl()
    found = differences(before, after)
    drill.tell(f"{len(before)} answers before, {len(after)} after, {len(found)} differ")
    drill.wrong += found
    if await clones(drill, "after") != files:
        drill.wrong.append("clones differ")
    await drill.look()
    await checks._repositories_are_sound(drill.ground)


async def clones(drill: Drill, when: str) -> dict[str, str]:
    """What a mirror clone of each project has of refs."""
    ground, found = drill.ground, {}
    for project in await ground.owner.all("/projects?owned=true"):
        name = project["path"]
        clone = await mirror_of(
            ground.folder / "scratch" / f"{when}-{name}-{drill.restored}", ground.git_url(name)
        )
        found[name] = await clone("for-each-ref")
    return found


async def run(tell: Tell, seconds: float) -> list[str]:
    """What was found to be wrong."""
    async with prepared(tell) as ground:
        drill = Drill(ground, tell)
        load = Load(ground, patience=PATIENCE_SECONDS)
        await load.prepare()
        await under_load(drill, load, seconds)
        tell(f"{len(drill.wrong)} things are wrong after the backup under load")
        await at_rest(drill)
        drill.wrong += [text for _, text in ground.ledger.findings]
        if not await asyncio.to_thread(answers, f"{ground.stranger.base}/-/readiness"):
            drill.wrong.append("the edge is not ready")
    return drill.wrong
