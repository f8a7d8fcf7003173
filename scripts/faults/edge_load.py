"""Readers at the edge, while what they read changes, and while it is taken from them."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Collection

import attrs

from scripts.faults.client import Answer, Client, Present
from scripts.faults.environment import OWNER, Environment
from scripts.harness.processes import KeptProcess

PROJECT = "read"
HERE = f"/projects/{OWNER}%2F{PROJECT}"
RAW = f"/{OWNER}/{PROJECT}/-/raw/main/version.txt"
VEILED = "veiled"
VEILED_RAW = f"/{OWNER}/{VEILED}/-/raw/main/secret.txt"
#: What an edge that was down has not been told may live as long as the service said, and a little more.
CURRENT_SECONDS = 75.0
#: Every so many versions is one that the edge's memory does not take.
LARGE_EVERY = 9


def text(version: int) -> bytes:
    """A version of the file, which says which one it is; no two are alike anywhere."""
    size = 600_000 if version % LARGE_EVERY == 0 else 2_000
    return b"%d\n" % version + random.Random(version).randbytes(size).hex().encode()[:size]


@attrs.define
class EdgeReader:
    """A stranger at one edge, who remembers which of its processes answered her last. An edge that was down when
    something changed may not know that for a while; one that was there has been told."""

    edge: KeptProcess
    stranger: Client
    _answered: int = 0

    @classmethod
    def at_each(cls, ground: Environment) -> "list[EdgeReader]":
        return [cls(*both) for both in zip(ground.edges, ground.strangers, strict=True)]

    async def read(self, kind: str, path: str, expected: Collection[int] = ()) -> Answer | None:
        running = self.edge.starts
        answer = await self.stranger.ask(kind, "GET", path, expected=expected)
        self._answered = running if answer is not None else 0
        return answer

    def knows(self) -> int:
        """Names the process that answered last, if it still runs; 0 is none."""
        return self._answered if self._answered == self.edge.starts else 0


class Versions:
    """Commits the next version, then reads at the edge: never an older one, never part of one."""

    rest = 0.1
    pulse = ("edge read", "version")

    def __init__(self, ground: Environment) -> None:
        self._ground = ground
        self._numbers = itertools.count(2)
        self._newest = 1
        self._begun = 1
        self._readers = EdgeReader.at_each(ground)

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
        told = [reader.knows() for reader in self._readers]
        if await self._commit(version, "update"):
            self._newest = version
        else:
            told = [0] * len(told)
        for _ in range(3):
            for reader, process in zip(self._readers, told, strict=True):
                await self._read(reader, process)

    async def _read(self, reader: EdgeReader, told: int) -> None:
        """Looks at the version that an edge has now. `told`: its process that was there when the newest was made."""
        answer = await reader.read("edge read", RAW)
        if answer is None or not answer.ok:
            return
        version = int(answer.body.partition(b"\n")[0])
        ledger = self._ground.ledger
        if not 0 < version <= self._begun or answer.body != text(version):
            ledger.find(
                f"{reader.edge.name}: version {version} of {self._newest} was served damaged ({len(answer.body)} bytes)"
            )
        elif told and told == reader.knows() and version < self._newest:
            ledger.find(
                f"{reader.edge.name}: version {version} was served after {self._newest} was acknowledged"
            )

    async def present(self) -> Present:
        commits = await self._ground.owner.all(f"{HERE}/repository/commits?ref_name=main")
        deadline = time.monotonic() + CURRENT_SECONDS
        for reader in self._readers:
            while not await self._is_current(reader):
                if time.monotonic() > deadline:
                    self._ground.ledger.find(
                        f"{reader.edge.name}: what it serves when all is over is not what the service has"
                    )
                    break
                await asyncio.sleep(0.5)
        return {"version": Counter(one["title"] for one in commits)}

    async def _is_current(self, reader: EdgeReader) -> bool:
        where = f"{HERE}/repository/files/version.txt/raw?ref=main"
        last = await self._ground.owner.ask("list", "GET", where)
        served = await reader.read("edge read", RAW)
        return last is not None and served is not None and last.body == served.body


class Veiled:
    """Takes a project from the public and gives it back: what a stranger gets from the edge follows at once."""

    rest = 0.2
    pulse = ("veil", "unveil")

    def __init__(self, ground: Environment) -> None:
        self._ground = ground
        self._readers = EdgeReader.at_each(ground)

    async def prepare(self) -> None:
        owner = self._ground.owner
        await owner.ask("prepare", "POST", "/projects", json={"name": VEILED, "visibility": "public"})
        actions = [{"action": "create", "file_path": "secret.txt", "content": "for members only\n" * 100}]
        commit = {"branch": "main", "commit_message": "Begin", "actions": actions}
        await owner.ask("prepare", "POST", f"/projects/{OWNER}%2F{VEILED}/repository/commits", json=commit)

    async def once(self) -> None:
        for reader in self._readers * 2:
            await reader.read("veiled read", VEILED_RAW, expected={404})
        told = [reader.knows() for reader in self._readers]
        if await self._turn("private", "veil"):
            for reader, process in list(zip(self._readers, told, strict=True)) * 2:
                await self._look(reader, process)
        await self._turn("public", "unveil")

    async def _turn(self, visibility: str, kind: str) -> bool:
        where = f"/projects/{OWNER}%2F{VEILED}"
        answer = await self._ground.owner.ask(kind, "PUT", where, json={"visibility": visibility})
        return answer is not None and answer.ok

    async def _look(self, reader: EdgeReader, told: int) -> bool:
        """Whether a stranger is kept out. `told`: the edge's process that was there when it was made private."""
        answer = await reader.read("veiled read", VEILED_RAW, expected={404})
        if answer is None or answer.status == 404:
            return True
        if told and told == reader.knows():
            self._ground.ledger.find(
                f"{reader.edge.name}: a stranger got {answer.status} ({answer.headers.get('Cache-Status')}) "
                "after the project was private"
            )
        return False

    async def present(self) -> Present:
        """Once more, when all faults are over."""
        for reader in self._readers:
            await reader.read("veiled read", VEILED_RAW, expected={404})
        told = [reader.knows() for reader in self._readers]
        kept_out = all(told) and await self._turn("private", "veil")
        for reader, process in zip(self._readers, told, strict=True):
            if not kept_out or not await self._look(reader, process):
                self._ground.ledger.find(
                    f"{reader.edge.name}: what was taken away is still served when all is over"
                )
        return {}
