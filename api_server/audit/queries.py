"""Statements that read audit events."""

from collections.abc import Mapping
from functools import cache
from typing import Any

from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_EVENT = read_sql("api_server.audit")["event"]
_USER_ID = "(SELECT users.id FROM users WHERE lower(users.username) = lower(%({name})s))"

#: What a list can be narrowed by. Conditions that are not wanted are left out of the statement rather than switched
#: off in it, because a prepared plan then uses the index of those that are.
_CONDITIONS = {
    "created_after": "audit_events.created_at >= %(created_after)s::timestamptz",
    "created_before": "audit_events.created_at <= %(created_before)s::timestamptz",
    "entity_type": "audit_events.entity_type = %(entity_type)s",
    "entity_id": "audit_events.entity_id = %(entity_id)s::bigint",
    "entity_username": "audit_events.entity_type = 'User' AND audit_events.entity_id = "
    + _USER_ID.format(name="entity_username"),
    "author_id": "audit_events.author_id = %(author_id)s::bigint",
    "author_username": "audit_events.author_id = " + _USER_ID.format(name="author_username"),
    "own_author_id": "audit_events.author_id = %(own_author_id)s::bigint",
    "event_type": "audit_events.event_type = %(event_type)s",
    "target_type": "audit_events.target_type = %(target_type)s",
    "target_id": "audit_events.target_id = %(target_id)s::bigint",
}


@cache
def listing(conditions: frozenset[str] = frozenset()) -> Listing:
    """The list under those of the conditions that are named, newest first."""
    where = " AND ".join(_CONDITIONS[name] for name in sorted(conditions)) or "true"
    return Listing(
        _EVENT, f"SELECT audit_events.* FROM audit_events WHERE {where}", moment="audit_events.created_at"
    )


async def list_events(database: Executor, page: Page, filters: Mapping[str, Any]) -> Listed:
    """Events for which all of `filters` (names of conditions) hold; those that are None are no filter."""
    wanted = {name: value for name, value in filters.items() if value is not None}
    return await listing(frozenset(wanted)).read(database, page, **wanted)


_SHOW = one(_EVENT, "SELECT audit_events.* FROM audit_events WHERE audit_events.id = %(id)s")
_SHOW_OF_ENTITY = one(
    _EVENT,
    """
    SELECT audit_events.* FROM audit_events
    WHERE audit_events.id = %(id)s
        AND audit_events.entity_type = %(entity_type)s AND audit_events.entity_id = %(entity_id)s
    """,
)


async def show_event(database: Executor, event_id: int) -> str:
    """Raises NotFound."""
    return await database.entity(_SHOW, id=event_id)


async def show_event_of(database: Executor, event_id: int, entity_type: str, entity_id: int) -> str:
    """The event, where it belongs to that entity. Raises NotFound."""
    return await database.entity(_SHOW_OF_ENTITY, id=event_id, entity_type=entity_type, entity_id=entity_id)


MAKE_PARTITIONS = "SELECT make_audit_partitions(%(now)s, %(ahead)s)"


async def make_partitions(transaction: Transaction, ahead: int) -> int:
    """Makes the partitions of this month and of `ahead` months after it; how many of them were missing."""
    return int(await transaction.value(MAKE_PARTITIONS, ahead=ahead))
