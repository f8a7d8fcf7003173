"""A project and a group with access tokens, and their audit events."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import attrs
import pytest

from api_server.web.routes import Role
from tests.support.forge import Answer, Client, Forge, Person
from tests.support.purges import Told, forge_with_edge

WANTED: dict[str, Any] = {"name": "ci", "scopes": ["api"]}


@attrs.frozen
class Scene:
    """A private project in a private group, and people who have roles in both."""

    forge: Forge
    group: dict[str, Any]
    project: dict[str, Any]
    owner: Person
    maintainer: Person
    developer: Person

    def url(self, kind: str) -> str:
        return f"/{kind}s/{getattr(self, kind)['id']}/access_tokens"

    async def made(self, kind: str = "project", **values: Any) -> tuple[dict[str, Any], Client]:
        """Create a token; return it with a client that uses it."""
        answer = await self.owner.api.post(self.url(kind), WANTED | values)
        assert answer.status == 201, answer
        return answer.body, attrs.evolve(self.owner.api, token=answer.body["token"])


def refused(answer: Answer, status: int, message: Any) -> bool:
    return (answer.status, answer.body) == (status, {"message": message})


async def events(forge: Forge, entity_type: str, entity_id: int) -> list[tuple[str, str]]:
    """Return type and message of the events of this entity, the oldest first."""
    rows = await forge.database.rows(
        "SELECT event_type, details::json ->> 'custom_message' AS message FROM audit_events"
        " WHERE entity_type = %(type)s AND entity_id = %(id)s ORDER BY id",
        type=entity_type,
        id=entity_id,
    )
    return [(row.event_type, row.message) for row in rows]


@pytest.fixture(scope="session")
async def with_edge(
    passing_database: Callable[[], contextlib.AbstractContextManager[str]],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[tuple[Forge, Told]]:
    with passing_database() as url:
        async with forge_with_edge(lambda: url, tmp_path_factory.mktemp("with_edge")) as running:
            yield running


@pytest.fixture(scope="module")
async def scene(forge: Forge) -> Scene:
    owner, maintainer, developer = [await forge.user(name) for name in ("owner", "maintainer", "developer")]
    group = await forge.group(owner, visibility="private")
    project = await forge.project(namespace_id=group["id"])
    await forge.member("groups", group["id"], maintainer, Role.MAINTAINER)
    await forge.member("groups", group["id"], developer, Role.DEVELOPER)
    return Scene(forge, group, project, owner, maintainer, developer)
