"""Writing audit events to files, and removing months that have been written."""

import datetime
import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import BinaryIO

import attrs

from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, SYSTEM
from api_server.state.database import Database, Row, Transaction

_BATCH = 5_000
Progress = Callable[[int], None]

COUNT = """
    SELECT count(*) FROM audit_events WHERE created_at >= %(since)s AND created_at < %(until)s
"""

OPEN_EVENTS = """
    DECLARE exported NO SCROLL CURSOR FOR
    SELECT audit_events.id, audit_event_line(audit_events) AS line, audit_chain.digest
    FROM audit_events LEFT JOIN audit_chain
        ON audit_chain.event_id = audit_events.id AND audit_chain.created_at = audit_events.created_at
    WHERE audit_events.created_at >= %(since)s AND audit_events.created_at < %(until)s
    ORDER BY audit_events.created_at, audit_events.id
"""

FETCH = f"FETCH {_BATCH} FROM exported"
CLOSE = "CLOSE exported"


class BrokenTrail(Exception):
    """An event is not as the chain has it; the text names it."""


@attrs.frozen
class Exported:
    """What was written: `events` lines, whose bytes have that SHA-256."""

    events: int
    sha256: str


async def count(database: Database, since: datetime.datetime, until: datetime.datetime) -> int:
    return int(await database.value(COUNT, since=since, until=until))


async def export(
    transaction: Transaction,
    since: datetime.datetime,
    until: datetime.datetime,
    output: BinaryIO,
    progress: Progress = lambda _: None,
) -> Exported:
    """Writes the events of [since, until), oldest first, as NDJSON: the line of an event is what the chain digests.

    Raises BrokenTrail for an event whose line has another digest than its link.
    """
    digest, events = hashlib.sha256(), 0
    async for rows in _batches(transaction, since, until):
        for row in rows:
            line = row.line.encode()
            if row.digest is None or hashlib.sha256(line).digest() != bytes(row.digest):
                raise BrokenTrail(f"event {row.id} is not as the chain has it")
            output.write(line + b"\n")
            digest.update(line + b"\n")
        events += len(rows)
        progress(len(rows))
    return Exported(events, digest.hexdigest())


async def _batches(
    transaction: Transaction, since: datetime.datetime, until: datetime.datetime
) -> AsyncIterator[list[Row]]:
    await transaction.row(OPEN_EVENTS, since=since, until=until)
    while rows := await transaction.rows(FETCH):
        yield rows
    await transaction.row(CLOSE)


async def export_to_file(
    transaction: Transaction,
    since: datetime.datetime,
    until: datetime.datetime,
    file: Path,
    progress: Progress = lambda _: None,
) -> Exported:
    """As `export`; the file is there once it is complete."""
    partial = file.with_name(f"{file.name}.partial")
    with partial.open("wb") as output:
        exported = await export(transaction, since, until, output, progress)
    partial.replace(file)
    return exported


#: Partitions of months that are over before %(before)s, oldest first.
OLD_PARTITIONS = """
    SELECT name, since, until FROM (
        SELECT pg_class.relname AS name,
            substring(bound FROM $$FROM \\('([^']+)'\\)$$)::timestamptz AS since,
            substring(bound FROM $$TO \\('([^']+)'\\)$$)::timestamptz AS until
        FROM pg_inherits JOIN pg_class ON pg_class.oid = pg_inherits.inhrelid
        CROSS JOIN pg_get_expr(pg_class.relpartbound, pg_class.oid) bound
        WHERE pg_inherits.inhparent = 'audit_events'::regclass
    ) partitions
    WHERE since IS NOT NULL AND until <= %(before)s ORDER BY until
"""


async def old_partitions(database: Database, before: datetime.datetime) -> list[Row]:
    """name, since and until of the whole months before that moment."""
    return await database.rows(OLD_PARTITIONS, before=before)


async def remove_partition(
    database: Database, partition: Row, folder: Path, progress: Progress = lambda _: None
) -> Exported:
    """Writes a partition's events to `<folder>/<name>.ndjson`, then drops it and records that, all in one transaction.

    Raises BrokenTrail, and then nothing is dropped.
    """
    file = folder / f"{partition.name}.ndjson"
    async with database.transaction() as transaction:
        # Its name comes from the database's catalogue and has been made by make_audit_partitions.
        await transaction.row(f"LOCK TABLE {partition.name} IN ACCESS EXCLUSIVE MODE")
        exported = await export_to_file(transaction, partition.since, partition.until, file, progress)
        await transaction.row(f"ALTER TABLE audit_events DETACH PARTITION {partition.name}")
        await transaction.row(f"DROP TABLE {partition.name}")
        await audit_trail.record(
            transaction,
            "audit_events_removed",
            author=SYSTEM,
            entity=INSTANCE,
            target_id=None,
            target_details=partition.name,
            message=f"Removed {exported.events} exported audit events",
            before=partition.until.isoformat(),
            events=exported.events,
            sha256=exported.sha256,
        )
    return exported
