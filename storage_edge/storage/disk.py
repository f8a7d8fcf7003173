"""The disk tier: bodies in files named by their digest, and an SQLite index that processes on one machine share.

All methods of `DiskTier` block; `Store` calls them from one worker thread. What fails raises sqlite3.Error or OSError,
which `failed` is to be told of; nothing of it concerns a client.

Bodies that have arrived in memory and are to be on disk are saved a moment later, together (`WaitingRoom`): saving at
once would take the processor just when those who asked for them get their answers.
"""

import asyncio
import contextlib
import errno
import functools
import hashlib
import os
import sqlite3
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, TypeVar

import attrs
import structlog

from common.concurrency import ended
from common.logs import ThrottledLog
from storage_edge.storage import files as arrivals
from storage_edge.storage import index as index_file
from storage_edge.storage.bodies import FileBody, MemoryBody
from storage_edge.storage.files import Arrivals, Arrived, ArrivingFile, BodyFiles, DirectoryLock
from storage_edge.storage.index import IndexConnection, is_damage, reason
from storage_edge.storage.purges import OldLogError, PurgeLog
from storage_edge.storage.stored_responses import StoredResponse, selection_key

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: A body larger than this part of the budget is kept only when it is asked for again, if others had to go for it.
LARGE_PART: Final = 1 / 16
#: Seconds for which nothing is written after a failure, so that a disk or lock that hangs does not slow every miss.
AVOIDED_SECONDS: Final = 1.0
#: Bytes that have to find room for the disk to count as usable again.
PROBE: Final = b"\0" * 65536
_VERSION: Final = "v2"
#: What may pass by itself; at the start anything else is the operator's mistake.
_PASSING: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}
)


