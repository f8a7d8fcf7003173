"""What has been acknowledged survives a power cut: its bytes, its name, and the names of all folders above it."""

import asyncio
import contextlib
import hashlib
import io
import resource
import shutil
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from api_server.state import disk
from api_server.state.object_store import open_objects
from tests.support.forge import ROOT_TOKEN, Client
from tests.support.runner import INFO, RunningJob
from tests.support.server_process import ServerProcess, server_process


def chain(file: Path, root: Path) -> list[Path]:
    """All that has to be on the disk for `file` to be there."""
    return [file, *(folder for folder in file.parents if folder.is_relative_to(root))]


async def test_an_object_and_all_folders_above_it_are_synced_before_it_is_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[Path] = []
    sync = disk.sync

    def noted(path: Path) -> None:
        existed = path.exists()
        sync(path)
        if path.is_relative_to(tmp_path):  # the server that tests share has files to sync meanwhile
            assert existed
            synced.append(path)

    monkeypatch.setattr(disk, "sync", noted)
    objects = open_objects(f"file://{tmp_path}/new/store", tmp_path)
    assert synced == [tmp_path, tmp_path / "new"]  # that have a name more now

    async def content() -> AsyncIterator[bytes]:
        yield b"content"

    for key in ("projects/1/jobs/2/a", "projects/1/jobs/2/b", "audit/heads/1"):
        synced.clear()
        await objects.put(key, content())
        file, *folders = chain(tmp_path / "new/store" / key, tmp_path / "new/store")
        assert synced[0].name.startswith(f"{file.name}#"), (
            "by its name only once all its bytes are on the disk"
        )
        assert synced[1:] == folders


@pytest.fixture(scope="module")
async def running(new_database: Any, tmp_path_factory: Any) -> AsyncIterator[tuple[ServerProcess, Path]]:
    """A server in a process of its own, and its data directory."""
    data_dir = tmp_path_factory.mktemp("durability") / "data"
    data_dir.mkdir()
    async with server_process(new_database(), data_dir, disk_reserve=0) as server:
        yield server, data_dir


@contextlib.asynccontextmanager
async def traced(server: ServerProcess, output: Path) -> AsyncIterator[None]:
    """Writes down the system calls that put things on the disk, and those that answer."""
    strace = await asyncio.create_subprocess_exec(
        "strace", "-f", "-y", "-s", "40", "-e", "trace=fsync,fdatasync,rename,renameat,renameat2,sendto,write,writev",
        "-o", output, "-p", str(server.pid),
        stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert strace.stderr is not None
    attached = (await strace.stderr.readline()).decode()
    if "attached" not in attached:
        pytest.skip(f"strace may not look at processes: {attached.strip()}")
    reading = asyncio.ensure_future(strace.stderr.read())
    yield
    strace.terminate()
    await strace.wait()
    await reading


@pytest.mark.skipif(shutil.which("strace") is None, reason="there is no strace")
async def test_system_calls_of_acknowledged_uploads(
    running: tuple[ServerProcess, Path], tmp_path: Path
) -> None:
    """Artifacts, LFS objects and logs: all of them is on the disk before the answer goes out."""
    (server, data_dir), trace = running, tmp_path / "trace"
    path, job = await _running_job(server, "traced")
    async with traced(server, trace):
        content = b"content of an object"
        oid = hashlib.sha256(content).hexdigest()
        credentials = b64encode(f"any:{ROOT_TOKEN}".encode()).decode()
        stored = await server.root.request(
            "PUT", f"{server.base}/{path}.git/info/lfs/objects/{oid}/{len(content)}", data=io.BytesIO(content),
            headers={"Authorization": f"Basic {credentials}"},
        )  # fmt: skip
        assert stored.status == 200
        assert (await job.upload(b"content")).status == 201
        await job.log(b"a line\n")
        await job.finish()
        objects = data_dir / "objects"
        async with asyncio.timeout(20):
            while not (logs := list(objects.glob("projects/*/jobs/*/log-*"))):
                await asyncio.sleep(0.02)
            while f"<{objects}>)" not in _after(trace, logs[0]):
                await asyncio.sleep(0.02)
    lines = trace.read_text(errors="replace").splitlines()
    (lfs,) = objects.glob("projects/*/lfs/*")
    artifacts = [file for file in objects.glob("projects/*/jobs/*/*") if not file.name.startswith("log-")]
    assert len(artifacts) == 2  # with its index
    for file, answer in [(lfs, "HTTP/1.1 200"), *((file, "HTTP/1.1 201") for file in artifacts)]:
        renamed = _line(lines, "rename", str(file), 0)
        answered = _line(lines, f'"{answer}', "", renamed)
        assert _line(lines, "fsync(", f"<{file}#", 0) < renamed
        for folder in chain(file, objects)[1:]:
            assert _line(lines, "fsync(", f"<{folder}>", renamed) < answered, folder


async def test_a_disk_that_is_full_is_503_until_there_is_room(running: tuple[ServerProcess, Path]) -> None:
    """Files may not grow beyond a megabyte, which the process meets as it meets a full disk."""
    server, data_dir = running
    large = bytes(3 * 2**20)
    _, job = await _running_job(server, "full")
    limit = resource.prlimit(server.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (2**20, limit[1]))
    refused = await job.upload(large)
    assert (refused.status, refused.headers["Retry-After"], refused.body) == (
        503,
        "5",
        {"message": "503 Service Unavailable"},
    )
    assert [
        file for file in (data_dir / "objects/projects").rglob(f"jobs/{job.id}/*") if file.is_file()
    ] == []
    assert (await job.upload(b"small", artifact_type="junit", artifact_format="raw")).status == 201
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, limit)
    assert (await job.upload(large)).status == 201


def _after(trace: Path, file: Path) -> str:
    return trace.read_text(errors="replace").partition(str(file))[2]


def _line(lines: list[str], call: str, about: str, after: int) -> int:
    """The number of the first line from `after` on that has both."""
    found = (n for n in range(after, len(lines)) if call in lines[n] and about in lines[n])
    number = next(found, None)
    assert number is not None, (call, about)
    return number


async def _running_job(server: ServerProcess, name: str) -> tuple[str, RunningJob]:
    project = (await server.root.post("/projects", {"name": name})).body
    files = f"/projects/{project['id']}/repository/files/%2Egitlab-ci%2Eyml"
    body = {"branch": "main", "content": "one: {script: 'true'}", "commit_message": "Begin [ci skip]"}
    assert (await server.root.post(files, body)).status == 201
    assert (await server.root.post(f"/projects/{project['id']}/pipeline", {"ref": "main"})).status == 201
    made = await server.root.post(
        "/user/runners", {"runner_type": "project_type", "project_id": project["id"]}
    )
    polled = await server.root.post("/jobs/request", {"token": made.body["token"], "info": INFO})
    assert polled.status == 201
    return project["path_with_namespace"], RunningJob(Client(server.session, server.base), polled.body)
