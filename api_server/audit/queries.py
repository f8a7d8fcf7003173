# mypy: disable-error-code="empty-body"
"""Statements that read audit events and their chain, export events as lines, and create and drop partitions."""

import datetime
from collections.abc import AsyncIterator, Mapping
from functools import cache
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query

_EVENT = read_sql("api_server.audit")["event"]
_USER_ID = "(SELECT users.id FROM users WHERE lower(users.username) = lower(%({name})s))"

#: The filters of a list. Unused ones are left out of the statement instead of being disabled in it, so that its
#: prepared plan uses the index of the others.
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
def listing(conditions: frozenset[str] = frozenset()) -> ListQuery:
    """Return the list query with the named conditions, newest first."""
    where = " AND ".join(_CONDITIONS[name] for name in sorted(conditions)) or "true"
    return ListQuery(
        _EVENT, f"SELECT audit_events.* FROM audit_events WHERE {where}", moment="audit_events.created_at"
    )


async def list_events(database: Executor, page: Page, filters: Mapping[str, Any]) -> ListPage:
    """Return a page of the events that match all `filters`, by name of the condition; None values are ignored."""
    conditions = {name: value for name, value in filters.items() if value is not None}
    return await listing(frozenset(conditions)).read(database, page, **conditions)


@statement(
    entity_statement(_EVENT, "SELECT audit_events.* FROM audit_events WHERE audit_events.id = %(event_id)s")
)
async def show_event(database: Executor, event_id: int) -> str:
    """Return the event's entity. Raise NotFound."""


@statement(
    entity_statement(
        _EVENT,
        """
    SELECT audit_events.* FROM audit_events
    WHERE audit_events.id = %(event_id)s
        AND audit_events.entity_type = %(entity_type)s AND audit_events.entity_id = %(entity_id)s
    """,
    )
)
async def show_event_of(database: Executor, event_id: int, entity_type: str, entity_id: int) -> str:
    """Return the entity (JSON) of the event. Raise NotFound, also if it does not belong to that group or project."""


@statement("SELECT make_audit_partitions(%(now)s, %(ahead)s)")
async def make_partitions(transaction: Transaction, ahead: int) -> int:
    """Create the missing partitions of this month and of the `ahead` next months, and return their number."""


ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: Makes each batch of links look up its events by an index; a hash join would read all events for each batch.
LOOKING_UP = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"


async def begin_snapshot(transaction: Transaction) -> None:
    """Make all later statements of the transaction see the audit trail as it is now."""
    await transaction.run(ONE_SNAPSHOT)
    await transaction.run(LOOKING_UP)


@attrs.frozen
class Link:
    """A link of the chain, and the digest of its event at present (None if the event no longer exists)."""

    position: int
    event_id: int
    created_at: datetime.datetime
    milliseconds: int
    digest: bytes
    hash: bytes
    digest_now: bytes | None


@statement("""
    SELECT chain.position, chain.event_id, chain.created_at,
        (extract(epoch FROM chain.created_at) * 1000)::bigint AS milliseconds, chain.digest, chain.hash,
        CASE WHEN audit_events.id IS NOT NULL THEN
            sha256(convert_to(audit_event_line(audit_events), 'UTF8')) END AS digest_now
    FROM (
        SELECT * FROM audit_chain WHERE position > %(after)s::bigint ORDER BY position LIMIT %(size)s::bigint
    ) chain
    LEFT JOIN audit_events ON audit_events.id = chain.event_id AND audit_events.created_at = chain.created_at
    ORDER BY chain.position
    """)
async def chain_links(transaction: Transaction, *, after: int, size: int) -> list[Link]:
    """Return up to `size` links after that position, in the order of the chain."""


@attrs.frozen
class LastLink:
    """The last link of the chain."""

    position: int
    hash: bytes


@statement(
    "SELECT audit_chain.position, audit_chain.hash FROM audit_chain ORDER BY audit_chain.position DESC LIMIT 1"
)
async def last_link(database: Executor) -> LastLink | None:
    """Return the last link, or None if no event has been recorded yet."""


