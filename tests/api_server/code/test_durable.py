"""What git was asked for is on the disk before anybody hears that it is done: by a real server's system calls."""

import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import attrs
import pytest

from api_server.git.processes import run
from tests.support.forge import Client
from tests.support.git_client import Git
from tests.support.server_process import ServerProcess, server_process

STRACE = shutil.which("strace")
CALLS = "fsync,fdatasync,rename,renameat,renameat2,link,linkat,unlink,unlinkat,rmdir"
WATCHED = re.compile(
    r"/\d+\.git/(refs/.*(?<!\.lock)|objects/(\w\w|pack)/[^.t].*(?<!\.keep)|HEAD|packed-refs)$"
)
_LINE = re.compile(r"^\d+ +(?P<at>\d+\.\d+) (?P<call>\w+)\((?P<arguments>.*)\) += 0$")
_UNFINISHED = re.compile(r"^(?P<pid>\d+) +\d+\.\d+ (?P<begun>.*) <unfinished \.\.\.>$")
_RESUMED = re.compile(r"^(?P<pid>\d+) +(?P<at>\d+\.\d+) <\.\.\. \w+ resumed>(?P<rest>.*)$")


@attrs.define
class Disk:
    """What a power cut would leave of the files in `watched`, as far as the traced calls tell. Git names them from the
    repository's `folder`, where it works."""

    folder: Path
    watched: re.Pattern[str]
    synced: set[str] = attrs.field(factory=set)
    #: Names that have got another content, or none, in folders that have not been synced since.
    dirty: set[str] = attrs.field(factory=set)
    unsynced: list[str] = attrs.field(factory=list)
    seen: set[str] = attrs.field(factory=set)

    def happens(self, call: str, arguments: str) -> None:
        if call in ("fsync", "fdatasync"):
            path = arguments.partition("<")[2].rpartition(">")[0]
            self.synced.add(path)
            self.dirty = {name for name in self.dirty if str(Path(name).parent) != path}
            return
        paths = [str(self.folder / path) for path in re.findall(r'"([^"]*)"', arguments)]
        target = paths[-1]
        if call == "rmdir":  # what was in it has gone with it
            gone = {name for name in self.dirty if str(Path(name).parent) == target}
            self.dirty = self.dirty - gone | ({target} if gone else set())
            return
        if not call.startswith("unlink"):
            source = paths[0]
            if source in self.synced:
                self.synced.add(target)
            elif self.watched.search(target):
                self.unsynced.append(target)
        if self.watched.search(target):
            self.dirty.add(target)
            self.seen.add(target)


@attrs.frozen
class Traced:
    server: ServerProcess
    trace: Path
    repository: Path
    work: Git

    @property
    def root(self) -> Client:
        return self.server.root

    def disk_at(self, moment: float) -> Disk:
        """As the calls before leave it."""
        disk = Disk(self.repository, WATCHED)
        begun: dict[str, str] = {}
        for line in self.trace.read_text(errors="replace").splitlines():
            if found := _UNFINISHED.match(line):
                begun[found["pid"]] = found["begun"]
                continue
            if found := _RESUMED.match(line):
                line = f"{found['pid']} {found['at']} {begun.pop(found['pid'], '')}{found['rest']}"  # noqa: PLW2901
            found = _LINE.match(line)
            if found and float(found["at"]) <= moment:
                disk.happens(found["call"], found["arguments"])
        return disk


@pytest.fixture
async def traced(
    new_database: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Traced]:
    """A server under strace, and a clone of its project 1."""
    if STRACE is None:
        pytest.skip("strace is not installed")
    trace = tmp_path / "trace"
    command = (
        STRACE,
        "-D",
        "-f",
        "-y",
        "-ttt",
        "--seccomp-bpf",
        "-s",
        "4096",
        "-e",
        f"trace={CALLS}",
        "-o",
        str(trace),
    )
    async with server_process(new_database(), tmp_path / "data", under=command, work=False) as server:
        await server.root.post("/projects", {"name": "app", "initialize_with_readme": True}, expect=201)
        work = Git(tmp_path / "work")
        work.folder.mkdir()
        url = f"{server.base}/root/app.git".replace("://", f"://root:{server.root.token}@")
        await work("clone", "--quiet", url, ".")
        yield Traced(server, trace, tmp_path / "data/repositories/01/1.git", work)


