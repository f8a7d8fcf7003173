"""The disk tier: bodies in files named by their digest, and an SQLite index that processes on one machine share.

All methods of `DiskTier` block; `Store` calls them from one worker thread. They raise sqlite3.Error or OSError,
which has to be reported to `failed`; clients never see these errors.

Bodies that have arrived in memory are saved to disk a moment later, together (`WaitingRoom`): saving them at once
would take processor time just when clients get their answers.
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

#: A body larger than this share of the budget is stored only when it is requested again, if others had to be evicted
#: for it.
LARGE_PART: Final = 1 / 16
#: Seconds for which nothing is written after a failure, so that a hanging disk or lock does not slow every miss.
AVOIDED_SECONDS: Final = 1.0
#: Bytes that have to fit on the disk before it counts as usable again.
PROBE: Final = b"\0" * 65536
_VERSION: Final = "v2"
#: Errors that may pass by themselves. At the start, the operator has to correct all others.
_PASSING: Final = frozenset(
    {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}
)


class DiskTier:
    """Files below `directory`, at most `budget` bytes of them. `clock` returns seconds since 1970."""

    def __init__(self, directory: Path, budget: int, clock: Callable[[], float]) -> None:
        self._root = directory / _VERSION
        self.budget = budget
        self._clock = clock
        self.files = BodyFiles(self._root / "objects")
        #: The number of bodies that this process has evicted, and of its failures; bytes of all bodies and number of
        #: responses, when it last looked.
        self.evicted = self.failures = self.size = self.responses = 0
        #: The reason why the tier cannot be used, if one is known, otherwise empty.
        self.problem = ""
        self._carried_out = 0
        self._avoided_until = 0.0
        self._log = ThrottledLog(log)
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
        """Close the index. Bodies that are still arriving are lost."""
        self._index.close()
        self.purges.close()
        self._arrivals.close()

    def has(self, target: str) -> bool:
        """Return whether anything is or may be stored under a target. Fast enough for the event loop."""
        return self._index.has(target)

    def find(self, target: str) -> list[StoredResponse]:
        """Return all responses under a target that no purge concerns and whose files are complete and checked."""
        responses = []
        for row in index_file.find(self._index.writer(), target):
            body = self.files.find(row.digest, row.size) if row.is_intact else None
            if body is None:
                self.forget(row.digest)
                continue
            stored = row.stored(target, body, self.purges.since(max(row.epoch, row.purged)))
            if stored is not None:
                responses.append(stored)
        return responses

    def ask(self, question: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of a function that only reads the index."""
        return question(self._index.writer())

    @property
    def pending_purges(self) -> int:
        """Return how many purges are in effect but not carried out on the index yet."""
        return len(self.purges.since(self._carried_out))

    def set_aside(self, file: ArrivingFile, minimum: int, preferred: int, *, displace: bool) -> bool:
        """Extend the file of an arriving body to the `preferred` length, or at least to `minimum`. Return False if
        the budget has no room for it."""
        if minimum > self.budget or self._is_avoided:
            return False
        displace = displace or minimum <= self.budget * LARGE_PART
        with self._lock.held():
            for size in (preferred, minimum):
                if self._make_room(size - file.size, displace=displace):
                    self._arrivals.set_aside(file, size)
                    return True
        return False

    def save(self, stored: StoredResponse, arrived: Arrived, *, wanted_again: bool) -> FileBody | None:
        """Store a response whose body has arrived. Return None if it is too large, or if a purge came in between.

        `wanted_again` says that the object was requested before, which lets a large one displace others.
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
        """Store several responses whose bodies are in memory, in one transaction: all or, after an error, none.
        Return None if each has to be handled alone because there is not room for all of them."""
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
        """Replace the fields of a response. Return False, without a change, if its bytes are others by now."""
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
        """Remove one response."""
        with self._transaction() as index:
            index_file.remove(index, stored.target, selection_key(stored.selected))

    def touch(self, hits: Mapping[str, int]) -> list[str]:
        """Record how often responses were used, for eviction and `/-/stored`. Return the targets that are not here."""
        if self._is_avoided:
            return list(hits)
        with self._transaction() as index:
            return index_file.touch(index, hits, self._clock())

    def carry_out_purges(self, after: int) -> int:
        """Carry out the pending purges on the index. Return how many responses were hit by those after the epoch
        `after`."""
        with self._transaction():
            pass
        return sum(hit for number, hit in self._hit if number > after)

    def sweep(self, part: str) -> None:
        """Delete files without a row, which a killed process has left."""
        files = self.files.of_part(part)
        if files:
            with self._transaction() as index:
                for digest in files:
                    if not index_file.has_body(index, digest):
                        self.files.remove(digest)

    def forget(self, digest: str) -> None:
        """Remove a body, its file and all responses that have it."""
        with self._transaction() as index:
            index_file.remove_body(index, digest)

    def check(self, digest: str) -> None:
        """Remove a body whose file was damaged or missing when it was read, unless it was removed in the meantime."""
        with self._transaction() as index:
            if index_file.remove_body(index, digest):
                self.files.found_damaged(digest)

    def tend(self) -> None:
        """Create missing files and folders, remove leftovers of dead processes, carry out pending purges, and find out
        whether the disk can be written."""
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
        """Handle an error of the other methods: the content of the tier counts as not stored for a while."""
        self.failures += 1
        self.problem = reason(error)
        self._avoided_until = time.monotonic() + AVOIDED_SECONDS
        self._log.warning("the disk tier cannot be used", about=self.problem, reason=self.problem)
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
        """Return whether `size` more bytes fit into the budget, including arriving bodies. Evict others for it if
        they may be displaced."""
        available = self.budget - self._arrivals.bytes_of_all() - size
        self.size = index_file.total(self._index.writer())
        if self.size <= available or not displace:
            return self.size <= available
        with self._transaction() as index:
            while index_file.total(index) > available:
                if not index_file.evict(index):
                    return False
                self.evicted += 1
        return True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction, before which pending purges are carried out. Files of bodies that it removes are
        deleted before it ends, so that no process can use such a body again in between. If it fails, files of bodies
        that it adds are deleted."""
        index = self._index.writer()
        index.execute("BEGIN IMMEDIATE")
        try:
            carried_out = index_file.purged(index)
            for number, purge in self.purges.since(carried_out):
                self._hit.append((number, index_file.carry_out(index, number, purge)))
                carried_out = number
            yield index
            for digest in index_file.take_garbage(index):
                if not index_file.has_body(index, digest):
                    self.files.remove(digest)
            self.size = index_file.total(index)
            self.responses = index_file.count(index)
            index.execute("COMMIT")
            self._carried_out = carried_out
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
#: Number of bytes that may wait. A request that adds more waits until they are saved.
MAX_UNSAVED_BYTES: Final = 16 * 1024 * 1024
#: Maximum number of bodies, and of bytes, that are saved in one transaction. Other work on the disk and other processes
#: get their turn in between.
BATCH: Final = 16
BATCH_BYTES: Final = 4 * 1024 * 1024

