"""What legitimately takes long outlives all time limits, as long as its client takes something of it."""

import asyncio
import base64
import hashlib
import io
import json
import secrets
import time
from collections.abc import AsyncIterator, Callable

import attrs
import pytest

from tests.support.forge import ROOT_TOKEN, Forge
from tests.support.runner import INFO
from tests.support.waiting import until
from tests.support.wire import Server, request, running, talk

#: Seconds: less than anything below takes. 1.5 s are enough for a busy machine to send the next piece.
IMPATIENT = {"header_timeout": 1.0, "body_timeout": 1.5, "keepalive_timeout": 1.0, "send_timeout": 1.5}
#: More than the system takes for a client that reads nothing.
SIZE = 12_000_000


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
        content = secrets.token_bytes(SIZE)
        oid = hashlib.sha256(content).hexdigest()
        base = f"/{project['path_with_namespace']}.git"
        root = {"Authorization": f"Basic {base64.b64encode(f'x:{ROOT_TOKEN}'.encode()).decode()}"}
        url = f"{forge.base}{base}/info/lfs/objects/{oid}"
        async with forge.session.put(f"{url}/{SIZE}", data=io.BytesIO(content), headers=root) as answer:
            assert answer.status == 200
        commit = await _commit(forge, project["id"], content)
        wants = f"0032want {commit}\n00000009done\n".encode()
        fetch = request("POST", f"{base}/git-upload-pack", f"Content-Length: {len(wants)}") + wants
        yield Large(
            server, forge, {"clone": fetch, "object": request("GET", f"{base}/info/lfs/objects/{oid}")}
        )


async def _commit(forge: Forge, project_id: int, content: bytes) -> str:
    """Half of the content in each of two files, since a request is not to be larger; the last commit."""
    commit = ""
    for name, half in (("a", content[: SIZE // 2]), ("b", content[SIZE // 2 :])):
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
        while received < SIZE:
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
        assert len(await client.rest()) < SIZE


async def test_a_runner_may_wait_for_a_job(large: Large) -> None:
    runner = await large.forge.root.post("/user/runners", {"runner_type": "instance_type"})
    values = {"token": runner.body["token"], "info": INFO, "last_update": "x"}
    began = time.monotonic()
    taken = await large.forge.root.post("/jobs/request", values)
    assert taken.status == 204, taken
    assert time.monotonic() - began > max(IMPATIENT.values())
