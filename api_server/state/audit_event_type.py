"""What a type of audit event declares, and a short way to write it down."""

from collections.abc import Iterator
from typing import Literal

import attrs

EntityType = Literal["User", "Group", "Project", "Service::Audit::InstanceScope"]

#: What a change of one value tells.
CHANGE = ("change", "from", "to")


@attrs.frozen
class EventType:
    """`scopes` are what an event can belong to, `target` is the kind of thing that it is about; its message has one of
    the shapes `messages`, where `*` is what varies; `details` are its own keys beside those that every event has."""

    scopes: frozenset[EntityType]
    target: str
    messages: tuple[str, ...]
    details: frozenset[str]


_Says = tuple[tuple[str, ...], frozenset[str]]


def says(messages: str | tuple[str, ...], *details: str) -> _Says:
    return (messages,) if isinstance(messages, str) else messages, frozenset(details)


def types(
    scopes: tuple[EntityType, ...] | EntityType, target: str, **names: _Says
) -> Iterator[tuple[str, EventType]]:
    where = frozenset((scopes,) if isinstance(scopes, str) else scopes)
    for name, (messages, details) in names.items():
        yield name, EventType(where, target, messages, details)


INSTANCE: EntityType = "Service::Audit::InstanceScope"
SOURCES: tuple[EntityType, ...] = ("Group", "Project")