async def _push(traced: Traced) -> set[str]:
    await traced.work.commit_files({"pushed.txt": "pushed"}, "Push")
    await traced.work("push", "--quiet", "origin", "HEAD:refs/heads/deep/er")
    return {"refs/heads/deep/er", "objects/pack/pack-"}


async def _commit(traced: Traced) -> set[str]:
    body = {"branch": "main", "commit_message": "Add", "content": "new"}
    await traced.root.post("/projects/1/repository/files/new%2Etxt", body, expect=201)
    sha = (await traced.root.get("/projects/1/repository/branches/main")).body["commit"]["id"]
    return {"refs/heads/main", f"objects/{sha[:2]}/{sha[2:]}"}


async def _create_branch(traced: Traced) -> set[str]:
    await traced.root.post("/projects/1/repository/branches", {"branch": "a/new", "ref": "main"}, expect=201)
    return {"refs/heads/a/new"}


async def _delete_branch(traced: Traced) -> set[str]:
    await traced.root.delete("/projects/1/repository/branches/a%2Fnew", expect=204)
    return {"refs/heads/a/new"}


async def _merge(traced: Traced) -> set[str]:
    body = {"branch": "side", "start_branch": "main", "commit_message": "Side", "content": "side"}
    assert (await traced.root.post("/projects/1/repository/files/side%2Etxt", body)).status == 201
    body = {"source_branch": "side", "target_branch": "main", "title": "Side"}
    await traced.root.post("/projects/1/merge_requests", body, expect=201)
    merged = await traced.root.put("/projects/1/merge_requests/1/merge", expect=200)
    sha = merged.body["merge_commit_sha"]
    return {"refs/merge-requests/1/head", "refs/heads/main", f"objects/{sha[:2]}/{sha[2:]}"}


async def _move_head(traced: Traced) -> set[str]:
    await traced.root.put("/projects/1", {"default_branch": "side"}, expect=200)
    return {"HEAD"}


WRITES: list[Callable[[Traced], Awaitable[set[str]]]] = [
    _push, _commit, _create_branch, _delete_branch, _merge, _move_head,
]  # fmt: skip


async def test_what_is_acknowledged_is_on_the_disk(traced: Traced) -> None:
    """Contents before they get their names, and names before the answer."""
    assert traced.disk_at(time.time()).dirty == set()
    for write in WRITES:
        expected = await write(traced)
        acknowledged = time.time()
        disk = traced.disk_at(acknowledged)
        assert (disk.unsynced, disk.dirty) == ([], set()), write.__name__
        for name in expected:
            assert any(name in path for path in disk.seen), (write.__name__, name)


async def test_every_git_syncs_what_it_writes(tmp_path: Path) -> None:
    """Where no strace is installed this is all that is known."""
    await run(["init", "--quiet", "--bare", str(tmp_path)])
    for name, value in (("core.fsync", "objects,derived-metadata,reference"), ("core.fsyncMethod", "fsync")):
        assert (await run(["config", name], repository=tmp_path)).stdout.decode().strip() == value


def test_a_power_cut_is_told_from_the_calls() -> None:
    """The reader of traces is right: what is not synced is found."""
    disk = Disk(Path("/r"), re.compile("^/r/"))
    for call, arguments in (
        ("rename", '"/r/a.lock", "/r/a"'),
        ("fsync", "3</r/b.lock>"),
        ("rename", '"/r/b.lock", "/r/b"'),
    ):
        disk.happens(call, arguments)
    assert (disk.unsynced, disk.dirty) == (["/r/a"], {"/r/a", "/r/b"})
    disk.happens("fsync", "3</r>")
    assert disk.dirty == set()