HASH_AT = """
    SELECT audit_chain.hash FROM audit_chain WHERE audit_chain.position = %(position)s
"""


async def hash_at(database: Executor, position: int) -> bytes | None:
    link_hash: bytes | None = await database.value(HASH_AT, position=position)
    return link_hash


REMOVED_BEFORE = """
    SELECT max((details ->> 'before')::timestamptz) FROM audit_events WHERE event_type = 'audit_events_removed'
"""


async def removed_before(transaction: Transaction) -> datetime.datetime | None:
    """Return the time before which the command for that has removed all events, or None."""
    moment: datetime.datetime | None = await transaction.value(REMOVED_BEFORE)
    return moment


#: For a statement that compares all events with the whole chain: each table is read only once.
HASHING = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_nestloop = off"

UNCHAINED = """
    SELECT min(audit_events.id) FROM audit_events
    WHERE NOT EXISTS (SELECT FROM audit_chain
        WHERE audit_chain.event_id = audit_events.id AND audit_chain.created_at = audit_events.created_at)
"""


async def first_unchained(transaction: Transaction) -> int | None:
    """Return the smallest id of an event that has no link in the chain, or None."""
    await transaction.run(HASHING)
    event_id: int | None = await transaction.value(UNCHAINED)
    return event_id


_BATCH = 5_000


@statement("""
    SELECT count(*) FROM audit_events WHERE created_at >= %(since)s AND created_at < %(until)s
""")
async def count_events(database: Executor, since: datetime.datetime, until: datetime.datetime) -> int: ...


@attrs.frozen
class Event:
    """An event as a line, and the digest of the line in the chain (None without a link)."""

    id: int
    line: str
    digest: bytes | None


OPEN_EVENTS = """
    DECLARE exported NO SCROLL CURSOR FOR
    SELECT audit_events.id, audit_event_line(audit_events) AS line, audit_chain.digest
    FROM audit_events LEFT JOIN audit_chain
        ON audit_chain.event_id = audit_events.id AND audit_chain.created_at = audit_events.created_at
    WHERE audit_events.created_at >= %(since)s AND audit_events.created_at < %(until)s
    ORDER BY audit_events.created_at, audit_events.id
"""
FETCH = Query(f"FETCH {_BATCH} FROM exported", Event)
CLOSE = "CLOSE exported"


async def event_batches(
    transaction: Transaction, since: datetime.datetime, until: datetime.datetime
) -> AsyncIterator[list[Event]]:
    """Yield the events of [since, until), oldest first, in batches of some thousands."""
    await transaction.run(OPEN_EVENTS, since=since, until=until)
    while events := await transaction.rows(FETCH):
        yield events
    await transaction.run(CLOSE)


@attrs.frozen
class Partition:
    """A table with the events of [since, until)."""

    name: str
    since: datetime.datetime
    until: datetime.datetime


@statement("""
    SELECT name, since, until FROM (
        SELECT pg_class.relname AS name,
            substring(bound FROM $$FROM \\('([^']+)'\\)$$)::timestamptz AS since,
            substring(bound FROM $$TO \\('([^']+)'\\)$$)::timestamptz AS until
        FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
        CROSS JOIN pg_get_expr(pg_class.relpartbound, pg_class.oid) bound
        WHERE pg_inherits.inhparent = 'audit_events'::regclass
    ) partitions
    WHERE since IS NOT NULL AND until <= %(before)s ORDER BY until
    """)
async def old_partitions(database: Executor, before: datetime.datetime) -> list[Partition]:
    """Return the partitions of months that end at or before that time, oldest first."""


# The names in these statements come from the database's catalogue and were generated by make_audit_partitions.


async def lock_partition(transaction: Transaction, partition: Partition) -> None:
    await transaction.run(f"LOCK TABLE {partition.name} IN ACCESS EXCLUSIVE MODE")


async def drop_partition(transaction: Transaction, partition: Partition) -> None:
    await transaction.run(f"ALTER TABLE audit_events DETACH PARTITION {partition.name}")
    await transaction.run(f"DROP TABLE {partition.name}")
