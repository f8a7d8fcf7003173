"""The sweep of the object store, which deletes objects that no row names.

Such an object remains if a process is killed between storing it and writing its row, or if a row was deleted
while the store was down. All work is done in batches: a million objects take no more memory than a thousand.
"""

import asyncio
import datetime
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import attrs
import structlog

from api_server.state import backups
from api_server.state import sweep_queries as queries
from api_server.state.database import Database
from api_server.state.errors import Unavailable
from api_server.state.object_store import is_unfinished
from api_server.state.objects import INDEX, Entry, Objects

log = structlog.get_logger(__name__)

#: Minimum age in seconds of what is deleted, whatever the setting says: an upload stores its object before
#: its row.
LEAST_AGE = 3600
#: Seconds until objects in S3 are checked once more. S3 dates an object by the beginning of its upload, so an
#: old object may have arrived a moment ago and its row may follow.
SECOND_LOOK_AFTER = 60.0
#: Objects that are looked up together.
BATCH = 1000
#: Concurrent requests to the store.
_CONCURRENT = 20
#: The schedule of the daily task in cron notation.
DAILY = "41 2 * * *"
_KEY = re.compile(r"projects/\d+/(?:jobs/(?P<job>\d{1,18})|lfs)/[^/]+")


@attrs.frozen
class Swept:
    """The result of one batch: objects without rows, and files of uploads that were cut off."""

    objects: Sequence[Entry] = ()
    unfinished: Sequence[Path] = ()


async def sweep(
    database: Database,
    objects: Objects,
    age: datetime.timedelta,
    repositories: Path,
    *,
    dry_run: bool = False,
) -> AsyncIterator[Swept]:
    """Delete objects that no row names and that are older than `age`, batch by batch, and yield them; a dry
    run only yields them. Raise `Unavailable`, also while a backup is running that may still refer to them.
    The sweep can be repeated at any time."""
    before = await _time_of(objects) - age
    async for batch in objects.batches("projects"):
        unnamed = await _unnamed(database, [stored for stored in batch if stored.modified < before])
        if unnamed and objects.folder is None and not dry_run:
            await _rows_that_arrive()
            unnamed = await _unnamed(database, unnamed)
        if unnamed and not dry_run:
            backups.not_during(repositories)
            await objects.delete(stored.key for stored in unnamed)
        if unnamed:
            yield Swept(objects=unnamed)
    if objects.folder is not None:
        walk = _unfinished(objects.folder, before.timestamp(), dry_run=dry_run)
        while unfinished := await asyncio.to_thread(next, walk, None):
            yield Swept(unfinished=unfinished)


async def missing(database: Database, objects: Objects) -> AsyncIterator[tuple[str, str]]:
    """Yield the kind (artifacts, logs, LFS objects) and key of every object that a row names and that does
    not exist. Ask the store once for each object. Raise `Unavailable`."""
    turns = asyncio.Semaphore(_CONCURRENT)

    async def is_missing(key: str) -> bool:
        async with turns:
            return not await objects.exists(key)

    for kind in queries.NAMED:
        last: queries.Named | None = None
        while rows := await queries.named(database, kind, last, BATCH):
            last = rows[-1]
            absent = await asyncio.gather(*(is_missing(row.key) for row in rows))
            keys = [row.key for row, is_gone in zip(rows, absent, strict=True) if is_gone]
            if keys:  # some may have been deleted with their rows meanwhile
                unnamed = await queries.unnamed(database, keys, [_job_of(key) for key in keys])
                for key in keys:
                    if key not in unnamed:
                        yield kind, key


async def sweep_daily(database: Database, objects: Objects, age: int, repositories: Path) -> None:
    """Run the sweep as a task and log the result. `age` is in seconds; 0 turns the sweep off."""
    if not age:
        return
    count = size = unfinished = 0
    try:
        async for swept in sweep(database, objects, at_least(age), repositories):
            count += len(swept.objects)
            size += sum(stored.size for stored in swept.objects)
            unfinished += len(swept.unfinished)
    except Unavailable as problem:
        log.warning("the sweep of stored objects was not finished", cause=problem.cause or str(problem))
    log.info("stored objects swept", without_row=count, bytes=size, unfinished=unfinished)


def at_least(age: int) -> datetime.timedelta:
    """Return `age` seconds, at least LEAST_AGE."""
    return datetime.timedelta(seconds=max(age, LEAST_AGE))


async def _time_of(objects: Objects) -> datetime.datetime:
    """Return the present time by the clock of the store, which dates the objects and may differ from the
    application's."""
    marker = f"sweep/{os.urandom(8).hex()}"
    await objects.put(marker, _no_chunks())
    markers = [entry async for batch in objects.batches("sweep") for entry in batch]
    (now,) = [entry.modified for entry in markers if entry.key == marker]
    old = now - datetime.timedelta(seconds=LEAST_AGE)
    await objects.discard(entry.key for entry in markers if entry.key == marker or entry.modified < old)
    return now


async def _rows_that_arrive() -> None:
    await asyncio.sleep(SECOND_LOOK_AFTER)


async def _no_chunks() -> AsyncIterator[bytes]:
    yield b"."


async def _unnamed(database: Database, batch: Sequence[Entry]) -> list[Entry]:
    """Return the objects that no row names. An index belongs to its archive; keys of another form are left
    alone."""
    owners = {stored.key: stored.key.removesuffix(INDEX) for stored in batch if _KEY.fullmatch(stored.key)}
    keys = sorted(set(owners.values()))
    if not keys:
        return []
    unnamed = await queries.unnamed(database, keys, [_job_of(key) for key in keys])
    return [stored for stored in batch if owners.get(stored.key) in unnamed]


def _job_of(key: str) -> int | None:
    match = _KEY.fullmatch(key)
    return int(match["job"]) if match is not None and match["job"] else None


def _unfinished(folder: Path, before: float, *, dry_run: bool) -> Iterator[list[Path]]:
    """Yield the files of uploads that were cut off before a moment, folder by folder, and remove them and
    empty folders."""
    for root, _, names in os.walk(folder, topdown=False):
        folder_path, old = Path(root), []
        for name in filter(is_unfinished, names):
            with suppress(FileNotFoundError):
                if (folder_path / name).stat().st_mtime < before:
                    old.append(folder_path / name)
        if not dry_run:
            for file in old:
                file.unlink(missing_ok=True)
            _remove_if_empty(folder_path, folder, before)
        if old:
            yield old


def _remove_if_empty(folder: Path, root: Path, before: float) -> None:
    with suppress(OSError):  # most folders are not empty
        if folder != root and folder.stat().st_mtime < before:
            folder.rmdir()
