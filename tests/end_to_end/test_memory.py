"""What is large passes through the API server's process without ever being in its memory as a whole."""

import asyncio
import io
import os
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.support.forge import ROOT_TOKEN, Client
from tests.support.git_client import Git
from tests.support.runner import INFO, RunningJob
from tests.support.server_process import ServerProcess, server_process
from tests.support.zips import many_members

MIB = 2**20
#: What a request may cost: parts on their way to the object store, caches that fill, modules that load late.
ALLOWED = 32 * MIB
#: What passes through: half as much again as a request may cost.
LARGE = 48 * MIB


@pytest.fixture(scope="module")
async def server(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[ServerProcess]:
    async with server_process(new_database(), tmp_path_factory.mktemp("memory")) as server:
        yield server


async def _large() -> AsyncIterator[bytes]:
    for number in range(LARGE // MIB):
        yield bytes([97 + number % 26]) * MIB


async def _running_job(server: ServerProcess) -> tuple[dict[str, Any], RunningJob]:
    """A project, and a job of it in a runner's hands."""
    project = (await server.root.post("/projects", {"name": f"project-{os.urandom(4).hex()}"})).body
    config = {
        "branch": "main",
        "content": "build: {script: 'true', artifacts: {paths: [x]}}",
        "commit_message": "Begin",
    }
    path = f"/projects/{project['id']}"
    assert (await server.root.post(f"{path}/repository/files/%2Egitlab-ci%2Eyml", config)).status == 201
    wanted = {"runner_type": "project_type", "project_id": project["id"]}
    token = (await server.root.post("/user/runners", wanted)).body["token"]
    async with asyncio.timeout(20):
        while (
            taken := await server.root.post("/jobs/request", {"token": token, "info": INFO})
        ).status != 201:
            await asyncio.sleep(0.05)
    return project, RunningJob(Client(server.session, server.base), taken.body)


async def _size(server: ServerProcess, path: str) -> int:
    read = 0
    headers = {"PRIVATE-TOKEN": ROOT_TOKEN}
    async with server.session.get(f"{server.base}/api/v4{path}", headers=headers) as answer:
        assert answer.status == 200
        async for piece in answer.content.iter_chunked(2**16):
            read += len(piece)
    return read


async def test_a_large_log(server: ServerProcess) -> None:
    """It goes in by one PATCH, comes out while it grows and when it is sealed."""
    project, job = await _running_job(server)
    log = f"/projects/{project['id']}/jobs/{job.id}/trace"
    before = server.peak_memory()
    headers = {"JOB-TOKEN": job.token, "Content-Range": f"0-{LARGE - 1}"}
    answer = await job.client.request("PATCH", f"/jobs/{job.id}/trace", data=_large(), headers=headers)
    assert (answer.status, answer.headers["Range"]) == (202, f"0-{LARGE}")
    assert await _size(server, log) == LARGE
    await job.finish()
    assert await _size(server, log) == LARGE
    assert server.peak_memory() - before < ALLOWED


async def test_large_artifacts(server: ServerProcess) -> None:
    project, job = await _running_job(server)
    before = server.peak_memory()
    form = aiohttp.FormData()
    form.add_field("file", _large(), filename="artifacts.raw")
    answer = await job.client.post(
        f"/jobs/{job.id}/artifacts?artifact_format=raw&artifact_type=archive",
        data=form,
        headers={"JOB-TOKEN": job.token},
    )
    assert answer.status == 201, answer
    await job.finish()
    assert await _size(server, f"/projects/{project['id']}/jobs/{job.id}/artifacts") == LARGE
    assert server.peak_memory() - before < ALLOWED


async def test_one_file_of_an_archive_of_150_000(server: ServerProcess) -> None:
    """Its directory is read once, when it is uploaded."""
    project, job = await _running_job(server)
    before = server.peak_memory()
    await _upload(job, b"".join(many_members(150_000)))
    await job.finish()
    for number in range(10):
        path = f"/projects/{project['id']}/jobs/{job.id}/artifacts/d/{number:08}"
        assert await _size(server, path) == 1
    assert server.peak_memory() - before < ALLOWED


@pytest.mark.parametrize(("method", "status"), [(zipfile.ZIP_DEFLATED, 200), (zipfile.ZIP_BZIP2, 404)])
async def test_a_large_file_in_a_small_archive(server: ServerProcess, method: int, status: int) -> None:
    """It is unpacked as it is sent, or not at all."""
    project, job = await _running_job(server)
    before = server.peak_memory()
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", method) as writer, writer.open("bomb", "w") as file:
        for _ in range(LARGE // MIB):
            file.write(bytes(MIB))
    await _upload(job, bomb.getvalue())
    await job.finish()
    path = f"/projects/{project['id']}/jobs/{job.id}/artifacts/bomb"
    if status == 200:
        assert await _size(server, path) == LARGE
    else:
        assert (await server.root.get(path)).status == status
    assert server.peak_memory() - before < ALLOWED


async def _upload(job: RunningJob, content: bytes) -> None:
    answer = await job.upload(content, artifact_type="archive", artifact_format="zip")
    assert answer.status == 201, answer


async def test_a_large_push_and_clone(server: ServerProcess, tmp_path: Path) -> None:
    project = (await server.root.post("/projects", {"name": "large", "visibility": "public"})).body
    git = Git(tmp_path / "large")
    await git.init()
    await git("config", "core.compression", "0")
    await git.commit_files({"large": os.urandom(LARGE)})
    before = server.peak_memory()
    url = server.base.replace("://", f"://root:{ROOT_TOKEN}@")
    await git("push", "--quiet", f"{url}/{project['path_with_namespace']}.git", "main")
    await git("clone", "--quiet", "--bare", f"{server.base}/{project['path_with_namespace']}.git", "again")
    assert server.peak_memory() - before < ALLOWED
