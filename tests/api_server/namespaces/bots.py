"""A project and a group with access tokens."""

from typing import Any

import attrs

from tests.support.forge import Answer, Client, Forge, Person

WANTED: dict[str, Any] = {"name": "ci", "scopes": ["api"]}


@attrs.frozen
class Scene:
    """A private project in a private group, and the group, with people who have roles in both."""

    forge: Forge
    group: dict[str, Any]
    project: dict[str, Any]
    owner: Person
    maintainer: Person
    developer: Person

    def url(self, kind: str) -> str:
        return f"/{kind}s/{getattr(self, kind)['id']}/access_tokens"

    async def made(self, kind: str = "project", **values: Any) -> tuple[dict[str, Any], Client]:
        """A new token, and a client that uses it."""
        answer = await self.owner.api.post(self.url(kind), WANTED | values)
        assert answer.status == 201, answer
        return answer.body, attrs.evolve(self.owner.api, token=answer.body["token"])


def refused(answer: Answer, status: int, message: Any) -> bool:
    return (answer.status, answer.body) == (status, {"message": message})
