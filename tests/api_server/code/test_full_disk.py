"""Data is on the disk before a request is acknowledged; a full disk."""

import contextlib
import os
import re
import shutil
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import attrs
import pygit2
import pytest

from api_server.git.errors import StorageUnavailableError, storing
from api_server.git.processes import run
from api_server.git.repositories import open_repository
from tests.support.disks import small_disk
from tests.support.folders import files_below
from tests.support.forge import Client, Forge, Person, running_forge
from tests.support.git_client import Git, git_url
from tests.support.server_process import ServerProcess, server_process

Json = dict[str, Any]
FULL = (503, {"message": "503 Service Unavailable"}, "5")


@attrs.frozen
class Full:
    """A project on a disk that can be full."""

    forge: Forge
    owner: Person
    project: Json
    repository: Path
    disk: Path

    def fill(self) -> None:
        with contextlib.suppress(OSError), (self.disk / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))

    def make_room(self) -> None:
        (self.disk / "filler").unlink(missing_ok=True)

    async def check(self) -> None:
        """Check that no operation has left partial results."""
        said = await run(["fsck", "--full", "--strict", "--no-dangling"], repository=self.repository)
        assert said.stdout == b""
        left = [
            file
            for file in files_below(self.repository)
            if file.name.endswith(".lock") or "tmp_" in str(file)
        ]
        assert left == []
        rows = "SELECT count(*) FROM pushes WHERE project_id = %(id)s"
        assert await self.forge.database.value(rows, id=self.project["id"]) == 0


