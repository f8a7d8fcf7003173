"""Large data passes through the API server's process without ever being in its memory as a whole."""

import asyncio
import base64
import hashlib
import io
import json
import os
import secrets
import time
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest

from tests.support.forge import ROOT_TOKEN, Forge
from tests.support.git_client import Git
from tests.support.runner import INFO, RunningJob, running_job
from tests.support.server_process import ServerProcess, server_process
from tests.support.waiting import until
from tests.support.wire import Server, request, running, talk
from tests.support.zips import many_members

MIB = 2**20
#: Maximum growth by a request in bytes: parts on their way to the object store, caches that fill, modules that load
#: late.
ALLOWED = 32 * MIB
#: Bytes that pass through: half as much again as a request may cost.
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
    """Return a project, and a job of it that a runner has taken."""
    project = (await server.root.post("/projects", {"name": f"project-{os.urandom(4).hex()}"})).body
    config = "build: {script: 'true', artifacts: {paths: [x]}}"
    return project, await running_job(server.root, project["id"], config)


async def _size(server: ServerProcess, path: str) -> int:
    read = 0
    headers = {"PRIVATE-TOKEN": ROOT_TOKEN}
    async with server.session.get(f"{server.base}/api/v4{path}", headers=headers) as answer:
        assert answer.status == 200
        async for piece in answer.content.iter_chunked(2**16):
            read += len(piece)
    return read


async def test_a_large_log(server: ServerProcess) -> None:
    """It is sent by one PATCH, and read while it grows and when it is sealed."""
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
    """It is unpacked while it is sent, or not at all."""
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


SIZE = 64 * MIB
HEADERS = {"PRIVATE-TOKEN": ROOT_TOKEN}
#: Maximum growth by a request in bytes, whatever the file's size is: pieces on their way, modules that load late.


