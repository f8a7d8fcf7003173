"""A project with releases to come; tests use tags of their own."""

import itertools
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.merge_requests import head_of, new_project

_numbers = itertools.count(1)


@attrs.frozen
class Scene:
    """`owner`'s private project, in which there are a developer, a reporter and a guest."""

    forge: Forge
    project: dict[str, Any]
    owner: Person
    developer: Person
    reporter: Person
    guest: Person
    head: str

    @property
    def url(self) -> str:
        return f"/projects/{self.project['id']}"

    @property
    def releases(self) -> str:
        return f"{self.url}/releases"

    @property
    def web(self) -> str:
        return str(self.project["web_url"])

    @property
    def api(self) -> Client:
        return self.developer.api

    def new_tag(self) -> str:
        return f"v{next(_numbers)}.0"

    async def release(self, **values: Any) -> dict[str, Any]:
        """A new one, with its tag."""
        made = await self.api.post(self.releases, {"tag_name": self.new_tag(), "ref": "main"} | values)
        assert made.status == 201, made
        return dict(made.body)

    async def links(self, release: dict[str, Any], **values: Any) -> Answer:
        return await self.api.post(f"{self.releases}/{release['tag_name']}/assets/links", values)


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner, developer = await forge.user("owner"), await forge.user("developer")
    reporter, guest = await forge.user("reporter"), await forge.user("guest")
    project = await new_project(forge, owner)
    for person, role in ((developer, Role.DEVELOPER), (reporter, Role.REPORTER), (guest, Role.GUEST)):
        await forge.member("projects", project["id"], person, role)
    head = await head_of(owner.api, project, "main")
    return Scene(forge, project, owner, developer, reporter, guest, head)
