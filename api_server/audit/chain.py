"""The chain of the audit trail: its verification, the storage of its heads outside the database, and background work.

The hash of a link is the SHA-256 of the previous link's hash, the digest of its event's line, its position, the event's
id and its created_at in milliseconds (numbers big-endian, 64 bits each). A person who can write to the database as its
owner can cut or forge the whole chain. Its heads are therefore also stored in the log and in the object store, and
passed to a verification.
"""

import datetime
import hashlib
import re
import struct
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence

import attrs
import structlog

from api_server.audit import queries
from api_server.audit.queries import Link
from api_server.services import Key, Services
from api_server.state.database import Database, Transaction
from api_server.state.errors import LockNotAvailable
from api_server.state.objects import Objects

_BATCH = 5_000
_NOTHING = bytes(32)


@attrs.frozen
class Head:
    """The last link of a chain. Its text form is `<position>:<hash in hex>`."""

    position: int = 0
    hash: bytes = _NOTHING

    def __str__(self) -> str:
        return f"{self.position}:{self.hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Head":
        """Return the head from its text form. Raise ValueError."""
        position, _, digest = text.partition(":")
        if len(digest) != 64:
            raise ValueError("a head is <position>:<64 hex digits>, as an earlier verification has reported")
        return cls(int(position), bytes.fromhex(digest))


@attrs.frozen
class Verdict:
    """The result of a verification. `problem` describes the first wrong row, or is None. `removed` is the number of
    events that the command for that has removed."""

    head: Head
    removed: int
    problem: str | None


async def verify(
    database: Database, expected: Collection[Head] = (), progress: Callable[[int], None] = lambda _: None
) -> Verdict:
    """Verify the whole chain in one snapshot. Writers are not blocked, and memory does not grow with its length.

    `expected` are former heads, which the chain must still contain. `progress` is called with numbers of links.
    """
    hashes: dict[int, set[bytes]] = {}
    for expected_head in expected:
        hashes.setdefault(expected_head.position, set()).add(expected_head.hash)
    async with database.transaction() as transaction:
        await queries.begin_snapshot(transaction)
        removed_before = await queries.removed_before(transaction)
        head, removed = Head(), 0
        while links := await queries.chain_links(transaction, after=head.position, size=_BATCH):
            for link in links:
                if problem := _problem(head, link, removed_before, hashes):
                    return Verdict(head, removed, problem)
                removed += link.digest_now is None
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
    if link.digest_now is None:
        is_expected = removed_before is None or link.created_at >= removed_before
        return f"{event} is missing" if is_expected else None
    return f"{event} was changed" if link.digest_now != link.digest else None


async def _problem_at_the_end(
    transaction: Transaction, head: Head, expected: Mapping[int, set[bytes]]
) -> str | None:
    last = max(expected, default=0)
    if head.position < last:
        return (
            f"the chain ends at position {head.position}, before the expected head {last}:"
            f" {last - head.position} or more events at its end are missing"
        )
    unchained = await queries.first_unchained(transaction)
    return f"event {unchained} was added past the chain" if unchained is not None else None


def _hash(previous: bytes, link: Link) -> bytes:
    """Return the hash of a link, computed as in the database's trigger."""
    numbers = struct.pack(">qqq", link.position, link.event_id, link.milliseconds)
    return hashlib.sha256(previous + link.digest + numbers).digest()


log = structlog.get_logger(__name__)

#: The folder of the heads in the object store. The name of an object, `audit/heads/<position>-<hash in hex>`, contains
#: the whole head, so that no head is ever overwritten.
HEADS_FOLDER = "audit/heads"
_NAME = re.compile(r"[0-9]{19}-[0-9a-f]{64}")


def key_of(head: Head) -> str:
    """Return the head's key in the object store. The keys sort in the order of positions."""
    return f"{HEADS_FOLDER}/{head.position:019}-{head.hash.hex()}"


async def kept_heads(objects: Objects) -> list[Head]:
    """Return all heads in the object store, the earliest first. Raise `Unavailable`."""
    names = [key.rpartition("/")[2] async for key in objects.keys(HEADS_FOLDER)]
    return [Head.parse(name.replace("-", ":")) for name in sorted(names) if _NAME.fullmatch(name)]


def agreement(heads: Sequence[Head]) -> str:
    """Return in words that a verified chain contains `heads`."""
    if not heads:
        return "no head is stored"
    return "1 stored head agrees" if len(heads) == 1 else f"{len(heads)} stored heads agree"


async def keep_present_head(database: Database, objects: Objects) -> None:
    """Store the present head in the object store and the log, unless it is stored already. Log an error if the chain no
    longer contains the last stored head."""
    heads = await kept_heads(objects)
    for head in heads[-1:]:
        if await queries.hash_at(database, head.position) != head.hash:
            log.error("the audit trail was cut or written anew: run `audit verify`", kept_head=str(head))
    link = await queries.last_link(database)
    if link is None or (head := Head(link.position, link.hash)) in heads:
        return
    log.info("head of the audit trail", head=str(head))
    await objects.put(key_of(head), _content(head, database))


async def _content(head: Head, database: Database) -> AsyncIterator[bytes]:
    yield f"{head} {database.now.isoformat()}\n".encode()


MONTHS_AHEAD = 3


@attrs.define
class HeadState:
    """The time at which this process last stored the head of the trail."""

    stored_at: datetime.datetime | None = None

    def forget(self) -> None:
        self.stored_at = None


HEAD_KEPT = Key[HeadState]("head_kept")


def setup(services: Services) -> None:
    async def make_partitions() -> None:
        async with services.database.transaction() as transaction:
            if partitions := await queries.make_partitions(transaction, MONTHS_AHEAD):
                log.info("partitions of the audit trail made", partitions=partitions)

    async def make_at_start(_: Services) -> AsyncIterator[None]:
        try:
            await make_partitions()
        except LockNotAvailable:
            log.warning("partitions of the audit trail could not be created yet, the table is in use")
        yield

    every = datetime.timedelta(minutes=services.settings.audit_head_minutes)
    state = services[HEAD_KEPT] = HeadState()

    async def keep_head() -> None:
        if every and (state.stored_at is None or services.clock() >= state.stored_at + every):
            await keep_present_head(services.database, services.objects)
            state.stored_at = services.clock()

    services.while_running(make_at_start)
    services.queue.add_periodic("keep_audit_head", "* * * * *", keep_head)
    services.queue.add_periodic("make_audit_partitions", "17 3 * * *", make_partitions)
