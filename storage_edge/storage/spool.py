"""An arriving body: one writer, and readers that follow it. Small bodies stay in memory."""

import asyncio
import bisect
import contextlib
import hashlib
import math
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, Protocol

from common.concurrency import ended
from storage_edge.storage import bodies
from storage_edge.storage.bodies import BLOCK, FILE_BLOCK, BodyGoneError, FilePart, TruncatedBodyError
from storage_edge.storage.files import ArrivingFile

#: Smaller pieces are joined, because each piece costs an object.
CHUNK: Final = 16 * 1024


class Gathered:
    """All pieces that have arrived, readable by offset. Larger ones are neither copied nor moved, so that a slow
    body does not fragment the memory."""

    def __init__(self) -> None:
        #: Only the last piece ever changes. In a thread, take the list before you look at it.
        self.chunks: list[bytes] = []
        self._ends: list[int] = []

    def add(self, chunk: bytes) -> None:
        """Append a piece of at least one byte."""
        if self.chunks and len(self.chunks[-1]) + len(chunk) <= CHUNK:
            self.chunks[-1] += chunk
            self._ends[-1] += len(chunk)
        else:
            self._ends.append((self._ends[-1] if self._ends else 0) + len(chunk))
            self.chunks.append(chunk)

    def read(self, offset: int, size: int) -> memoryview:
        """Return at least one and at most `size` bytes from `offset`, if there are any."""
        number = bisect.bisect_right(self._ends, offset)
        chunk = self.chunks[number]
        start = offset - (self._ends[number] - len(chunk))
        return memoryview(chunk)[start : start + size]

    def whole(self) -> bytes:
        """Return all bytes, joined once."""
        if len(self.chunks) != 1:
            whole = b"".join(self.chunks)
            self.chunks, self._ends = [whole], [len(whole)]
        return self.chunks[0]


#: Bytes by which the file of a body with unknown length is extended at a time.
STEP: Final = 4 * 1024 * 1024
#: Number of bytes by which a body that cannot be stored may be ahead of its slowest reader.
MAX_AHEAD: Final = 1024 * 1024


class UnwantedError(Exception):
    """Nobody reads a body, and it cannot be stored, or nobody has read it for a while."""


class SpaceProvider(Protocol):
    """A provider of space for a body that outgrows memory."""

    @property
    def displace(self) -> bool:
        """Return whether others may be evicted for it, however large it is, because it was requested before."""

    async def set_aside(self, file: ArrivingFile, minimum: int, preferred: int) -> bool:
        """Reserve space for a file. Return False if there is none."""

    def failed(self, error: OSError) -> None:
        """Note that the file could not be written."""


