"""`kill -9` of the API server while runners send logs: what was acknowledged is there, once, and jobs run once."""

import asyncio
import os
import random
import signal
import sys
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from aiohttp.test_utils import unused_port

from tests.support.forge import ROOT_TOKEN, Client
from tests.support.runner import INFO, RunningJob, checksum

JOBS = 20
CONFIG = "".join(f"job{number}: {{script: 'true'}}\n" for number in range(JOBS))


@attrs.frozen
class Server:
    """`python -m api_server` on a port of its own."""

    environment: dict[str, str]
    base: str
    session: aiohttp.ClientSession

    @property
    def root(self) -> Client:
        return Client(self.session, self.base, ROOT_TOKEN)

    async def start(self) -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "api_server",
            env=self.environment,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        for _ in range(300):
            try:
                async with self.session.get(f"{self.base}/-/readiness") as answer:
                    if answer.status == 200:
                        return process
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
        raise AssertionError("the server does not start")


@attrs.define
class Sender:
    """One runner's job: its log is as long as it has time for, and `acknowledged` bytes of it are."""

    job: RunningJob
    random: random.Random
    log: bytes = b""
    acknowledged: int = 0

    async def send(self, until: asyncio.Event) -> None:
        """Appends piece after piece until told to stop, or until the server is gone."""
        while not until.is_set():
            if self.acknowledged == len(self.log):
                self.log += self.random.randbytes(self.random.choice([1, 200, 20_000]))
            try:
                answer = await self.job.append(self.log[self.acknowledged :], self.acknowledged)
            except (aiohttp.ClientError, ConnectionError):
                return
            assert answer.status in (202, 416), answer
            acknowledged = int(answer.headers["Range"].removeprefix("0-"))
            assert acknowledged >= self.acknowledged, "acknowledged bytes are gone"
            self.acknowledged = acknowledged


async def test_acknowledged_bytes_survive_kill_9_once(new_database: Any, tmp_path: Path) -> None:
    port = unused_port()
    environment = os.environ | {
        "FORGELET_API_DATABASE_URL": new_database(),
        "FORGELET_API_DATA_DIR": str(tmp_path),
        "FORGELET_API_PORT": str(port),
        "FORGELET_API_ROOT_TOKEN": ROOT_TOKEN,
    }
    async with aiohttp.ClientSession() as session:
        server = Server(environment, f"http://127.0.0.1:{port}", session)
        process = await server.start()
        try:
            project, runner = await _project_with_jobs(server)
            senders = [Sender(await _taken(server, runner), random.Random(n)) for n in range(JOBS)]
            stop = asyncio.Event()
            sending = asyncio.gather(*(sender.send(stop) for sender in senders))
            while sum(sender.acknowledged for sender in senders) < 1_000_000:
                await asyncio.sleep(0.05)
            process.send_signal(signal.SIGKILL)
            await process.wait()
            await sending
            process = await server.start()
            resumed = asyncio.gather(*(sender.send(stop) for sender in senders))
            await asyncio.sleep(0.3)
            stop.set()
            await resumed
            assert len({sender.job.id for sender in senders}) == JOBS
            assert (await _poll(server, runner))[0] == 204
            await asyncio.gather(*(_check(server, project, sender) for sender in senders))
            shown = (await server.root.get(f"/projects/{project}/jobs?per_page=100")).body
            assert [job["status"] for job in shown] == ["success"] * JOBS
        finally:
            if process.returncode is None:
                process.kill()
            await process.wait()


async def _project_with_jobs(server: Server) -> tuple[int, str]:
    """A project's id, with JOBS jobs pending in it, and the token of a runner for them."""
    project = (await server.root.post("/projects", {"name": "crash"})).body["id"]
    files = f"/projects/{project}/repository/files/%2Egitlab-ci%2Eyml"
    body = {"branch": "main", "content": CONFIG, "commit_message": "Begin [ci skip]"}
    assert (await server.root.post(files, body)).status == 201
    assert (await server.root.post(f"/projects/{project}/pipeline", {"ref": "main"})).status == 201
    made = await server.root.post("/user/runners", {"runner_type": "project_type", "project_id": project})
    return project, made.body["token"]


async def _poll(server: Server, token: str) -> tuple[int, Any]:
    answer = await server.root.post("/jobs/request", {"token": token, "info": INFO})
    return answer.status, answer.body


async def _taken(server: Server, token: str) -> RunningJob:
    status, payload = await _poll(server, token)
    assert status == 201
    return RunningJob(Client(server.session, server.base), payload)


async def _check(server: Server, project: int, sender: Sender) -> None:
    """The rest of the log arrives, the job ends, and the log is what was sent."""
    if sender.acknowledged < len(sender.log):
        answer = await sender.job.append(sender.log[sender.acknowledged :], sender.acknowledged)
        assert answer.status == 202
    await sender.job.finish(output=checksum(sender.log))
    url = f"{server.base}/api/v4/projects/{project}/jobs/{sender.job.id}/trace"
    async with server.session.get(url, headers={"PRIVATE-TOKEN": ROOT_TOKEN}) as answer:
        assert await answer.read() == sender.log
