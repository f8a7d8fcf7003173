# mypy: disable-error-code="empty-body"
"""Statements that read audit events and their chain, write events out as lines, and take partitions away."""

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
def listing(conditions: frozenset[str] = frozenset()) -> ListQuery:
    """Return the list under those of the conditions that are named, newest first."""
    where = " AND ".join(_CONDITIONS[name] for name in sorted(conditions)) or "true"
    return ListQuery(
        _EVENT, f"SELECT audit_events.* FROM audit_events WHERE {where}", moment="audit_events.created_at"
    )


async def list_events(database: Executor, page: Page, filters: Mapping[str, Any]) -> ListPage:
    """Events for which all of `filters` (names of conditions) hold; those that are None are no filter."""
    conditions = {name: value for name, value in filters.items() if value is not None}
    return await listing(frozenset(conditions)).read(database, page, **conditions)


@statement(
    entity_statement(_EVENT, "SELECT audit_events.* FROM audit_events WHERE audit_events.id = %(event_id)s")
)
async def show_event(database: Executor, event_id: int) -> str:
    """Raise NotFound."""


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
    """Return the event, where it belongs to that entity. Raise NotFound."""


@statement("SELECT make_audit_partitions(%(now)s, %(ahead)s)")
async def make_partitions(transaction: Transaction, ahead: int) -> int:
    """Make the partitions of this month and of `ahead` months after it; how many of them were missing."""


ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: A batch of links looks up its own events; hashing would read all of them again for each batch.
LOOKING_UP = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"


async def begin_snapshot(transaction: Transaction) -> None:
    """All that follows sees the trail as it is now."""
    await transaction.run(ONE_SNAPSHOT)
    await transaction.run(LOOKING_UP)


@attrs.frozen
class Link:
    """A link of the chain, and the digest of its event as it is now (None: the event is gone)."""

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
    """Up to `size` of those behind that position."""


@attrs.frozen
class LastLink:
    """Where the chain ends."""

    position: int
    hash: bytes


@statement(
    "SELECT audit_chain.position, audit_chain.hash FROM audit_chain ORDER BY audit_chain.position DESC LIMIT 1"
)
async def last_link(database: Executor) -> LastLink | None:
    """Nothing where no event has been recorded yet."""


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
    """Events before that moment were taken away by the command that does so."""
    moment: datetime.datetime | None = await transaction.value(REMOVED_BEFORE)
    return moment


#: For what compares everything with everything once.
HASHING = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_nestloop = off"

UNCHAINED = """
    SELECT min(audit_events.id) FROM audit_events
    WHERE NOT EXISTS (SELECT FROM audit_chain
        WHERE audit_chain.event_id = audit_events.id AND audit_chain.created_at = audit_events.created_at)
"""


async def first_unchained(transaction: Transaction) -> int | None:
    """Return the id of an event that the chain does not know."""
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
    """An event as the chain digests it; `digest` is what the chain says of it (None: nothing)."""

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
    """Yield the events of [since, until), oldest first, some thousands at a time."""
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
    """Return those of months that are over before that moment, oldest first."""


# The names come from the database's catalogue and have been made by make_audit_partitions.


async def lock_partition(transaction: Transaction, partition: Partition) -> None:
    await transaction.run(f"LOCK TABLE {partition.name} IN ACCESS EXCLUSIVE MODE")


async def drop_partition(transaction: Transaction, partition: Partition) -> None:
    await transaction.run(f"ALTER TABLE audit_events DETACH PARTITION {partition.name}")
    await transaction.run(f"DROP TABLE {partition.name}")
