"""A runner as the server meets it: the calls that runner programs make, without a program that runs anything."""

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
    """A job in this runner's hands."""

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
        """A whole log in one piece."""
        answer = await self.append(text, 0)
        assert answer.status == 202, answer

    async def update(self, state: str | None, **values: Any) -> Answer:
        return await self.client.put(f"/jobs/{self.id}", {"token": self.token, "state": state} | values)

    async def finish(self, state: str = "success", **values: Any) -> None:
        answer = await self.update(state, **values)
        assert answer.status == 200, answer

    async def upload(self, content: bytes, name: str = "artifacts.zip", **fields: str) -> Answer:
        """As the official runner does: what is said of the file is in the query."""
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
        """A job that is waiting."""
        answer = await self.poll(**values)
        assert answer.status == 201, answer
        return RunningJob(self.forge.anonymous, answer.body)


async def a_runner(forge: Forge, **values: Any) -> Runner:
    """`project_id`, `group_id`, or neither for a runner of the instance."""
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
    """What a runner says of the log it has sent."""
    return {"checksum": f"crc32:{zlib.crc32(text):08x}", "bytesize": len(text)}


async def running_job(root: Client, project_id: int, config: str) -> RunningJob:
    """The job of a project's first pipeline, in the hands of a runner of that project. `root` may be of any server."""
    files = f"/projects/{project_id}/repository/files/%2Egitlab-ci%2Eyml"
    body = {"branch": "main", "content": config, "commit_message": "Begin [ci skip]"}
    assert (await root.post(files, body)).status == 201
    assert (await root.post(f"/projects/{project_id}/pipeline", {"ref": "main"})).status == 201
    runner = await root.post("/user/runners", {"runner_type": "project_type", "project_id": project_id})
    polled = await root.post("/jobs/request", {"token": runner.body["token"], "info": INFO})
    assert polled.status == 201, polled
    return RunningJob(Client(root.session, root.base), polled.body)
