"""Statements that read the chain beside its events."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query

ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: A batch of links looks up its own events; hashing would read all of them again for each batch.
LOOKING_UP = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"


async def begin(transaction: Transaction) -> None:
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
    found: bytes | None


LINKS = Query(
    """
    SELECT chain.position, chain.event_id, chain.created_at,
        (extract(epoch FROM chain.created_at) * 1000)::bigint AS milliseconds, chain.digest, chain.hash,
        CASE WHEN audit_events.id IS NOT NULL THEN
            sha256(convert_to(audit_event_line(audit_events), 'UTF8')) END AS found
    FROM (
        SELECT * FROM audit_chain WHERE position > %(after)s::bigint ORDER BY position LIMIT %(size)s::bigint
    ) chain
    LEFT JOIN audit_events ON audit_events.id = chain.event_id AND audit_events.created_at = chain.created_at
    ORDER BY chain.position
    """,
    Link,
)


async def links(transaction: Transaction, *, after: int, size: int) -> list[Link]:
    """Up to `size` of those behind that position."""
    return await transaction.rows(LINKS, after=after, size=size)


@attrs.frozen
class LastLink:
    """Where the chain ends."""

    position: int
    hash: bytes


LAST_LINK = Query(
    "SELECT audit_chain.position, audit_chain.hash FROM audit_chain ORDER BY audit_chain.position DESC LIMIT 1",
    LastLink,
)


async def last_link(database: Executor) -> LastLink | None:
    """Nothing where no event has been recorded yet."""
    return await database.row(LAST_LINK)


HASH_AT = """
    SELECT audit_chain.hash FROM audit_chain WHERE audit_chain.position = %(position)s
"""


async def hash_at(database: Executor, position: int) -> bytes | None:
    found: bytes | None = await database.value(HASH_AT, position=position)
    return found


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
    """The id of an event that the chain does not know."""
    await transaction.run(HASHING)
    event_id: int | None = await transaction.value(UNCHAINED)
    return event_id
