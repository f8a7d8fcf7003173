"""`kill -9` of the API server while runners send logs: what was acknowledged is there, once, and jobs run once."""

import asyncio
import random
from pathlib import Path
from typing import Any

import aiohttp
import attrs

from tests.support.forge import ROOT_TOKEN, Client
from tests.support.runner import INFO, RunningJob, checksum
from tests.support.server_process import ServerProcess, server_process
from tests.support.waiting import until

JOBS = 6
CONFIG = "".join(f"job{number}: {{script: 'true'}}\n" for number in range(JOBS))


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
    async with server_process(new_database(), tmp_path) as server:
        project, runner = await _project_with_jobs(server)
        senders = [Sender(await _taken(server, runner), random.Random(n)) for n in range(JOBS)]
        stop = asyncio.Event()
        sending = asyncio.gather(*(sender.send(stop) for sender in senders))
        while sum(sender.acknowledged for sender in senders) < 300_000:
            await asyncio.sleep(0.05)
        server.kill()
        await server.wait()
        await sending
        await server.start()
        before = sum(sender.acknowledged for sender in senders)
        resumed = asyncio.gather(*(sender.send(stop) for sender in senders))
        await until(lambda: sum(sender.acknowledged for sender in senders) > before)
        stop.set()
        await resumed
        assert len({sender.job.id for sender in senders}) == JOBS
        assert (await _poll(server, runner))[0] == 204
        await asyncio.gather(*(_check(server, project, sender) for sender in senders))
        shown = (await server.root.get(f"/projects/{project}/jobs?per_page=100")).body
        assert [job["status"] for job in shown] == ["success"] * JOBS


async def _project_with_jobs(server: ServerProcess) -> tuple[int, str]:
    """A project's id, with JOBS jobs pending in it, and the token of a runner for them."""
    project = (await server.root.post("/projects", {"name": "crash"})).body["id"]
    files = f"/projects/{project}/repository/files/%2Egitlab-ci%2Eyml"
    body = {"branch": "main", "content": CONFIG, "commit_message": "Begin [ci skip]"}
    assert (await server.root.post(files, body)).status == 201
    assert (await server.root.post(f"/projects/{project}/pipeline", {"ref": "main"})).status == 201
    made = await server.root.post("/user/runners", {"runner_type": "project_type", "project_id": project})
    return project, made.body["token"]


async def _poll(server: ServerProcess, token: str) -> tuple[int, Any]:
    answer = await server.root.post("/jobs/request", {"token": token, "info": INFO})
    return answer.status, answer.body


async def _taken(server: ServerProcess, token: str) -> RunningJob:
    status, payload = await _poll(server, token)
    assert status == 201
    return RunningJob(Client(server.session, server.base), payload)


async def _check(server: ServerProcess, project: int, sender: Sender) -> None:
    """The rest of the log arrives, the job ends, and the log is what was sent."""
    if sender.acknowledged < len(sender.log):
        answer = await sender.job.append(sender.log[sender.acknowledged :], sender.acknowledged)
        assert answer.status == 202
    await sender.job.finish(output=checksum(sender.log))
    url = f"{server.base}/api/v4/projects/{project}/jobs/{sender.job.id}/trace"
    async with server.session.get(url, headers={"PRIVATE-TOKEN": ROOT_TOKEN}) as answer:
        assert await answer.read() == sender.log
