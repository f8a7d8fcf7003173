"""What starts pipelines, as far as a change in the table needs it: a part of `Things`."""

from typing import Any

from tests.support.forge import Client


class ThingsOfPipelines:
    async def get(self, name: str) -> Any:
        raise NotImplementedError

    async def post(self, path: str, **values: Any) -> Any:
        raise NotImplementedError

    async def make_trigger(self) -> int:
        return int((await self.post("/projects/{project}/triggers", description="nightly"))["id"])

    async def make_schedule(self) -> int:
        path, values = "/projects/{project}/pipeline_schedules", {"ref": "main", "cron": "0 4 * * *"}
        return int((await self.post(path, description="nightly", **values))["id"])

    async def make_schedule_variable(self) -> str:
        path = "/projects/{project}/pipeline_schedules/{schedule}/variables"
        return str((await self.post(path, key="KEY", value="x"))["key"])

    async def make_maintainer(self) -> Client:
        await self.post("/projects/{project}/members", user_id="{user}", access_level=40)
        client: Client = (await self.get("person")).api
        return client