@pytest.fixture(scope="module")
async def stored(new_database: Any, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Any]:
    """A server, and the paths of a public project's files: in the API, and as static objects."""
    async with server_process(
        new_database(), tmp_path_factory.mktemp("large"), file_json_limit=16 * MIB
    ) as server:
        project = (await server.root.post("/projects", {"name": "large", "visibility": "public"})).body
        git = Git(tmp_path_factory.mktemp("work"))
        await git.init()
        await git("config", "core.compression", "1")
        await git.commit_files({"large": b"0123456789abcdef" * (SIZE // 16), "small": b"s" * 9 * MIB})
        url = server.base.replace("://", f"://root:{ROOT_TOKEN}@")
        await git("push", "--quiet", f"{url}/{project['path_with_namespace']}.git", "main")
        api = f"{server.base}/api/v4/projects/{project['id']}/repository/files"
        yield server, api, f"{server.base}/{project['path_with_namespace']}/-/raw/main"


async def _read(server: ServerProcess, url: str, **headers: str) -> tuple[int, int, bytes]:
    """Return the status, the number of received bytes, and the first 10 of them."""
    count, first = 0, b""
    async with server.session.get(url, headers=HEADERS | headers) as answer:
        async for piece in answer.content.iter_any():
            first = (first + piece)[:10]
            count += len(piece)
        return answer.status, count, first


async def test_three_readers_of_a_file_of_64_mib(stored: Any) -> None:
    server, api, page = stored
    before = server.peak_memory()
    urls = [f"{api}/large/raw", f"{page}/large", f"{api}/large/raw?ref=main"]
    assert await asyncio.gather(*(_read(server, url) for url in urls)) == [(200, SIZE, b"0123456789")] * 3
    for url in urls:
        assert await _read(server, url, Range=f"bytes={SIZE - 6}-") == (206, 6, b"abcdef")
    refused = await _read(server, f"{api}/large")
    assert (refused[0], refused[2]) == (413, b'{"message"')
    assert server.peak_memory() - before < ALLOWED


async def test_a_file_as_json_is_not_in_memory(stored: Any) -> None:
    server, api, _ = stored
    before = server.peak_memory()
    answers = await asyncio.gather(*(_read(server, f"{api}/small") for _ in range(6)))
    assert {(status, count > 12 * MIB) for status, count, _ in answers} == {(200, True)}
    assert server.peak_memory() - before < ALLOWED


async def test_slow_readers_cost_little(stored: Any) -> None:
    server, api, page = stored
    before = server.peak_memory()
    async with AsyncExitStack() as readers:
        for number in range(12):
            # anonymous callers and users are counted separately, 6 each
            url, headers = (f"{api}/large/raw", HEADERS) if number % 2 else (f"{page}/large", {})
            answer = await readers.enter_async_context(server.session.get(url, headers=headers))
            assert answer.status == 200
            await answer.content.readexactly(MIB)
        assert server.peak_memory() - before < ALLOWED


OBJECT_SIZE = 80 * MIB
#: Maximum growth by a request in bytes: parts on their way to the object store, caches that fill, modules that load
#: late.
OBJECT_ALLOWED = 64 * MIB
CREDENTIALS = {"Authorization": aiohttp.encode_basic_auth("root", ROOT_TOKEN)}


async def _content() -> AsyncIterator[bytes]:
    for number in range(OBJECT_SIZE // MIB):
        yield bytes([number]) * MIB


async def _oid(chunks: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    async for chunk in chunks:
        digest.update(chunk)
    return digest.hexdigest()


async def _fetched(server: ServerProcess, project: dict[str, Any], oid: str) -> str:
    """Return the SHA-256 of the object's bytes as the server sends them."""
    url = f"{server.base}/{project['path_with_namespace']}.git/info/lfs/objects/{oid}"
    async with server.session.get(url, headers=CREDENTIALS) as answer:
        assert answer.status == 200
        return await _oid(answer.content.iter_chunked(2**16))


async def test_a_large_object(new_database: Callable[[], str], tmp_path: Path) -> None:
    oid = await _oid(_content())
    async with (
        server_process(new_database(), tmp_path / "one", allow_local_requests=True) as one,
        server_process(new_database(), tmp_path / "two") as two,
    ):
        project = (await one.root.post("/projects", {"name": "large"})).body
        copy = (await two.root.post("/projects", {"name": "copy"})).body
        before = one.peak_memory(), two.peak_memory()
        lfs = f"{one.base}/{project['path_with_namespace']}.git/info/lfs"
        async with one.session.put(
            f"{lfs}/objects/{oid}/{OBJECT_SIZE}", data=_content(), headers=CREDENTIALS
        ) as answer:
            assert answer.status == 200
        assert await _fetched(one, project, oid) == oid
        url = f"{two.base.replace('://', f'://root:{ROOT_TOKEN}@')}/{copy['path_with_namespace']}.git"
        path = f"/projects/{project['id']}"
        mirror = (await one.root.post(f"{path}/remote_mirrors", {"url": url, "enabled": True})).body
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {OBJECT_SIZE}\n"
        commit = {"branch": "main", "content": pointer, "commit_message": "Begin"}
        assert (await one.root.post(f"{path}/repository/files/large%2Ebin", commit)).status == 201
        async with asyncio.timeout(60):
            while (shown := (await one.root.get(f"{path}/remote_mirrors/{mirror['id']}")).body)[
                "update_status"
            ] in ("none", "started"):
                await asyncio.sleep(0.1)
        assert (shown["update_status"], shown["last_error"]) == ("finished", None)
        assert await _fetched(two, copy, oid) == oid
        grown = one.peak_memory() - before[0], two.peak_memory() - before[1]
        assert max(grown) < OBJECT_ALLOWED


#: Seconds, which are less than any request below takes. 1.5 s are enough for a busy machine to send the next piece.
IMPATIENT = {"header_timeout": 1.0, "body_timeout": 1.5, "keepalive_timeout": 1.0, "send_timeout": 1.5}
#: More than the system buffers for a client that reads nothing.
STREAM_SIZE = 12_000_000


@attrs.frozen
class Large:
    """A server, and the requests for a large file in a public repository."""

    server: Server
    forge: Forge
    requests: dict[str, bytes]


@pytest.fixture(scope="module")
async def large(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Large]:
    folder = tmp_path_factory.mktemp("long_streams")
    async with running("api", new_database, folder, runner_poll_timeout=3, **IMPATIENT) as server:
        forge = server.forge
        assert forge is not None
        project = await forge.project(visibility="public", initialize_with_readme=True)
        content = secrets.token_bytes(STREAM_SIZE)
        oid = hashlib.sha256(content).hexdigest()
        base = f"/{project['path_with_namespace']}.git"
        root = {"Authorization": f"Basic {base64.b64encode(f'x:{ROOT_TOKEN}'.encode()).decode()}"}
        url = f"{forge.base}{base}/info/lfs/objects/{oid}"
        async with forge.session.put(
            f"{url}/{STREAM_SIZE}", data=io.BytesIO(content), headers=root
        ) as answer:
            assert answer.status == 200
        commit = await _commit(forge, project["id"], content)
        wants = f"0032want {commit}\n00000009done\n".encode()
        fetch = request("POST", f"{base}/git-upload-pack", f"Content-Length: {len(wants)}") + wants
        yield Large(
            server, forge, {"clone": fetch, "object": request("GET", f"{base}/info/lfs/objects/{oid}")}
        )


async def _commit(forge: Forge, project_id: int, content: bytes) -> str:
    """Commit half of the content in each of two files, because a request has a size limit; return the last commit."""
    commit = ""
    for name, half in (("a", content[: STREAM_SIZE // 2]), ("b", content[STREAM_SIZE // 2 :])):
        values = {
            "branch": "main",
            "commit_message": "Add",
            "actions": [
                {
                    "action": "create",
                    "file_path": name,
                    "content": base64.b64encode(half).decode(),
                    "encoding": "base64",
                }
            ],
        }
        body = io.BytesIO(json.dumps(values).encode())
        path = f"/projects/{project_id}/repository/commits"
        made = await forge.root.post(path, data=body, headers={"Content-Type": "application/json"})
        assert made.status == 201, made
        commit = made.body["id"]
    return commit


@pytest.mark.parametrize("kind", ["clone", "object"])
async def test_a_slow_reader_gets_everything(large: Large, kind: str) -> None:
    async with talk(large.server.port, takes_little=True) as client:
        await client.send(large.requests[kind])
        assert (await client.head()).startswith(b"HTTP/1.1 200 OK")
        received = 0
        while received < STREAM_SIZE:
            await asyncio.sleep(0.1)
            received += len(await client.reader.readexactly(500_000))


@pytest.mark.parametrize("kind", ["clone", "object"])
async def test_a_reader_that_takes_nothing_is_cut_off(large: Large, kind: str) -> None:
    connections = large.server.connections
    await until(lambda: len(connections) == 0)
    async with talk(large.server.port, takes_little=True) as client:
        await client.send(large.requests[kind])
        assert (await client.head()).startswith(b"HTTP/1.1 200 OK")
        assert len(connections) == 1
        await until(lambda: len(connections) == 0)
        assert len(await client.rest()) < STREAM_SIZE


async def test_a_runner_may_wait_for_a_job(large: Large) -> None:
    runner = await large.forge.root.post("/user/runners", {"runner_type": "instance_type"})
    values = {"token": runner.body["token"], "info": INFO, "last_update": "x"}
    began = time.monotonic()
    taken = await large.forge.root.post("/jobs/request", values)
    assert taken.status == 204, taken
    assert time.monotonic() - began > max(IMPATIENT.values())
