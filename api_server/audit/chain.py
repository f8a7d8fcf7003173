"""Verifying the audit trail: every event is as it was recorded, and none is missing or was added past the chain.

Each link of the chain is SHA-256 over the hash before it, the digest of its event's line, its position, the event's id
and its created_at in milliseconds (big-endian, 64 bits each). Who can write to the database as its owner can cut or
forge the whole chain; so its heads are kept elsewhere (`heads.py`), and a verification is handed them.
"""

import datetime
import hashlib
import struct
from collections.abc import Callable, Collection, Mapping

import attrs

from api_server.audit import chain_queries
from api_server.audit.chain_queries import Link
from api_server.state.database import Database, Transaction

_BATCH = 5_000
_NOTHING = bytes(32)


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
    database: Database, expected: Collection[Head] = (), progress: Callable[[int], None] = lambda _: None
) -> Verdict:
    """Reads the whole chain in one snapshot, beside writers; memory does not grow with it.

    `expected` are heads that the chain had once and must still contain. `progress` gets numbers of links read.
    """
    hashes: dict[int, set[bytes]] = {}
    for one in expected:
        hashes.setdefault(one.position, set()).add(one.hash)
    async with database.transaction() as transaction:
        await chain_queries.begin(transaction)
        removed_before = await chain_queries.removed_before(transaction)
        head, removed = Head(), 0
        while links := await chain_queries.links(transaction, after=head.position, size=_BATCH):
            for link in links:
                if problem := _problem(head, link, removed_before, hashes):
                    return Verdict(head, removed, problem)
                removed += link.found is None
                head = Head(link.position, link.hash)
            progress(len(links))
        return Verdict(head, removed, await _problem_at_the_end(transaction, head, hashes))


def _problem(
    head: Head, link: Link, removed_before: datetime.datetime | None, expected: Mapping[int, set[bytes]]
) -> str | None:
    event = f"event {link.event_id} (position {link.position})"
    if link.position != head.position + 1:
        return f"position {head.position + 1} of the chain is missing"
    if link.hash != _hash(head.hash, link):
        return f"{event} is not linked to the one before it"
    if not expected.get(link.position, set()) <= {link.hash}:
        return f"{event} is not the head that was expected there: the chain was written anew"
    if link.found is None:
        kept = removed_before is None or link.created_at >= removed_before
        return f"{event} is missing" if kept else None
    return f"{event} was changed" if link.found != link.digest else None


async def _problem_at_the_end(
    transaction: Transaction, head: Head, expected: Mapping[int, set[bytes]]
) -> str | None:
    last = max(expected, default=0)
    if head.position < last:
        return (
            f"the chain ends at position {head.position}, before the expected head {last}:"
            f" {last - head.position} or more events at its end are missing"
        )
    unchained = await chain_queries.first_unchained(transaction)
    return f"event {unchained} was added past the chain" if unchained is not None else None


def _hash(previous: bytes, link: Link) -> bytes:
    """As the database's trigger makes it."""
    numbers = struct.pack(">qqq", link.position, link.event_id, link.milliseconds)
    return hashlib.sha256(previous + link.digest + numbers).digest()