class Spool:
    """An arriving body with one writer and any number of readers that follow it.

    It starts in memory and moves to a file when it outgrows `memory_limit` bytes. If there is no space, or if the
    file cannot be written, the body is only passed on to its present readers, at the pace of the slowest, and not
    stored (`is_kept`).
    """

    def __init__(
        self, space: SpaceProvider, memory_limit: int, length: int | None, *, unread_seconds: float = math.inf
    ) -> None:
        """Create an empty spool. `unread_seconds` limits how long the body may arrive without a reader (see
        `arriving`)."""
        self.space = space
        self._memory_limit = memory_limit
        self._memory: Gathered | None = Gathered()
        self._file = ArrivingFile()
        #: Bytes that are only passed on: everything after the `_kept` bytes in memory or file, from `_ahead_from` on.
        self._ahead: bytearray | None = None
        self._kept = self._ahead_from = 0
        self._readers: set[SpoolReader] = set()
        self._unread_seconds = unread_seconds
        self._limit: asyncio.Timeout | None = None
        self._closed = False
        self._digest = hashlib.sha256()
        self._progress = asyncio.get_running_loop().create_future()
        self._advanced = asyncio.Event()
        self.size = 0
        self.finished = False
        self.truncated = False
        self.length = length

    @property
    def is_kept(self) -> bool:
        """Whether everything that has arrived is still available."""
        return self._ahead is None

    @property
    def in_memory(self) -> bool:
        """Whether the body has not outgrown memory so far."""
        return self._memory is not None and self.is_kept

    @property
    def digest(self) -> str:
        """The SHA-256 of what has arrived, in hexadecimal. For a body in memory it is computed now."""
        digest = self._digest
        if self._memory is not None and self._ahead is None:
            digest = hashlib.sha256(self._memory.whole())
        return digest.hexdigest()

    @contextlib.asynccontextmanager
    async def arriving(self) -> AsyncIterator[None]:
        """Raise `UnwantedError` in the block, in which the body arrives, when nobody has read it for too long."""
        try:
            async with asyncio.timeout(None) as self._limit:
                self._limit_unread()
                yield
        except TimeoutError:
            if self._limit is None or not self._limit.expired():
                raise
            raise UnwantedError from None
        finally:
            self._limit = None

    def _limit_unread(self) -> None:
        """Begin to wait for a reader, or stop waiting if there is one."""
        if self._limit is not None and self._unread_seconds < math.inf and not self._limit.expired():
            now = asyncio.get_running_loop().time()
            self._limit.reschedule(None if self._readers else now + self._unread_seconds)

    async def write(self, chunk: bytes) -> None:
        """Append bytes and wake the readers. Raise `UnwantedError`."""
        if self._ahead is None and not await self._keep(chunk):
            if self._memory is not None:
                self._digest.update(self._memory.whole())
            self._ahead = bytearray()
            self._kept = self._ahead_from = self.size
        if self._ahead is not None:
            await self._pass_on(self._ahead, chunk)
        self.size += len(chunk)
        self._wake()

    async def _keep(self, chunk: bytes) -> bool:
        end = self.size + len(chunk)
        if self._memory is not None and end <= self._memory_limit:
            self._memory.add(chunk)
            return True
        if end > self._file.size and not await self._has_room(end):
            return False
        try:
            await ended(asyncio.get_running_loop().run_in_executor(None, self._write_file, chunk))
        except OSError as error:
            self.space.failed(error)
            return False
        finally:
            if self._memory is not None:
                self._file.close()  # nothing is in it
        return True

    async def _has_room(self, end: int) -> bool:
        if self.length is None:
            return await self.space.set_aside(self._file, end, end + STEP)
        minimum = max(end, self.length)
        return await self.space.set_aside(self._file, minimum, minimum)

    def _write_file(self, chunk: bytes) -> None:
        before, offset = [] if self._memory is None else self._memory.chunks, 0
        for part in before:
            _write_all(self._descriptor, part, offset)
            offset += len(part)
        _write_all(self._descriptor, chunk, self.size)
        for part in before:
            self._digest.update(part)
        self._memory = None
        self._digest.update(chunk)

    async def _pass_on(self, ahead: bytearray, chunk: bytes) -> None:
        while True:
            if self._readers:
                passed_on = min(reader.position for reader in self._readers) - self._ahead_from
                if passed_on > 0:
                    del ahead[:passed_on]
                    self._ahead_from += passed_on
            if len(ahead) < MAX_AHEAD and (self._readers or self._ahead_from == self._kept):
                break
            if not self._readers:
                raise UnwantedError
            self._advanced.clear()
            await self._advanced.wait()
        ahead += chunk
        self._digest.update(chunk)

    def finish(self) -> None:
        """Note that the origin has sent the whole body."""
        self.length = self.size
        self.finished = True
        self._wake()

    def data(self) -> bytes:
        """Return all bytes of a finished spool that stayed in memory."""
        assert self._memory is not None  # noqa: S101 - callers ask in_memory first
        return self._memory.whole()

    def move_to(self, path: Path, _directory: Path) -> None:
        """See `Arrived.move_to`. For a finished body that is not in memory."""
        assert self._file.path is not None  # noqa: S101 - callers ask in_memory first
        os.ftruncate(self._descriptor, self.size)
        self._file.path.replace(path)
        self._file.path = None

    def open(self) -> "SpoolReader":
        """Start a reading that follows the writer. Raise `BodyGoneError` if the spool is closed or broken off, or if
        its beginning is no longer available."""
        is_gone = self._memory is None and self._file.descriptor is None
        is_ending = self._limit is not None and self._limit.expired()
        if self.truncated or is_ending or is_gone or self._ahead_from > self._kept:
            raise BodyGoneError
        reader = SpoolReader(self)
        self._readers.add(reader)
        self._limit_unread()
        return reader

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """See `Reader.read`."""
        if not await self._arrived(offset):
            return b""
        end = min(offset + min(size, BLOCK), self.size)
        if self._ahead is not None and offset >= self._kept:
            if offset < self._ahead_from:
                raise TruncatedBodyError  # the ranges were requested in descending order
            return bytes(self._ahead[offset - self._ahead_from : end - self._ahead_from])
        if self._ahead is not None:
            end = min(end, self._kept)
        memory = self._memory  # another thread may move it to a file in the meantime
        if memory is not None:
            return memory.read(offset, end - offset)
        return bodies.piece(self._descriptor, end - offset, offset)

    async def part(self, offset: int, size: int) -> FilePart | None:
        """See `Reader.part`."""
        if not await self._arrived(offset) or self._memory is not None:
            return None
        end = min(offset + min(size, FILE_BLOCK), self.size if self._ahead is None else self._kept)
        return FilePart(self._descriptor, offset, end - offset) if offset < end else None

    async def _arrived(self, offset: int) -> bool:
        """Wait for a byte at `offset` and return whether it exists. Raise `TruncatedBodyError` if it does not come."""
        while offset >= self.size:
            if self.finished:
                return False
            if self.truncated:
                raise TruncatedBodyError
            await asyncio.shield(self._progress)
        return True

    @property
    def _descriptor(self) -> int:
        descriptor = self._file.descriptor
        assert descriptor is not None  # noqa: S101 - not in memory, so in the file
        return descriptor

    def release(self) -> None:
        """Note that the cache no longer needs the spool, and close it with its last reader.

        An unfinished body will never be complete: every reader fails at the end of what has arrived.
        """
        self._closed = True
        if not self.finished:
            self.truncated = True
            self._wake()
        self._close_when_unused()

    def advanced(self, reader: "SpoolReader | None" = None) -> None:
        """Note that a reader has read further, or that `reader` has ended."""
        if reader in self._readers:
            self._readers.discard(reader)
            self._limit_unread()
        self._advanced.set()
        self._close_when_unused()

    def _close_when_unused(self) -> None:
        """Close the file if nobody reads it, even if this object is still referenced. A thread does that, because
        freeing the blocks of a large file takes long."""
        if self._closed and not self._readers and self._file.descriptor is not None:
            file, self._file = self._file, ArrivingFile()
            asyncio.get_running_loop().run_in_executor(None, file.close)

    def _wake(self) -> None:
        progress, self._progress = self._progress, asyncio.get_running_loop().create_future()
        progress.set_result(None)


class SpoolReader:
    """One reading of a spool. It has read everything before `position`."""

    __slots__ = ("_spool", "position")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self.position = 0

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return bytes, and wait for them if they have not arrived."""
        self.position = offset
        part = await self._spool.read(offset, size)
        self.position = offset + len(part)
        self._spool.advanced()
        return part

    async def part(self, offset: int, size: int) -> FilePart | None:
        """Return the same bytes as a part of the file, or None if they are not in a file."""
        self.position = offset
        return await self._spool.part(offset, size)

    def close(self) -> None:
        """Close the spool if nobody else reads it."""
        self._spool.advanced(self)


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        count = os.pwrite(descriptor, view, offset)
        view = view[count:]
        offset += count
