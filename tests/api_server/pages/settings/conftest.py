"""A private project in a group, and the browsers of people in each role."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest

from tests.support.browser import Browser, browsing
from tests.support.forge import Forge, Person


@attrs.frozen
class Scene:
    """The project, its group, and `people` of the project by role; `owner` owns the group and therefore the project."""

    forge: Forge
    owner: Person
    group: dict[str, Any]
    project: dict[str, Any]
    people: dict[str, Person]

    @property
    def of_project(self) -> str:
        """The address of the project's page."""
        return f"/{self.project['path_with_namespace']}"

    @property
    def of_group(self) -> str:
        return f"/groups/{self.group['full_path']}"

    @property
    def api(self) -> str:
        """The path of the project in the API."""
        return f"/projects/{self.project['id']}"

    def browsing(self, role: str) -> contextlib.AbstractAsyncContextManager[Browser]:
        """Return the browser of a person with that role in the project."""
        return browsing(self.forge, self.owner if role == "owner" else self.people[role])

    async def read(self, below: str = "", api: str = "") -> Any:
        """Return the API's answer to the owner about the project (or the path `api`), or about a path below it."""
        return (await self.owner.api.get(f"{api or self.api}{below}")).body

    async def events(self, event_type: str) -> list[dict[str, Any]]:
        """Return the project's audit events of that type, newest first: author and details."""
        events = await self.read(f"/audit_events?event_type={event_type}")
        return [event["details"] | {"author_id": event["author_id"]} for event in events]


async def new_scene(forge: Forge) -> Scene:
    owner = await forge.user("owner")
    group = await forge.group(owner, visibility="private")
    project = await forge.project(owner, namespace_id=group["id"], initialize_with_readme=True)
    return Scene(forge, owner, group, project, await forge.people(project["id"]))


@pytest.fixture
async def scene(forge: Forge) -> Scene:
    return await new_scene(forge)


@pytest.fixture
async def maintainer(scene: Scene) -> AsyncIterator[Browser]:
    async with scene.browsing("maintainer") as browser:
        yield browser


@pytest.fixture
async def owner(scene: Scene) -> AsyncIterator[Browser]:
    async with scene.browsing("owner") as browser:
        yield browser