@pytest.fixture(scope="module")
async def on_small_disk(
    database_of_module: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    with small_disk(tmp_path_factory.mktemp("small") / "disk", 4) as disk:
        data = disk.path / "data"
        data.mkdir()
        async with running_forge(database_of_module, data, disk_reserve=0, work=False) as forge:
            yield forge


@pytest.fixture
async def full(on_small_disk: Forge) -> AsyncIterator[Full]:
    forge = on_small_disk
    owner = await forge.user("owner")
    project = await forge.project(owner, initialize_with_readme=True)
    repository = forge.repository_path(project["id"])
    full = Full(forge, owner, project, repository, forge.settings.data_dir.parent)
    yield full
    full.make_room()


async def _write(full: Full, what: str) -> Any:
    url = f"/projects/{full.project['id']}/repository"
    if what == "commit":
        body = {"branch": "main", "commit_message": "Add", "content": "x" * 10_000}
        return await full.owner.api.post(f"{url}/files/new.txt", body)
    if what == "branch":
        return await full.owner.api.post(f"{url}/branches", {"branch": "new", "ref": "main"})
    body = {"tag_name": "v1", "ref": "main", "message": "One"}
    return await full.owner.api.post(f"{url}/tags", body)


async def test_the_api_says_that_it_cannot_store(full: Full) -> None:
    full.fill()
    for what in ("commit", "branch", "tag"):
        answer = await _write(full, what)
        assert (answer.status, answer.body, answer.headers.get("Retry-After")) == FULL, what
    await full.owner.api.get(
        f"/projects/{full.project['id']}/repository/files/README%2Emd?ref=main", expect=200
    )
    await full.check()
    full.make_room()
    for what in ("commit", "branch", "tag"):
        answer = await _write(full, what)
        assert answer.status == 201, answer
    await full.check()


async def test_a_push_is_refused_by_git_and_a_clone_works(full: Full, tmp_path: Path) -> None:
    git = Git(tmp_path / "work")
    git.folder.mkdir()
    url = git_url(full.forge, full.project["path_with_namespace"], full.owner)
    full.fill()
    await git("clone", "--quiet", url, ".")
    head = await git("rev-parse", "HEAD")
    await git.commit_files({"small.txt": "small"}, "Small")
    await git.commit_files({"large.bin": os.urandom(1_500_000).hex()}, "Large")
    for pushed in ("HEAD~", "HEAD"):
        said = await git("push", "origin", f"{pushed}:refs/heads/main", fails=True)
        assert "No space left on device" in said or "503" in said, said
    assert await git("ls-remote", "--heads", url) == f"{head}\trefs/heads/main"
    await full.check()
    full.make_room()
    await git("push", "--quiet", "origin", "HEAD~:refs/heads/main")
    await full.check()


async def test_a_project_whose_repository_cannot_be_stored_is_not_made(full: Full) -> None:
    full.fill()
    before = sorted((full.disk / "data/repositories").glob("??/*.git"))
    answer = await full.owner.api.post("/projects", {"name": "another", "initialize_with_readme": True})
    assert (answer.status, answer.body, answer.headers.get("Retry-After")) == FULL
    full.make_room()
    assert sorted((full.disk / "data/repositories").glob("??/*.git")) == before
    assert (await full.owner.api.get("/projects?owned=true&search=another")).body == []
    answer = await full.owner.api.post(
        "/projects", {"name": "another", "initialize_with_readme": True}, expect=201
    )


@attrs.frozen
class Said:
    """Earlier errors of libgit2 in the thread that writes, about another repository (`of`)."""

    of: Path

    def nothing(self) -> None:
        pass

    def not_found(self) -> None:
        pygit2.Repository(str(self.of)).get("0" * 40)

    def system(self) -> None:
        with contextlib.suppress(pygit2.GitError, OSError):
            pygit2.Repository(str(self.of / "none"))

    def invalid(self) -> None:
        with contextlib.suppress(ValueError):
            pygit2.Repository(str(self.of)).lookup_reference("a..b")


@pytest.mark.parametrize("last", ["nothing", "not_found", "system", "invalid"])
async def test_whatever_libgit2_has_said_before(full: Full, tmp_path: Path, last: str) -> None:
    """libgit2 has no error of its own for an object that it could not write."""
    pygit2.init_repository(str(tmp_path / "other"), bare=True)
    repository = open_repository(full.repository)
    repository.revparse_single("main")  # the first read clears the error
    full.fill()
    getattr(Said(tmp_path / "other"), last)()
    with pytest.raises(StorageUnavailableError), storing():
        repository.create_blob(b"x" * 10_000)


async def test_a_merge_request_is_shown_and_not_merged(full: Full) -> None:
    """Even the question whether it could be merged writes files if both sides have changed the same one."""
    project, lines = full.project["id"], [f"line {number}" for number in range(2_000)]
    files = f"/projects/{project}/repository/files/long.txt"

    async def put(branch: str, method: str = "put", **more: str) -> None:
        body = {"branch": branch, "commit_message": "Change", "content": "\n".join(lines), **more}
        assert (await getattr(full.owner.api, method)(files, body)).status in (200, 201)

    await put("main", "post")
    lines[0] = "first"
    await put("new", start_branch="main")
    made = await full.owner.api.post(
        f"/projects/{project}/merge_requests",
        {"source_branch": "new", "target_branch": "main", "title": "Change"},
    )
    lines[0], lines[-1] = "line 0", "last"
    await put("main")
    merge_request = f"/projects/{project}/merge_requests/{made.body['iid']}"
    full.fill()
    shown = await full.owner.api.get(merge_request)
    assert (shown.status, shown.body["detailed_merge_status"]) == (200, "unchecked")
    merged = await full.owner.api.put(f"{merge_request}/merge")
    assert (merged.status, merged.body, merged.headers.get("Retry-After")) == FULL
    await full.check()
    full.make_room()
    shown = await full.owner.api.get(merge_request)
    assert (shown.status, shown.body["detailed_merge_status"]) == (200, "mergeable")
    assert (await full.owner.api.put(f"{merge_request}/merge")).status == 200


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
    """The state of the files in `watched` after a power failure, derived from the traced calls. git names them
    relative to the repository's `folder`, in which it works."""

    folder: Path
    watched: re.Pattern[str]
    synced: set[str] = attrs.field(factory=set)
    #: Names whose content was replaced or deleted in folders that have not been synced since.
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
        if call == "rmdir":  # its content is deleted with it
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
        """Return the state after the calls before this moment."""
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
    """Contents are synced before they get their names, and names before the answer is sent."""
    assert traced.disk_at(time.time()).dirty == set()
    for write in WRITES:
        expected = await write(traced)
        acknowledged = time.time()
        disk = traced.disk_at(acknowledged)
        assert (disk.unsynced, disk.dirty) == ([], set()), write.__name__
        for name in expected:
            assert any(name in path for path in disk.seen), (write.__name__, name)


async def test_every_git_syncs_what_it_writes(tmp_path: Path) -> None:
    """Without strace, this is the only check."""
    await run(["init", "--quiet", "--bare", str(tmp_path)])
    for name, value in (("core.fsync", "objects,derived-metadata,reference"), ("core.fsyncMethod", "fsync")):
        assert (await run(["config", name], repository=tmp_path)).stdout.decode().strip() == value


def test_a_power_cut_is_told_from_the_calls() -> None:
    """The reader of traces finds files that are not synced."""
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
