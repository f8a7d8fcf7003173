"""The one way to record an audit event: inside the transaction of the change that it tells of."""

from typing import Literal

import attrs
import orjson

from api_server.state.database import Transaction

EntityType = Literal["User", "Group", "Project", "Service::Audit::InstanceScope"]

RECORD_EVENT = """
    INSERT INTO audit_events (author_id, author_name, entity_type, entity_id, entity_path, event_type,
        target_type, target_id, target_details, ip_address, details)
    VALUES (%(author_id)s, %(author_name)s, %(entity_type)s, %(entity_id)s, %(entity_path)s, %(event_type)s,
        %(target_type)s, %(target_id)s, %(target_details)s, %(ip_address)s, %(details)s)
"""


@attrs.frozen(kw_only=True)
class Author:
    """Who made a change, and from where. Callers without a user are id -1."""

    id: int
    name: str
    email: str = ""
    username: str = ""
    ip_address: str | None = None


#: The author of what the service does by itself.
SYSTEM = Author(id=-1, name="(System)")


@attrs.frozen(kw_only=True)
class Entity:
    """What the event belongs to: a project, group, user, or the instance (id 1)."""

    type: EntityType
    id: int
    path: str


INSTANCE = Entity(type="Service::Audit::InstanceScope", id=1, path="gitlab_instance")


async def record(
    transaction: Transaction,
    event_type: str,
    *,
    author: Author,
    entity: Entity,
    target_type: str,
    target_id: int | None,
    target_details: str,
    message: str,
    **details: str | int | None,
) -> None:
    """Records `event_type` (GitLab's name where it has one). `details` become strings; they never hold secrets."""
    await transaction.row(
        RECORD_EVENT,
        author_id=author.id,
        author_name=author.name,
        entity_type=entity.type,
        entity_id=entity.id,
        entity_path=entity.path,
        event_type=event_type,
        target_type=target_type,
        target_id=target_id,
        target_details=target_details,
        ip_address=author.ip_address,
        details=orjson.dumps(
            {
                "custom_message": message,
                **{name: str(value) for name, value in details.items() if value is not None},
                "author_name": author.name,
                "author_email": author.email,
                "author_class": "User",
                "target_id": target_id,
                "target_type": target_type,
                "target_details": target_details,
                "ip_address": author.ip_address,
                "entity_path": entity.path,
            }
        ).decode(),
    )
