"""Objects and the rows that name them, held against each other: objects that no row names are swept away.

A process that is killed between storing an object and writing its row leaves such an object, and so does a row that was
removed while the store was away. All is done in batches: a million objects take no more memory than a thousand.
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
from api_server.state.objects import INDEX, Listed, Objects

log = structlog.get_logger(__name__)

#: Seconds for which nothing is touched, whatever the setting says: an upload stores its object before its row.
LEAST_AGE = 3600
#: Seconds until objects in S3 are looked at once more. S3 dates an object by the beginning of its upload: one that is
#: old may have arrived a moment ago, its row not yet.
SECOND_LOOK_AFTER = 60.0
#: Objects that are looked up together.
BATCH = 1000
#: Requests to the store at a time.
_AT_ONCE = 20
#: When the daily task runs: minute, hour.
DAILY = "41 2 * * *"
_KEY = re.compile(r"projects/\d+/(?:jobs/(?P<job>\d{1,18})|lfs)/[^/]+")


@attrs.frozen
class Swept:
    """What was found at a time: objects without rows, and the files of uploads that were cut off."""

    objects: Sequence[Listed] = ()
    unfinished: Sequence[Path] = ()


async def sweep(
    database: Database,
    objects: Objects,
    age: datetime.timedelta,
    repositories: Path,
    *,
    dry_run: bool = False,
) -> AsyncIterator[Swept]:
    """Removes what no row names and is older than `age`, batch after batch, and gives what it was; a dry run only
    gives it. Raises `Unavailable`, also while a backup is under way that may still name what is found, and can be
    begun anew at any time."""
    before = await _time_of(objects) - age
    async for batch in objects.listed("projects"):
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
    """The opposite: the kind (artifacts, logs, LFS objects) and key of every object that a row names and that is not
    there. Asks the store once for each. Raises `Unavailable`."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def is_missing(key: str) -> bool:
        async with turns:
            return not await objects.exists(key)

    for kind in queries.NAMED:
        last: queries.Named | None = None
        while rows := await queries.named(database, kind, last, BATCH):
            last = rows[-1]
            gone = await asyncio.gather(*(is_missing(row.key) for row in rows))
            lost = [row.key for row, is_gone in zip(rows, gone, strict=True) if is_gone]
            if lost:  # some may have been removed with their rows since these were read
                unnamed = await queries.unnamed(database, lost, [_job_of(key) for key in lost])
                for key in lost:
                    if key not in unnamed:
                        yield kind, key


async def sweep_daily(database: Database, objects: Objects, age: int, repositories: Path) -> None:
    """The sweep as a task; `age` in seconds, 0 is not at all. Says in the log what it did."""
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
    """So many seconds, or LEAST_AGE."""
    return datetime.timedelta(seconds=max(age, LEAST_AGE))


async def _time_of(objects: Objects) -> datetime.datetime:
    """What time it is for the store, which dates what is in it: its clock need not be the application's."""
    marker = f"sweep/{os.urandom(8).hex()}"
    await objects.put(marker, _nothing())
    markers = [marked async for batch in objects.listed("sweep") for marked in batch]
    (now,) = [marked.modified for marked in markers if marked.key == marker]
    old = now - datetime.timedelta(seconds=LEAST_AGE)
    await objects.discard(marked.key for marked in markers if marked.key == marker or marked.modified < old)
    return now


async def _rows_that_arrive() -> None:
    await asyncio.sleep(SECOND_LOOK_AFTER)


async def _nothing() -> AsyncIterator[bytes]:
    yield b"."


async def _unnamed(database: Database, batch: Sequence[Listed]) -> list[Listed]:
    """An index goes with its archive; what has a key of another kind is left alone."""
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
    """Files of uploads that were cut off before a moment, those of one folder at a time; with empty folders, they are
    removed."""
    for at, _, names in os.walk(folder, topdown=False):
        here, old = Path(at), []
        for name in filter(is_unfinished, names):
            with suppress(FileNotFoundError):
                if (here / name).stat().st_mtime < before:
                    old.append(here / name)
        if not dry_run:
            for file in old:
                file.unlink(missing_ok=True)
            _remove_if_empty(here, folder, before)
        if old:
            yield old


def _remove_if_empty(folder: Path, root: Path, before: float) -> None:
    with suppress(OSError):  # most are not
        if folder != root and folder.stat().st_mtime < before:
            folder.rmdir()
