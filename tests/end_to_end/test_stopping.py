"""SIGTERM while clients are in the middle of sending: what they send is taken, and the process ends."""

import asyncio
import hashlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import aiohttp
import attrs

from tests.support.forge import ROOT_TOKEN, Client
from tests.support.git_client import Git
from tests.support.ports import free_port
from tests.support.raw_push import NO_COMMIT, commands, credentials, pack_of
from tests.support.runner import INFO, RunningJob
from tests.support.server_process import ServerProcess, server_process
from tests.support.waiting import seconds_of
from tests.support.wire import request, talk

CONTENT = bytes(range(256)) * 1000
OID = hashlib.sha256(CONTENT).hexdigest()
CONFIG = "build:\n  script: echo\n"
#: Seconds; a process that waits for several things in turn needs several times as many.
PATIENCE = 4.0


@attrs.define
class Body:
    """A body whose second half is held back until `rest` is set. The server has asked for it by the time it begins."""

    content: bytes
    begun: asyncio.Event = attrs.field(factory=asyncio.Event)
    rest: asyncio.Event = attrs.field(factory=asyncio.Event)

    async def pieces(self) -> AsyncIterator[bytes]:
        half = len(self.content) // 2
        yield self.content[:half]
        self.begun.set()
        await self.rest.wait()
        yield self.content[half:]

    async def sent(self, session: aiohttp.ClientSession, method: str, url: str, **headers: str) -> int:
        """The status of the answer."""
        wanted = {"Content-Length": str(len(self.content)), **headers}
        async with session.request(method, url, data=self.pieces(), headers=wanted, expect100=True) as answer:
            if (
                answer.content_type != "application/x-git-receive-pack-result"
            ):  # git's answer may have begun before
                assert answer.headers["Connection"] == "close"
            return answer.status


async def test_what_is_being_sent_arrives_and_nothing_else_begins(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    async with server_process(new_database(), tmp_path / "data", operations_port=free_port()) as server:
        project = (await server.root.post("/projects", {"name": "stop"})).body
        job = await _running_job(server, project["id"])
        sha, push = await _push(tmp_path / "work")
        lfs, artifact = Body(CONTENT), Body(_form(CONTENT))
        basic, url = credentials(ROOT_TOKEN), f"{server.base}/{project['path_with_namespace']}.git"
        sending = [
            push.sent(
                server.session, "POST", f"{url}/git-receive-pack",
                **{"Authorization": basic, "Content-Type": "application/x-git-receive-pack-request"},
            ),
            lfs.sent(
                server.session, "PUT", f"{url}/info/lfs/objects/{OID}/{len(CONTENT)}", Authorization=basic
            ),
            artifact.sent(
                server.session, "POST", f"{server.base}/api/v4/jobs/{job.id}/artifacts",
                **{"JOB-TOKEN": job.token, "Content-Type": "multipart/form-data; boundary=limit"},
            ),
        ]  # fmt: skip
        async with talk(_port(server)) as idle, asyncio.timeout(60):
            await idle.send(request("GET", "/-/liveness"))
            assert (await idle.answer())[0] == 200
            answers = asyncio.gather(*sending)
            for body in (push, lfs, artifact):
                await body.begun.wait()
            server.signal(signal.SIGTERM)
            assert await idle.rest() == b""
            await _until_refused(server)
            async with server.session.get(f"{server.operations}/-/readiness") as answer:
                assert (answer.status, await answer.json()) == (503, {"status": "stopping"})
            for body in (push, lfs, artifact):
                body.rest.set()
            assert await answers == [200, 200, 201]
            assert await server.wait() == 0
        await server.start()
        branch = await server.root.get(f"/projects/{project['id']}/repository/branches/new")
        assert branch.body["commit"]["id"] == sha
        kept = {
            f"{url}/info/lfs/objects/{OID}": {"Authorization": basic},
            f"{server.base}/api/v4/jobs/{job.id}/artifacts": {"JOB-TOKEN": job.token},
        }
        for where, headers in kept.items():
            async with server.session.get(where, headers=headers) as answer:
                assert (answer.status, await answer.read()) == (200, CONTENT)


async def test_a_client_that_stalls_is_cut_off_in_time(
    new_database: Callable[[], str], tmp_path: Path
) -> None:
    settings = {"shutdown_timeout": PATIENCE, "body_timeout": 100, "operations_port": free_port()}
    async with server_process(new_database(), tmp_path / "data", **settings) as server:
        project = (await server.root.post("/projects", {"name": "stop"})).body
        url = f"{server.base}/{project['path_with_namespace']}.git/info/lfs/objects/{OID}/{len(CONTENT)}"
        body = Body(CONTENT)
        sending = asyncio.create_task(
            body.sent(server.session, "PUT", url, Authorization=credentials(ROOT_TOKEN))
        )
        await body.begun.wait()
        server.signal(signal.SIGTERM)
        assert await seconds_of(server.wait) < 2.75 * PATIENCE
        assert isinstance((await asyncio.gather(sending, return_exceptions=True))[0], aiohttp.ClientError)


async def _push(folder: Path) -> tuple[str, Body]:
    """A commit, and the push of it to a branch `new`."""
    git = Git(folder)
    await git.init()
    sha = await git.commit("New", **{"new.txt": "new"})
    return sha, Body(commands((NO_COMMIT, sha, "refs/heads/new")) + await pack_of(git, "main"))


def _form(content: bytes) -> bytes:
    head = b'--limit\r\nContent-Disposition: form-data; name="file"; filename="artifacts.zip"\r\n\r\n'
    return head + content + b"\r\n--limit--\r\n"


def _port(server: ServerProcess) -> int:
    return int(server.base.rpartition(":")[2])


async def _until_refused(server: ServerProcess) -> None:
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", _port(server))
        except ConnectionRefusedError:
            return
        writer.close()
        await asyncio.sleep(0.01)


async def _running_job(server: ServerProcess, project: int) -> RunningJob:
    files = f"/projects/{project}/repository/files/%2Egitlab-ci%2Eyml"
    body = {"branch": "main", "content": CONFIG, "commit_message": "Begin [ci skip]"}
    assert (await server.root.post(files, body)).status == 201
    assert (await server.root.post(f"/projects/{project}/pipeline", {"ref": "main"})).status == 201
    made = await server.root.post("/user/runners", {"runner_type": "project_type", "project_id": project})
    taken = await server.root.post("/jobs/request", {"token": made.body["token"], "info": INFO})
    assert taken.status == 201, taken
    return RunningJob(Client(server.session, server.base), taken.body)