#: A function that is called when a response is on disk, with the SHA-256 of its body in hexadecimal, and its file.
OnSaved = Callable[[StoredResponse, str, Path], None]


#: A function that calls another one in a thread of its own.
InWorker = Callable[[Callable[[], list[FileBody | None]]], Awaitable[list[FileBody | None]]]


@attrs.define(eq=False)
class Unsaved:
    """A response whose body is in memory, in the form that the disk tier takes. `wanted_again`: see `DiskTier.save`."""

    stored: StoredResponse
    body: MemoryBody
    wanted_again: bool
    on_saved: OnSaved | None = None

    in_memory = True

    @property
    def size(self) -> int:
        """Bytes of the body."""
        return self.body.length

    @functools.cached_property
    def digest(self) -> str:
        """The SHA-256 in hexadecimal, computed when the body is saved."""
        return hashlib.sha256(self.body.data).hexdigest()

    def move_to(self, path: Path, directory: Path) -> None:
        """See `Arrived.move_to`."""
        unfinished = f"{directory}/{path.name}"
        try:
            with open(unfinished, "wb", buffering=0) as file:  # noqa: PTH123 - three times as fast
                offset = file.write(self.body.data)
                while offset < self.size:
                    offset += file.write(self.body.data[offset:])
            os.replace(unfinished, path)  # noqa: PTH105 - faster
        except OSError:
            Path(unfinished).unlink(missing_ok=True)
            raise

    def is_saved(self, file: FileBody) -> None:
        """Note that the response is on disk now."""
        self.body.file = file
        if self.on_saved is not None:
            self.on_saved(self.stored, self.digest, file.path)


class WaitingRoom:
    """The responses that are not saved yet. `in_worker`, that is, in the thread of the disk tier, they are saved in the
    order of their arrival, unless they have been purged since their storing began. Errors affect no client."""

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
        """Whether more bytes wait than allowed."""
        return self._bytes > MAX_UNSAVED_BYTES

    def add(self, unsaved: Unsaved) -> None:
        """Save the response in a moment."""
        self._waiting.append(unsaved)
        self._targets[unsaved.stored.target] += 1
        self._bytes += unsaved.size
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DELAY, self._begin)

    async def settle(self, target: str) -> None:
        """Save everything now if a response of the target waits, because the next operation on disk must come after
        that."""
        if target in self._targets:
            await self.flush()

    async def flush(self) -> None:
        """Save everything now. A cancelled caller waits for the end."""
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
        """Save everything that still waits."""
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
    """Save them together, or one by one if that fails, so that the failure of one does not affect the others."""
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
