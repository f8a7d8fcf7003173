"""How a type of audit event is declared."""

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


Says = tuple[tuple[str, ...], frozenset[str]]


def says(messages: str | tuple[str, ...], *details: str) -> Says:
    """What an event's message looks like, and the details of its own."""
    return (messages,) if isinstance(messages, str) else messages, frozenset(details)


def types(
    scopes: tuple[EntityType, ...] | EntityType, target: str, **names: Says
) -> Iterator[tuple[str, EventType]]:
    """Events that belong to `scopes` and are about a `target`, by name."""
    where = frozenset((scopes,) if isinstance(scopes, str) else scopes)
    for name, (messages, details) in names.items():
        yield name, EventType(where, target, messages, details)
