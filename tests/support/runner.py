"""A runner as the server sees it: the requests that runner programs send, without running anything."""

import io
import zlib
from typing import Any

import aiohttp
import attrs

from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.web.context import SERVICES
from tests.support.forge import Answer, Client, Forge
from tests.support.waiting import until

INFO = {
    "name": "test",
    "version": "1",
    "revision": "r",
    "platform": "linux",
    "architecture": "amd64",
    "executor": "sh",
}


@attrs.frozen
class RunningJob:
    """A job that this runner holds."""

    client: Client
    payload: dict[str, Any]

    @property
    def id(self) -> int:
        return int(self.payload["id"])

    @property
    def token(self) -> str:
        return str(self.payload["token"])

    @property
    def variables(self) -> dict[str, str]:
        return {one["key"]: one["value"] for one in self.payload["variables"]}

    async def append(self, text: bytes, start: int, **options: Any) -> Answer:
        headers = {"JOB-TOKEN": self.token, "Content-Range": f"{start}-{start + len(text) - 1}"}
        return await self.client.request(
            "PATCH",
            f"/jobs/{self.id}/trace",
            data=text,
            headers=headers | options.pop("headers", {}),
            **options,
        )

    async def log(self, text: bytes) -> None:
        """Send a whole log in one piece."""
        answer = await self.append(text, 0)
        assert answer.status == 202, answer

    async def update(self, state: str | None, **values: Any) -> Answer:
        return await self.client.put(f"/jobs/{self.id}", {"token": self.token, "state": state} | values)

    async def finish(self, state: str = "success", **values: Any) -> None:
        answer = await self.update(state, **values)
        assert answer.status == 200, answer

    async def upload(self, content: bytes, name: str = "artifacts.zip", **fields: str) -> Answer:
        """Upload a file as the official runner does, with its properties in the query."""
        form = aiohttp.FormData()
        form.add_field("file", io.BytesIO(content), filename=name)
        query = "&".join(f"{key}={value.replace(' ', '%20')}" for key, value in fields.items())
        return await self.client.post(
            f"/jobs/{self.id}/artifacts?{query}", data=form, headers={"JOB-TOKEN": self.token}
        )


@attrs.frozen
class Runner:
    """A registered runner."""

    forge: Forge
    id: int
    token: str

    async def poll(self, **values: Any) -> Answer:
        body = {"token": self.token, "system_id": "s_test", "info": INFO} | values
        return await self.forge.anonymous.post("/jobs/request", body)

    async def job(self, **values: Any) -> RunningJob:
        """Take a waiting job."""
        answer = await self.poll(**values)
        assert answer.status == 201, answer
        return RunningJob(self.forge.anonymous, answer.body)


async def a_runner(forge: Forge, **values: Any) -> Runner:
    """Create a runner; without `project_id` or `group_id`, it is a runner of the instance."""
    kind = (
        "project_type"
        if "project_id" in values
        else "group_type"
        if "group_id" in values
        else "instance_type"
    )
    answer = await forge.root.post("/user/runners", {"runner_type": kind} | values)
    assert answer.status == 201, answer
    return Runner(forge, answer.body["id"], answer.body["token"])


async def until_waiting(forge: Forge, *runners: Runner, requests: int | None = None) -> None:
    """Wait until the runners have this many requests that wait for a job: one each if `requests` is not given."""
    ids, pending = {runner.id for runner in runners}, forge.server.app[SERVICES][PENDING_JOBS]
    expected = len(runners) if requests is None else requests
    await until(lambda: sum(waiting.runner_id in ids for waiting in pending._waiting) == expected, seconds=60)


def checksum(text: bytes) -> dict[str, Any]:
    """Return the values that a runner sends about its complete log."""
    return {"checksum": f"crc32:{zlib.crc32(text):08x}", "bytesize": len(text)}


async def running_job(root: Client, project_id: int, config: str) -> RunningJob:
    """Return the job of a project's first pipeline, which a runner of that project has taken. `root` may be of any
    server."""
    files = f"/projects/{project_id}/repository/files/%2Egitlab-ci%2Eyml"
    body = {"branch": "main", "content": config, "commit_message": "Begin [ci skip]"}
    assert (await root.post(files, body)).status == 201
    assert (await root.post(f"/projects/{project_id}/pipeline", {"ref": "main"})).status == 201
    runner = await root.post("/user/runners", {"runner_type": "project_type", "project_id": project_id})
    polled = await root.post("/jobs/request", {"token": runner.body["token"], "info": INFO})
    assert polled.status == 201, polled
    return RunningJob(Client(root.session, root.base), polled.body)
