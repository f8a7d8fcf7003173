"""Recording of audit events, inside the transaction of the change that they describe."""

import datetime
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import attrs
import orjson

from api_server.state.audit_event_types import EntityType, declared
from api_server.state.database import Transaction
from api_server.state.statements import Statement

# The id is drawn after the moment, while `audit_moment` holds its lock.
RECORD_EVENT = Statement("""
    INSERT INTO audit_events (created_at, author_id, author_name, entity_type, entity_id, entity_path, event_type,
        target_type, target_id, target_details, ip_address, details)
    SELECT moment, %(author_id)s, %(author_name)s, %(entity_type)s, %(entity_id)s, %(entity_path)s, %(event_type)s,
        %(target_type)s, %(target_id)s, %(target_details)s, %(ip_address)s, %(details)s
    FROM audit_moment(%(now)s) moment
""")

#: Longer paths and target details are cut, as GitLab cuts them.
MAX_CHARACTERS = 5500


@attrs.frozen(kw_only=True)
class Author:
    """The author of a change and the address that it came from. Callers without a user have id -1."""

    id: int
    name: str
    email: str = ""
    username: str = ""
    ip_address: str | None = None
    #: Name and id of the administrator who made the request with this author's rights.
    impersonated_by: str | None = None
    impersonated_by_id: int | None = None

    @property
    def impersonation(self) -> dict[str, str | int | None]:
        """The details that describe an impersonation; their values are None if there was none."""
        return {"impersonated_by": self.impersonated_by, "impersonated_by_id": self.impersonated_by_id}


#: The author of changes that the service makes by itself.
SYSTEM = Author(id=-1, name="(System)")


@attrs.frozen
class Entity:
    """The project, group, user or instance (id 1) that an event belongs to."""

    type: EntityType
    id: int
    path: str

    def target(self, target_id: int | None, details: str) -> "Target":
        """Return a target inside this entity; `details` is its name."""
        return Target(self, target_id, details)


@attrs.frozen
class Target:
    """The thing that an event is about, inside `entity`."""

    entity: Entity
    id: int | None
    details: str


INSTANCE = Entity("Service::Audit::InstanceScope", 1, "gitlab_instance")


async def record(
    transaction: Transaction,
    event_type: str,
    author: Author,
    about: Entity | Target,
    message: str | None = None,
    /,
    **values: str | int | datetime.date | None,
) -> None:
    """Record an event of a type that `audit_event_types` declares. Raise ValueError if the declaration does
    not allow it.

    The message is that of the type; a type with several messages is given the `message`. The `values` are
    details, or appear only in the message. Details become strings: false becomes `"false"`, None becomes `""`
    for `from` and `to`, and other details that are None are left out. Details never hold secrets.

    The event is sent together with COMMIT, which costs no round trip; the database then chains it to the
    event before it. Its time is that of its transaction, or that of the previous event if that is later, so a
    reader who continues from the newest event that she knows misses none.
    """
    target = about.target(about.id, about.path) if isinstance(about, Entity) else about
    entity = target.entity
    declaration = declared(event_type, entity.type, frozenset(values))
    if message is None:
        message = _message(event_type, declaration.messages[0], target, values)
    details = {name: value for name, value in values.items() if name in declaration.details}
    texts = _texts(details | author.impersonation)
    await transaction.at_commit(
        RECORD_EVENT,
        author_id=author.id,
        author_name=author.name,
        entity_type=entity.type,
        entity_id=entity.id,
        entity_path=entity.path[:MAX_CHARACTERS],
        event_type=event_type,
        target_type=declaration.target,
        target_id=target.id,
        target_details=target.details[:MAX_CHARACTERS],
        ip_address=author.ip_address,
        details=orjson.dumps({"custom_message": message, **declaration.always, **texts}).decode(),
    )


def changes(before: object, after: object, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield the details of each change of an attribute in `names`."""
    for name in names:
        old, new = getattr(before, name), getattr(after, name)
        if old != new:
            yield {"change": name, "from": old, "to": new}


def as_text(value: object) -> str:
    """Return a value as messages show it: `true`, `a, b`, `nothing`."""
    if isinstance(value, bool):
        return str(value).lower()
    text = ", ".join(value) if isinstance(value, list) else str(value)
    return "nothing" if value is None else text or "nothing"


def _message(event_type: str, template: str, target: Target, values: Mapping[str, object]) -> str:
    details = {"id": target.id, "target": target.details, "entity": target.entity.path, **values}
    try:
        return template.format_map({name: as_text(value) for name, value in details.items()})
    except KeyError as missing:
        raise ValueError(f"{event_type} has no value for {missing.args[0]}") from None


def _texts(details: Mapping[str, str | int | datetime.date | None]) -> dict[str, str]:
    return {
        name: "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in details.items()
        if value is not None or name in ("from", "to")
    }
