"""Readers at the edge, while the files that they read change, or become private."""

import itertools
import random
from collections import Counter
from collections.abc import Collection

import attrs

from scripts.faults.client import Answer, Client
from scripts.faults.environment import OWNER, Environment, Present, Worker
from scripts.harness.contents import commit_values
from scripts.harness.processes import KeptProcess, retry_until

PROJECT = "read"
HERE = f"/projects/{OWNER}%2F{PROJECT}"
RAW = f"/{OWNER}/{PROJECT}/-/raw/main/version.txt"
PRIVATE = "veiled"
PRIVATE_RAW = f"/{OWNER}/{PRIVATE}/-/raw/main/secret.txt"
#: Seconds for which an edge that was down may serve an old version: as long as the service has allowed, and a little
#: more.
CURRENT_SECONDS = 75.0
#: Each n-th version is too large for the edge's memory.
LARGE_EVERY = 9


def text(version: int) -> bytes:
    """Return the content of a version of the file. It begins with the version, and no two contents are alike
    anywhere."""
    size = 600_000 if version % LARGE_EVERY == 0 else 2_000
    return b"%d\n" % version + random.Random(version).randbytes(size).hex().encode()[:size]


@attrs.define
class EdgeReader:
    """An anonymous reader at one edge, with the process of the edge that answered last. An edge that was down when
    something changed may not know this for a while; a running edge was notified."""

    edge: KeptProcess
    stranger: Client
    _answered: int = 0

    @classmethod
    def at_each(cls, environment: Environment) -> "list[EdgeReader]":
        return [cls(*both) for both in zip(environment.edges, environment.strangers, strict=True)]

    async def read(self, kind: str, path: str, expected: Collection[int] = ()) -> Answer | None:
        running = self.edge.starts
        answer = await self.stranger.ask(kind, "GET", path, expected=expected)
        self._answered = running if answer is not None else 0
        return answer

    @property
    def process(self) -> int:
        """The number of the process that answered last if it still runs, otherwise 0."""
        return self._answered if self._answered == self.edge.starts else 0


class Versions(Worker):
    """A worker that commits the next version and then reads it at the edges, which may serve neither an older version
    nor a damaged one."""

    rest = 0.1
    pulse = ("edge read", "version")

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._versions = itertools.count(2)
        self._newest = 1
        self._begun = 1
        self._readers = EdgeReader.at_each(environment)

    async def prepare(self) -> None:
        await self.create_project(PROJECT, visibility="public")
        await self._commit(1, "create")

    async def _commit(self, version: int, action: str) -> bool:
        name = f"version {version}"
        commit = commit_values("main", {"version.txt": text(version).decode()}, action=action, message=name)
        path = f"{HERE}/repository/commits"
        return bool(await self.owner.write("version", name, "POST", path, json=commit))

    async def once(self) -> None:
        version = self._begun = next(self._versions)
        processes = [reader.process for reader in self._readers]
        if await self._commit(version, "update"):
            self._newest = version
        else:
            processes = [0] * len(processes)
        for _ in range(3):
            for reader, process in zip(self._readers, processes, strict=True):
                await self._read(reader, process)

    async def _read(self, reader: EdgeReader, process: int) -> None:
        """Read the current version at an edge and check it. `process` is the edge's process that ran before the newest
        version was committed, or 0."""
        answer = await reader.read("edge read", RAW)
        if answer is None or not answer.ok:
            return
        version, edge = int(answer.body.partition(b"\n")[0]), reader.edge.name
        if not 0 < version <= self._begun or answer.body != text(version):
            size = len(answer.body)
            self.ledger.find(f"{edge}: version {version} of {self._newest} was served damaged ({size} bytes)")
        elif process and process == reader.process and version < self._newest:
            self.ledger.find(f"{edge}: version {version} was served after {self._newest} was acknowledged")

    async def present(self) -> Present:
        commits = await self.owner.all(f"{HERE}/repository/commits?ref_name=main")
        for reader in self._readers:
            if not await retry_until(lambda reader=reader: self._is_current(reader), CURRENT_SECONDS):  # type: ignore[misc]
                problem = "what it serves when all is over is not what the service has"
                self.ledger.find(f"{reader.edge.name}: {problem}")
        return {"version": Counter(commit["title"] for commit in commits)}

    async def _is_current(self, reader: EdgeReader) -> bool:
        last = await self.owner.ask("list", "GET", f"{HERE}/repository/files/version.txt/raw?ref=main")
        served = await reader.read("edge read", RAW)
        return last is not None and served is not None and last.body == served.body


class Visibility(Worker):
    """A worker that makes a project private and public again. Edges have to refuse anonymous readers at once."""

    rest = 0.2
    pulse = ("veil", "unveil")

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        self._readers = EdgeReader.at_each(environment)

    async def prepare(self) -> None:
        await self.create_project(PRIVATE, visibility="public")
        files = {"secret.txt": "for members only\n" * 100}
        await self.commit(f"/projects/{OWNER}%2F{PRIVATE}", "main", files)

    async def once(self) -> None:
        for _ in range(2):
            processes = await self._processes()
        if await self._change("private", "veil"):
            for _ in range(2):
                for reader, process in zip(self._readers, processes, strict=True):
                    await self._is_kept_out(reader, process)
        await self._change("public", "unveil")

    async def _processes(self) -> list[int]:
        """Return the processes of the edges that answer now."""
        for reader in self._readers:
            await reader.read("veiled read", PRIVATE_RAW, expected={404})
        return [reader.process for reader in self._readers]

    async def _change(self, visibility: str, kind: str) -> bool:
        path = f"/projects/{OWNER}%2F{PRIVATE}"
        answer = await self.owner.ask(kind, "PUT", path, json={"visibility": visibility})
        return answer is not None and answer.ok

    async def _is_kept_out(self, reader: EdgeReader, process: int) -> bool:
        """Return whether an anonymous reader is refused. `process` is the edge's process that ran before the project
        became private."""
        answer = await reader.read("veiled read", PRIVATE_RAW, expected={404})
        if answer is None or answer.status == 404:
            return True
        if process and process == reader.process:
            received = f"{answer.status} ({answer.headers.get('Cache-Status')})"
            self.ledger.find(f"{reader.edge.name}: a stranger got {received} after the project was private")
        return False

    async def present(self) -> Present:
        """Check once more that the project becomes private, now that all faults are over."""
        processes = await self._processes()
        is_private = all(processes) and await self._change("private", "veil")
        for reader, process in zip(self._readers, processes, strict=True):
            if not is_private or not await self._is_kept_out(reader, process):
                problem = "what was taken away is still served when all is over"
                self.ledger.find(f"{reader.edge.name}: {problem}")
        return {}
