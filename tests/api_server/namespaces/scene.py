"""A project and a group with access tokens, and what the audit trail tells of them."""

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


async def events(forge: Forge, entity_type: str, entity_id: int) -> list[tuple[str, str]]:
    """Type and message of the events of this entity, the oldest first."""
    rows = await forge.database.rows(
        "SELECT event_type, details::json ->> 'custom_message' AS message FROM audit_events"
        " WHERE entity_type = %(type)s AND entity_id = %(id)s ORDER BY id",
        type=entity_type,
        id=entity_id,
    )
    return [(row.event_type, row.message) for row in rows]
