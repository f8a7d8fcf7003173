"""Verifying the audit trail: every event is as it was recorded, and none is missing or was added past the chain.

Each link of the chain is SHA-256 over the hash before it, the digest of its event's line, its position, the event's id
and its created_at in milliseconds (big-endian, 64 bits each). Who can write to the database as its owner can forge the
whole chain; so keep the head that a verification reports elsewhere, and hand it to the next one.
"""

import datetime
import hashlib
import struct
from collections.abc import Callable

import attrs

from api_server.state.database import Database, Row, Transaction

_BATCH = 5_000
_NOTHING = bytes(32)

ONE_SNAPSHOT = "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY"

#: A batch of links looks up its own events; hashing would read all of them again for each batch.
LOOKING_UP = "SET LOCAL enable_hashjoin = off; SET LOCAL enable_mergejoin = off"
#: For what compares everything with everything once.
HASHING = "SET LOCAL enable_hashjoin = on; SET LOCAL enable_nestloop = off"

LINKS = """
    SELECT chain.position, chain.event_id, chain.created_at, chain.digest, chain.hash,
        (extract(epoch FROM chain.created_at) * 1000)::bigint AS milliseconds,
        CASE WHEN audit_events.id IS NOT NULL THEN
            sha256(convert_to(audit_event_line(audit_events), 'UTF8')) END AS found
    FROM (
        SELECT * FROM audit_chain WHERE position > %(after)s::bigint ORDER BY position LIMIT %(size)s::bigint
    ) chain
    LEFT JOIN audit_events ON audit_events.id = chain.event_id AND audit_events.created_at = chain.created_at
    ORDER BY chain.position
"""

REMOVED_BEFORE = """
    SELECT max((details ->> 'before')::timestamptz) FROM audit_events WHERE event_type = 'audit_events_removed'
"""

UNCHAINED = """
    SELECT min(audit_events.id) FROM audit_events
    WHERE NOT EXISTS (SELECT FROM audit_chain
        WHERE audit_chain.event_id = audit_events.id AND audit_chain.created_at = audit_events.created_at)
"""


@attrs.frozen
class Head:
    """The last link of a chain; as text `<position>:<hash in hex>`."""

    position: int = 0
    hash: bytes = _NOTHING

    def __str__(self) -> str:
        return f"{self.position}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Raises ValueError."""
        position, _, digest = text.partition(":")
        if len(digest) != 64:
            raise ValueError("a head is <position>:<64 hex digits>, as an earlier verification has reported")
        return cls(int(position), bytes.fromhex(digest))


@attrs.frozen
class Verdict:
    """`problem` names the first row that is not as it was, None in a sound trail. `removed` events were taken away by
    the command that does so."""

    head: Head
    removed: int
    problem: str | None


async def verify(
    database: Database, expected: Head | None = None, progress: Callable[[int], None] = lambda _: None
) -> Verdict:
    """Reads the whole chain in one snapshot, beside writers; memory does not grow with it.

    `expected` is a head that the chain had once and must still contain. `progress` gets numbers of links read.
    """
    async with database.transaction() as transaction:
        await transaction.row(ONE_SNAPSHOT)
        await transaction.row(LOOKING_UP)
        removed_before = await transaction.value(REMOVED_BEFORE)
        head, removed = Head(), 0
        while rows := await transaction.rows(LINKS, after=head.position, size=_BATCH):
            for row in rows:
                if problem := _problem(head, row, removed_before, expected):
                    return Verdict(head, removed, problem)
                removed += row.found is None
                head = Head(row.position, bytes(row.hash))
            progress(len(rows))
        return Verdict(head, removed, await _problem_at_the_end(transaction, head, expected))


def _problem(
    head: Head, row: Row, removed_before: datetime.datetime | None, expected: Head | None
) -> str | None:
    event = f"event {row.event_id} (position {row.position})"
    if row.position != head.position + 1:
        return f"position {head.position + 1} of the chain is missing"
    if bytes(row.hash) != link(head.hash, bytes(row.digest), row.position, row.event_id, row.milliseconds):
        return f"{event} is not linked to the one before it"
    if expected and row.position == expected.position and bytes(row.hash) != expected.hash:
        return f"{event} is not the head that was expected there: the chain was written anew"
    if row.found is None:
        kept = removed_before is None or row.created_at >= removed_before
        return f"{event} is missing" if kept else None
    return f"{event} was changed" if bytes(row.found) != bytes(row.digest) else None


async def _problem_at_the_end(transaction: Transaction, head: Head, expected: Head | None) -> str | None:
    if expected and head.position < expected.position:
        return f"the chain ends at position {head.position}, before the expected head {expected.position}"
    await transaction.row(HASHING)
    unchained = await transaction.value(UNCHAINED)
    return f"event {unchained} was added past the chain" if unchained is not None else None


def link(previous: bytes, digest: bytes, position: int, event_id: int, milliseconds: int) -> bytes:
    """The hash of a link, as the database's trigger makes it."""
    return hashlib.sha256(previous + digest + struct.pack(">qqq", position, event_id, milliseconds)).digest()
