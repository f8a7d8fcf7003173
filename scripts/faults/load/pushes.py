"""People who push with real git, and clone."""

import itertools
import shutil
import time
from pathlib import Path

from scripts.faults.ground import Ground
from scripts.faults.load import Present
from scripts.faults.load.api_writes import PROJECT
from scripts.faults.load.git import attempt, mirror_of, subjects, was_refused
from tests.support.git_client import Git

CLONE_EVERY = 4


class Pushes:
    """One person with a clone and a branch of her own, into the repository that the API writes to as well."""

    rest = 0.1
    pulse = ("push",)

    def __init__(self, ground: Ground, scratch: Path, name: str) -> None:
        self._ground = ground
        self._scratch = scratch / name
        self._branch = name
        self._numbers = itertools.count(1)

    async def prepare(self) -> None:
        git = Git(self._scratch / "work")
        git.folder.mkdir(parents=True)
        await git("clone", "--quiet", self._ground.git_url(PROJECT), ".")
        await git("checkout", "--quiet", "-b", self._branch)

    async def once(self) -> None:
        git, number = Git(self._scratch / "work"), next(self._numbers)
        identity = f"{self._branch} {number}"
        await git.commit_files({f"{number}.txt": f"{identity}\n" * 50}, identity)
        began, fault = time.monotonic(), self._ground.ledger.fault
        ledger, url = self._ground.ledger, self._ground.git_url(PROJECT)
        ran = await attempt(ledger, git, "push", "--quiet", url, f"HEAD:refs/heads/{self._branch}")
        ledger.answers[fault, "pushed" if ran.code == 0 else "push failed"] += 1
        if ran.code == 0:
            ledger.succeeded("push", began)
            ledger.record("push", identity, "acknowledged")
        else:
            ledger.record("push", identity, "unknown")
            if was_refused(ran):
                ledger.find(f"git push of {identity} was refused: {ran.output[-400:]}")
        if number % CLONE_EVERY == 1:
            await self._clone()

    async def _clone(self) -> None:
        folder = self._scratch / "clone"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        began = time.monotonic()
        url = self._ground.git_url(PROJECT)
        words = ("clone", "--quiet", "--bare", "--single-branch", url, ".")
        ran = await attempt(self._ground.ledger, Git(folder), *words)
        if ran.code == 0:
            self._ground.ledger.succeeded("clone", began)

    async def present(self) -> Present:
        clone = await mirror_of(self._scratch / "counted", self._ground.git_url(PROJECT))
        return {"push": await subjects(clone, self._branch)}