class DiskTier:
    """Files below `directory`, at most `budget` bytes of them. `clock` gives seconds since 1970."""

    def __init__(self, directory: Path, budget: int, clock: Callable[[], float]) -> None:
        self._root = directory / _VERSION
        self.budget = budget
        self._clock = clock
        self.files = BodyFiles(self._root / "objects")
        #: Bodies that this process has evicted, its failures; bytes of all bodies, and responses, when it last looked.
        self.evicted = self.failures = self.size = self.responses = 0
        #: Why the tier cannot be used, as far as it is known; empty when it can.
        self.problem = ""
        self._carried_out = 0
        self._avoided_until = 0.0
        self._said = ThrottledLog(log)
        self._placed: list[str] = []
        self._hit: deque[tuple[int, int]] = deque(maxlen=64)
        self._lock = DirectoryLock(self._root)
        self._arrivals = Arrivals(self._root / "incoming")
        self.purges = PurgeLog(self._root / "purges", clock)
        self._index = IndexConnection(self._root / "index.sqlite3", self.purges, self._lock)
        try:
            self._make_directories()
        except OSError as error:
            if error.errno not in _PASSING:
                raise SystemExit(
                    f"The data directory {directory} cannot be written: {error.strerror}."
                ) from None
            self.failed(error)
        self.purges.epoch(0)
        try:
            self.tend()
            for part in self.files.parts():
                self.sweep(part)
        except (sqlite3.Error, OSError) as error:
            self.failed(error)

    def close(self) -> None:
        """Closes the index; what arrives still is lost."""
        self._index.close()
        self.purges.close()
        self._arrivals.close()

    def has(self, target: str) -> bool:
        """Whether anything is stored under a target, or may be; quick, for the event loop."""
        return self._index.has(target)

    def find(self, target: str) -> list[StoredResponse]:
        """All responses stored under a target that no purge has concerned, their files complete and checked."""
        found = []
        for row in index_file.find(self._index.writer(), target):
            body = self.files.find(row.digest, row.size) if row.is_intact else None
            if body is None:
                self.forget(row.digest)
                continue
            stored = row.stored(target, body, self.purges.since(max(row.epoch, row.purged)))
            if stored is not None:
                found.append(stored)
        return found

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """What a question to the index, which changes nothing, is answered with."""
        return question(self._index.writer())

    @property
    def pending_purges(self) -> int:
        """How many purges hold, but have not been carried out on the index yet."""
        return len(self.purges.since(self._carried_out))

    def set_aside(self, file: ArrivingFile, least: int, wanted: int, *, displace: bool) -> bool:
        """Makes the file of a body that arrives as long as is wanted, or as is needed at least; False when the budget
        has no room for it.
        """
        if least > self.budget or self._is_avoided:
            return False
        displace = displace or least <= self.budget * LARGE_PART
        with self._lock.held():
            for size in (wanted, least):
                if self._make_room(size - file.size, displace=displace):
                    self._arrivals.set_aside(file, size)
                    return True
        return False

    def save(self, stored: StoredResponse, arrived: Arrived, *, wanted_again: bool) -> FileBody | None:
        """Keeps a response whose body has arrived; None when it is too large, or a purge came in between.

        `wanted_again` says that the object has been asked for before, which lets a large one displace others.
        """
        if self._is_avoided:
            return None
        size, digest = arrived.size, arrived.digest
        displace = wanted_again or size <= self.budget * LARGE_PART
        with self._lock.held():
            is_extra = arrived.in_memory and not index_file.has_body(self._index.writer(), digest)
            if is_extra and not self._make_room(size, displace=displace):
                return None
            with self._transaction() as index:
                return self._put(index, stored, arrived)

    def save_all(self, several: Sequence[tuple[StoredResponse, Arrived]]) -> list[FileBody | None] | None:
        """Likewise several whose bodies are in memory, in one transaction, which keeps none of them when it fails; None
        where each has to be looked at alone: there is not room for all of them without asking.
        """
        if self._is_avoided:
            return [None for _ in several]
        needed = sum(arrived.size for _, arrived in several if arrived.digest)
        with self._lock.held():
            if not self._make_room(needed, displace=False):
                return None
            with self._transaction() as index:
                return [self._put(index, stored, arrived) for stored, arrived in several]

    def _put(self, index: sqlite3.Connection, stored: StoredResponse, arrived: Arrived) -> FileBody | None:
        if any(purge.concerns(stored) for _, purge in self.purges.since(stored.epoch)):
            return None
        digest = arrived.digest
        is_there = index_file.has_body(index, digest)
        body = self.files.find(digest, arrived.size) if is_there else None
        if body is None:
            self._placed.append(digest)
            body = self.files.place(arrived, self._arrivals.prepare())
        if not is_there:
            index_file.add_body(index, digest, arrived.size, self._clock())
        index_file.put(index, stored, digest)
        return body

    def update(self, stored: StoredResponse) -> bool:
        """Replaces the fields of a response, unless others have put other bytes there; False where that is not done."""
        if self._is_avoided:
            return False
        file = stored.body.file if isinstance(stored.body, MemoryBody) else stored.body
        with self._transaction() as index:
            digest = index_file.digest_of(index, stored)
            if digest is None or any(purge.concerns(stored) for _, purge in self.purges.since(stored.epoch)):
                return True
            is_its = isinstance(file, FileBody) and file.path == self.files.path(digest)
            if is_its:
                index_file.put(index, stored, digest)
        return is_its

    def remove(self, stored: StoredResponse) -> None:
        """Drops one response."""
        with self._transaction() as index:
            index_file.remove(index, stored.target, selection_key(stored.selected))

    def touch(self, hits: Mapping[str, int]) -> list[str]:
        """Notes how often responses were used, for eviction and `/-/stored`; the targets that are not here."""
        if self._is_avoided:
            return list(hits)
        with self._transaction() as index:
            return index_file.touch(index, hits, self._clock())

    def carry_out_purges(self, after: int) -> int:
        """Carries out on the index the purges that it has not been told of yet; how many responses those after the
        epoch `after` have hit.
        """
        with self._transaction():
            pass
        return sum(hit for number, hit in self._hit if number > after)

    def sweep(self, part: str) -> None:
        """Deletes files that a killed process left without a row."""
        files = self.files.of_part(part)
        if files:
            with self._transaction() as index:
                for digest in files:
                    if not index_file.has_body(index, digest):
                        self.files.remove(digest)

    def forget(self, digest: str) -> None:
        """Drops a body, its file and all responses that have it."""
        with self._transaction() as index:
            index_file.remove_body(index, digest)

    def check(self, digest: str) -> None:
        """Drops a body whose file was read and had other bytes, or was not there, unless it has gone meanwhile."""
        with self._transaction() as index:
            if index_file.remove_body(index, digest):
                self.files.found_damaged(digest)

    def tend(self) -> None:
        """Makes again what has gone, removes what dead processes have left, carries out the purges that could not be,
        and finds out whether the disk can be written.
        """
        self._make_directories()
        with self._lock.held():
            self._arrivals.clear()
            probe = ArrivingFile()
            try:
                self._arrivals.set_aside(probe, len(PROBE))
                os.pwrite(probe.descriptor or 0, PROBE, 0)
            finally:
                probe.close()
        with self._transaction():
            pass
        if self.problem:
            log.info("the disk tier can be used again", problem=self.problem)
            self.problem = ""
        self._avoided_until = 0.0

    def failed(self, error: Exception) -> None:
        """Something of the above has failed: what the tier holds counts as not stored for a while."""
        self.failures += 1
        self.problem = reason(error)
        self._avoided_until = time.monotonic() + AVOIDED_SECONDS
        self._said.warning("the disk tier cannot be used", about=self.problem, reason=self.problem)
        if is_damage(error):
            with contextlib.suppress(OSError):
                self._index.start_anew()
                self._avoided_until = 0.0

    @property
    def _is_avoided(self) -> bool:
        return time.monotonic() < self._avoided_until

    def _make_directories(self) -> None:
        self.files.directory.mkdir(parents=True, exist_ok=True)
        with self._lock.held():
            self._arrivals.prepare()
            arrivals.remove_others(self._root)

    def _make_room(self, size: int, *, displace: bool) -> bool:
        """Whether `size` more bytes fit into the budget, with what arrives; others go for them, if they may be
        displaced.
        """
        room = self.budget - self._arrivals.bytes_of_all() - size
        self.size = index_file.total(self._index.writer())
        if self.size <= room or not displace:
            return self.size <= room
        with self._transaction() as index:
            while index_file.total(index) > room:
                if not index_file.evict(index):
                    return False
                self.evicted += 1
        return True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction, before which the purges that are missing are carried out. Files of bodies that it
        drops are deleted before it ends, so that no process can bring such a body back in between; those of bodies
        that it was to add, when it fails.
        """
        index = self._index.writer()
        index.execute("BEGIN IMMEDIATE")
        try:
            done = index_file.purged(index)
            for number, purge in self.purges.since(done):
                self._hit.append((number, index_file.carry_out(index, number, purge)))
                done = number
            yield index
            for digest in index_file.take_garbage(index):
                if not index_file.has_body(index, digest):
                    self.files.remove(digest)
            self.size = index_file.total(index)
            self.responses = index_file.count(index)
            index.execute("COMMIT")
            self._carried_out = done
        except BaseException:
            for digest in self._placed:
                self.files.remove(digest)
            if index.in_transaction:
                index.execute("ROLLBACK")
            raise
        finally:
            self._placed.clear()


#: Seconds for which a body may wait to be saved.
DELAY: Final = 0.1
#: Bytes that may wait; whoever brings more waits until they are saved.
MOST_BYTES: Final = 16 * 1024 * 1024
#: Bodies that are saved at one go, in one transaction, and their bytes; others that need the disk get their turn in
#: between, and so do other processes.
BATCH: Final = 16
BATCH_BYTES: Final = 4 * 1024 * 1024

#: Learns of a response that is on disk now: SHA-256 of its body in hexadecimal, and its file.
Saved = Callable[[StoredResponse, str, Path], None]


#: Calls a function in a thread of its own.
InWorker = Callable[[Callable[[], list[FileBody | None]]], Awaitable[list[FileBody | None]]]


@attrs.define(eq=False)
class Unsaved:
    """A response whose body is in memory, as the disk tier takes it. `wanted_again`: see `DiskTier.save`."""

    stored: StoredResponse
    body: MemoryBody
    wanted_again: bool
    saved: Saved | None = None

    in_memory = True

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self.body.length

    @functools.cached_property
    def digest(self) -> str:
        """SHA-256 in hexadecimal, made by whoever saves."""
        return hashlib.sha256(self.body.data).hexdigest()

    def move_to(self, path: Path, directory: Path) -> None:
        """See `Arrived.move_to`."""
        unfinished = f"{directory}/{path.name}"
        try:
            with open(unfinished, "wb", buffering=0) as file:  # noqa: PTH123 - thrice as fast
                written = file.write(self.body.data)
                while written < self.size:
                    written += file.write(self.body.data[written:])
            os.replace(unfinished, path)  # noqa: PTH105 - likewise
        except OSError:
            Path(unfinished).unlink(missing_ok=True)
            raise

    def is_saved(self, file: FileBody) -> None:
        """It is on disk from now on."""
        self.body.file = file
        if self.saved is not None:
            self.saved(self.stored, self.digest, file.path)


class WaitingRoom:
    """What is unsaved. It is saved in the order in which it came, `in_worker`: the thread of the disk tier. A purge
    that came since a response began to be stored wins; what fails there concerns nobody.
    """

    def __init__(self, disk: DiskTier, in_worker: InWorker) -> None:
        self._disk = disk
        self._in_worker = in_worker
        self._waiting: list[Unsaved] = []
        self._targets: Counter[str] = Counter()
        self._bytes = 0
        self._one_at_a_time = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def is_full(self) -> bool:
        """Whether more waits than should."""
        return self._bytes > MOST_BYTES

    def add(self, unsaved: Unsaved) -> None:
        """It is saved in a moment."""
        self._waiting.append(unsaved)
        self._targets[unsaved.stored.target] += 1
        self._bytes += unsaved.size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY, self._begin)

    async def settle(self, target: str) -> None:
        """Saves it now if anything of a target waits: what is done on disk next has to come after that."""
        if target in self._targets:
            await self.flush()

    async def flush(self) -> None:
        """Saves all of it now. A caller that is cancelled waits for the end."""
        await ended(asyncio.create_task(self._flush()))

    async def _flush(self) -> None:
        async with self._one_at_a_time:
            while self._waiting:
                batch = self._next_batch()
                try:
                    files = await self._in_worker(functools.partial(_save, self._disk, batch))
                finally:
                    self._forget(batch)
                for unsaved, file in zip(batch, files, strict=True):
                    if file is not None:
                        unsaved.is_saved(file)

    async def aclose(self) -> None:
        """Saves what waits still."""
        if self._timer is not None:
            self._timer.cancel()
        await self.flush()

    def _next_batch(self) -> list[Unsaved]:
        batch, size = self._waiting[:1], self._waiting[0].size
        for unsaved in self._waiting[1:BATCH]:
            size += unsaved.size
            if size > BATCH_BYTES:
                break
            batch.append(unsaved)
        del self._waiting[: len(batch)]
        return batch

    def _forget(self, batch: list[Unsaved]) -> None:
        for unsaved in batch:
            self._bytes -= unsaved.size
            self._targets[unsaved.stored.target] -= 1
            if not self._targets[unsaved.stored.target]:
                del self._targets[unsaved.stored.target]

    def _begin(self) -> None:
        self._timer = None
        self._task = asyncio.get_running_loop().create_task(self.flush())


def _save(disk: DiskTier, batch: list[Unsaved]) -> list[FileBody | None]:
    """Together, or else one by one: what fails with one of them is the others' no concern."""
    if len(batch) > 1:
        with contextlib.suppress(sqlite3.Error, OSError):
            files = disk.save_all([(unsaved.stored, unsaved) for unsaved in batch])
            if files is not None:
                return files
    return [_save_alone(disk, unsaved) for unsaved in batch]


def _save_alone(disk: DiskTier, unsaved: Unsaved) -> FileBody | None:
    try:
        return disk.save(unsaved.stored, unsaved, wanted_again=unsaved.wanted_again)
    except OldLogError:
        pass
    except (sqlite3.Error, OSError) as error:
        disk.failed(error.with_traceback(None))
    return None
