"""Readers at the edge, while what they read changes, and while it is taken from them."""

import itertools
import random
from collections import Counter

from scripts.faults.ground import OWNER, Ground
from scripts.faults.load import Present

PROJECT = "read"
HERE = f"/projects/{OWNER}%2F{PROJECT}"
RAW = f"/{OWNER}/{PROJECT}/-/raw/main/version.txt"
VEILED = "veiled"
VEILED_RAW = f"/{OWNER}/{VEILED}/-/raw/main/secret.txt"
#: Every so many versions is one that the edge's memory does not take.
LARGE_EVERY = 9


def text(version: int) -> bytes:
    """A version of the file, which says which one it is; no two are alike anywhere."""
    size = 600_000 if version % LARGE_EVERY == 0 else 2_000
    return b"%d\n" % version + random.Random(version).randbytes(size).hex().encode()[:size]


class Versions:
    """Commits the next version, then reads at the edge: never an older one, never part of one."""

    rest = 0.1
    pulse = ("edge read", "version")

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._numbers = itertools.count(2)
        self._newest = 1
        self._begun = 1

    async def prepare(self) -> None:
        owner = self._ground.owner
        await owner.ask("prepare", "POST", "/projects", json={"name": PROJECT, "visibility": "public"})
        await self._commit(1, "create")

    async def _commit(self, version: int, action: str) -> bool:
        content = text(version).decode()
        actions = [{"action": action, "file_path": "version.txt", "content": content}]
        commit = {"branch": "main", "commit_message": f"version {version}", "actions": actions}
        where = f"{HERE}/repository/commits"
        return bool(
            await self._ground.owner.write("version", f"version {version}", "POST", where, json=commit)
        )

    async def once(self) -> None:
        version = self._begun = next(self._numbers)
        edge = self._ground.edge.starts
        if await self._commit(version, "update"):
            self._newest = version
        for _ in range(3):
            await self._read(strict=edge == self._ground.edge.starts)

    async def _read(self, *, strict: bool) -> int | None:
        """The version that the edge has now. `strict`: it has run for as long as this version has existed."""
        answer = await self._ground.stranger.ask("edge read", "GET", RAW)
        if answer is None or not answer.ok:
            return None
        version = int(answer.body.partition(b"\n")[0])
        ledger = self._ground.ledger
        if not 0 < version <= self._begun or answer.body != text(version):
            ledger.find(
                f"edge: version {version} of {self._newest} was served damaged ({len(answer.body)} bytes)"
            )
        elif strict and version < self._newest:
            ledger.find(f"edge: version {version} was served after {self._newest} was acknowledged")
        return version

    async def present(self) -> Present:
        commits = await self._ground.owner.all(f"{HERE}/repository/commits?ref_name=main")
        last = await self._ground.owner.ask(
            "list", "GET", f"{HERE}/repository/files/version.txt/raw?ref=main"
        )
        served = await self._ground.stranger.ask("edge read", "GET", RAW)
        if last is None or served is None or last.body != served.body:
            self._ground.ledger.find("edge: what it serves when all is over is not what the service has")
        return {"version": Counter(one["title"] for one in commits)}


class Veiled:
    """Takes a project from the public and gives it back: what a stranger gets from the edge follows at once."""

    rest = 0.2
    pulse = ("veil", "unveil")

    def __init__(self, ground: Ground) -> None:
        self._ground = ground
        self._private = False

    async def prepare(self) -> None:
        owner = self._ground.owner
        await owner.ask("prepare", "POST", "/projects", json={"name": VEILED, "visibility": "public"})
        actions = [{"action": "create", "file_path": "secret.txt", "content": "for members only\n" * 100}]
        commit = {"branch": "main", "commit_message": "Begin", "actions": actions}
        await owner.ask("prepare", "POST", f"/projects/{OWNER}%2F{VEILED}/repository/commits", json=commit)

    async def once(self) -> None:
        edge = self._ground.edge.starts
        for _ in range(2):
            await self._ground.stranger.ask("veiled read", "GET", VEILED_RAW, expected={404})
        if await self._turn("private", "veil"):
            for _ in range(2):
                await self._look(strict=edge == self._ground.edge.starts)
        await self._turn("public", "unveil")

    async def _turn(self, visibility: str, kind: str) -> bool:
        where = f"/projects/{OWNER}%2F{VEILED}"
        return bool(await self._ground.owner.ask(kind, "PUT", where, json={"visibility": visibility}))

    async def _look(self, *, strict: bool) -> bool:
        """Whether a stranger is kept out."""
        answer = await self._ground.stranger.ask("veiled read", "GET", VEILED_RAW, expected={404})
        if answer is None or answer.status == 404:
            return True
        if strict:
            self._ground.ledger.find(
                f"edge: a stranger got {answer.status} ({answer.headers.get('Cache-Status')}) "
                "after the project was private"
            )
        return False

    async def present(self) -> Present:
        """Once more, when all faults are over."""
        await self._ground.stranger.ask("veiled read", "GET", VEILED_RAW, expected={404})
        if not await self._turn("private", "veil") or not await self._look(strict=True):
            self._ground.ledger.find("edge: what was taken away is still served when all is over")
        return {}
