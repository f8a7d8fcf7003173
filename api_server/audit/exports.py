"""Export of audit events to files, and removal of exported months."""

import datetime
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

import attrs

from api_server.audit import queries
from api_server.audit.queries import Partition
from api_server.state import audit_trail, disk
from api_server.state.audit_trail import INSTANCE, SYSTEM
from api_server.state.database import Database, Transaction

Progress = Callable[[int], None]


class BrokenTrail(Exception):
    """An event does not match the chain; the text names it."""


@attrs.frozen
class Exported:
    """The number of exported events, one a line, and the SHA-256 of all bytes, in hex."""

    events: int
    sha256: str


async def export(
    transaction: Transaction,
    since: datetime.datetime,
    until: datetime.datetime,
    output: BinaryIO,
    progress: Progress = lambda _: None,
) -> Exported:
    """Write the events of [since, until), oldest first, as NDJSON. The chain has the digest of each event's line.

    Raise BrokenTrail if an event's line has another digest than its link.
    """
    digest, events = hashlib.sha256(), 0
    async for batch in queries.event_batches(transaction, since, until):
        for event in batch:
            line = event.line.encode()
            if hashlib.sha256(line).digest() != event.digest:
                raise BrokenTrail(f"event {event.id} differs from the chain")
            output.write(line + b"\n")
            digest.update(line + b"\n")
        events += len(batch)
        progress(len(batch))
    output.flush()
    return Exported(events, digest.hexdigest())


async def export_to_file(
    transaction: Transaction,
    since: datetime.datetime,
    until: datetime.datetime,
    file: Path,
    progress: Progress = lambda _: None,
) -> Exported:
    """Export as `export` does, to a file that appears only when it is complete and on the disk.

    Raise OSError, too. A failed export leaves no file, and the partial file of a killed one is overwritten.
    """
    partial = file.with_name(f"{file.name}.partial")
    try:
        with partial.open("wb") as output:
            exported = await export(transaction, since, until, output, progress)
        disk.sync(partial)
        partial.replace(file)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    disk.sync(file.parent)
    return exported


async def remove_partition(
    database: Database, partition: Partition, folder: Path, progress: Progress = lambda _: None
) -> Exported:
    """Write a partition's events to `<folder>/<name>.ndjson`, then drop it and record that, all in one transaction.

    Raise BrokenTrail and OSError, without dropping anything.
    """
    file = folder / f"{partition.name}.ndjson"
    async with database.transaction() as transaction:
        await queries.lock_partition(transaction, partition)
        exported = await export_to_file(transaction, partition.since, partition.until, file, progress)
        await queries.drop_partition(transaction, partition)
        await audit_trail.record(
            transaction,
            "audit_events_removed",
            SYSTEM,
            INSTANCE.target(None, partition.name),
            before=partition.until.isoformat(),
            events=exported.events,
            sha256=exported.sha256,
        )
    return exported
