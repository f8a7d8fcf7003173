"""A merge request, and a receiver of the service's requests about it."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs

from api_server.status_checks.dispatcher import DISPATCHER, RANDOM
from api_server.web.context import SERVICES
from api_server.web.routes import Role
from tests.api_server.status_checks.receiver import Receiver, running_receiver
from tests.support.forge import Answer, Forge, Person, new_name, running_forge
from tests.support.merge_requests import new_project, open_merge_request


@attrs.frozen
class Gate:
    """A project with a merge request, and a receiver. `author` may approve; `owner` may do everything."""

    forge: Forge
    receiver: Receiver
    url: str
    one: str
    sha: str
    branch: dict[str, Any]
    owner: Person
    author: Person

    async def check(self, **values: Any) -> dict[str, Any]:
        sent = {
            "name": new_name("check"),
            "external_url": f"{self.receiver.url}/{new_name('check')}",
        } | values
        answer = await self.owner.api.post(f"{self.url}/external_status_checks", sent)
        assert answer.status == 201, answer
        return dict(answer.body)

    async def shown(self, check: dict[str, Any]) -> dict[str, Any]:
        listed = (await self.owner.api.get(f"{self.url}/external_status_checks?per_page=100")).body
        return next(one for one in listed if one["id"] == check["id"])

    async def entry(self, check: dict[str, Any]) -> dict[str, Any] | None:
        listed = (await self.owner.api.get(f"{self.one}/status_checks?per_page=100")).body
        return next((one for one in listed if one["id"] == check["id"]), None)

    async def respond(self, check: dict[str, Any], person: Person | None = None, **values: Any) -> Answer:
        sent = {"sha": self.sha, "external_status_check_id": check["id"]} | values
        return await (person or self.author).api.post(f"{self.one}/status_check_responses", sent)

    async def retry(self, check: dict[str, Any]) -> Answer:
        return await self.author.api.post(f"{self.one}/status_checks/{check['id']}/retry")

    async def sent_to(self, check: dict[str, Any]) -> list[dict[str, Any]]:
        """Send everything that is due; return the payloads that have arrived for this check."""
        await self.forge.server.app[SERVICES][DISPATCHER].deliver_due()
        return [one.payload for one in self.receiver.received if check["external_url"].endswith(one.path)]


@asynccontextmanager
async def running_gate(database_url: str, folder: Path) -> AsyncIterator[Gate]:
    """Run a gate on a server that sends nothing by itself."""

    def change(app: Any) -> None:
        app[SERVICES][RANDOM] = lambda: 0.0

    settings = {"work": False, "allow_local_requests": True}
    async with (
        running_receiver() as receiver,
        running_forge(database_url, folder, change, **settings) as forge,
    ):
        owner, author = await forge.user("owner"), await forge.user("author")
        project = await new_project(forge, owner)
        await forge.member("projects", project["id"], author, Role.DEVELOPER)
        opened = await open_merge_request(author, project)
        url = f"/projects/{project['id']}"
        yield Gate(
            forge=forge,
            receiver=receiver,
            url=url,
            one=f"{url}/merge_requests/{opened['iid']}",
            sha=opened["sha"],
            branch=(await owner.api.get(f"{url}/protected_branches/main")).body,
            owner=owner,
            author=author,
        )
