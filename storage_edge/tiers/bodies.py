"""The bytes of responses: in memory, in a file, or still arriving; all are read by offset."""

import asyncio
import hashlib
import mmap
import os
import tempfile
import weakref
from pathlib import Path
from typing import Final, Protocol

from common.ending import ended

#: Most bytes that are read at a time.
BLOCK: Final = 256 * 1024
#: Pieces of up to so many bytes are copied from a file that grows; larger ones are views.
COPIED: Final = 16 * 1024
#: A file of unknown length is mapped anew when it has grown by so many bytes.
MAPPING_STEP: Final = 4 * 1024 * 1024


class TruncatedBodyError(Exception):
    """The origin stopped before the end; whoever reads must not let its own answer end cleanly."""


class BodyGoneError(Exception):
    """The file of a stored body is not there any more; the response counts as not stored."""


class Reader(Protocol):
    """One reading of a body."""

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """At least one and at most `size` bytes from `offset`, as soon as there are any; nothing only at the end.

        Raises `TruncatedBodyError` when the bytes will never come.
        """

    def close(self) -> None:
        """Gives back what the reading holds."""


class Body(Protocol):
    """The bytes of one response."""

    @property
    def length(self) -> int | None:
        """Length in bytes, None while the end of a body that arrives is not known."""

    def open(self) -> Reader:
        """Starts a reading; raises `BodyGoneError`."""


class MemoryBody:
    """A complete body in memory; its own reader. `file` holds the same bytes, if it is still there."""

    __slots__ = ("data", "file", "length")

    def __init__(self, data: bytes, file: Path | None = None) -> None:
        self.data = data
        self.length = len(data)
        self.file = file

    def open(self) -> "MemoryBody":
        """Memory needs no opening."""
        return self

    async def read(self, offset: int, size: int) -> memoryview:
        """A view, no copy."""
        return memoryview(self.data)[offset : offset + size]

    def close(self) -> None:
        """Memory needs no closing."""


class FileBody:
    """A complete body in a file of the disk tier."""

    __slots__ = ("_mapped", "length", "path")

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self.length = length
        self._mapped: weakref.ref[MappedFile] | None = None

    def open(self) -> "FileReader":
        """Maps the file, once for all who read it at a time; raises `BodyGoneError` when it was evicted or is not
        as long as it was.
        """
        mapped = self._mapped() if self._mapped is not None else None
        if mapped is None:
            mapped = MappedFile(self.path, self.length)
            self._mapped = weakref.ref(mapped)
        return FileReader(mapped)


class MappedFile:
    """A file's bytes in the page cache: readers share them without copies, and keep them when it is evicted."""

    __slots__ = ("__weakref__", "view")

    def __init__(self, path: Path, length: int) -> None:
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BodyGoneError from error
        try:
            if os.fstat(descriptor).st_size != length:
                raise BodyGoneError
            self.view = _mapped(descriptor, length)
        finally:
            os.close(descriptor)


class FileReader:
    """Reads a mapped file."""

    __slots__ = ("_file",)

    def __init__(self, file: MappedFile) -> None:
        self._file: MappedFile | None = file

    async def read(self, offset: int, size: int) -> memoryview:
        """A view, no copy."""
        assert self._file is not None  # noqa: S101 - nobody reads after closing
        return self._file.view[offset : offset + min(size, BLOCK)]

    def close(self) -> None:
        """Lets the file go."""
        self._file = None


class Spool:
    """A body that arrives: one writer, any number of readers that follow it.

    It starts in memory and moves to a file in `directory` when it outgrows `memory_limit` bytes.
    """

    def __init__(self, directory: Path, memory_limit: int, length: int | None) -> None:
        self._directory = directory
        self._memory_limit = memory_limit
        self._memory: bytearray | None = bytearray()
        self._file: int | None = None
        self._path: Path | None = None
        self._readers = 0
        self._closed = False
        self._digest = hashlib.sha256()
        self._progress = asyncio.get_running_loop().create_future()
        self._view = memoryview(b"")
        self.size = 0
        self.finished = False
        self.truncated = False
        self.length = length

    @property
    def in_memory(self) -> bool:
        """Whether the body has not outgrown memory so far."""
        return self._memory is not None

    @property
    def digest(self) -> str:
        """SHA-256 of what has arrived, in hexadecimal."""
        return self._digest.hexdigest()

    async def write(self, chunk: bytes) -> None:
        """Appends and wakes the readers."""
        if self._memory is not None and self.size + len(chunk) <= self._memory_limit:
            self._memory += chunk
            self._digest.update(chunk)
        else:
            await ended(asyncio.get_running_loop().run_in_executor(None, self._write_file, chunk))
        self.size += len(chunk)
        self._wake()

    def _write_file(self, chunk: bytes) -> None:
        if self._file is None:
            self._file, name = tempfile.mkstemp(dir=self._directory)
            self._path = Path(name)
            if self.length is not None:
                os.ftruncate(self._file, self.length)
                self._view = _mapped(self._file, self.length)
            _write_all(self._file, bytes(self._memory or b""), 0)
            self._memory = None
        _write_all(self._file, chunk, self.size)
        self._digest.update(chunk)

    def finish(self) -> None:
        """The origin has sent all of it."""
        self.length = self.size
        self.finished = True
        self._wake()

    def data(self) -> bytes:
        """All bytes of a finished spool that stayed in memory."""
        assert self._memory is not None  # noqa: S101 - callers ask in_memory first
        return bytes(self._memory)

    def move_to(self, path: Path) -> None:
        """Gives a finished body its place in one step: whoever sees `path` sees all of it."""
        if self._path is None:
            descriptor, name = tempfile.mkstemp(dir=self._directory)
            with os.fdopen(descriptor, "wb") as file:
                file.write(self.data())
            Path(name).replace(path)
        else:
            self._path.replace(path)
            self._path = None

    def open(self) -> "SpoolReader":
        """Starts a reading that follows the writer; raises `BodyGoneError` once it is closed or cut off."""
        if self.truncated or (self._memory is None and self._file is None):
            raise BodyGoneError
        self._readers += 1
        return SpoolReader(self)

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """See `Reader.read`."""
        while offset >= self.size:
            if self.finished:
                return b""
            if self.truncated:
                raise TruncatedBodyError
            await asyncio.shield(self._progress)
        end = min(offset + min(size, BLOCK), self.size)
        memory = self._memory  # the thread that moves it to a file may do so meanwhile
        if memory is not None:
            return bytes(memory[offset:end])
        return self._from_file(offset, end)

    def _from_file(self, offset: int, end: int) -> bytes | memoryview:
        """Readers share the page cache's bytes; a small piece is copied, which is cheaper than mapping its pages."""
        assert self._file is not None  # noqa: S101 - not in memory, so in the file
        if end - offset <= COPIED:
            return os.pread(self._file, end - offset, offset)
        if end > len(self._view):
            if not self.finished and self.size - len(self._view) < MAPPING_STEP:
                return os.pread(self._file, end - offset, offset)
            self._view = _mapped(self._file, self.size)
        return self._view[offset:end]

    def release(self) -> None:
        """The cache needs it no more; it is closed with its last reader.

        One that is not finished will never be: every reader fails when it comes to the end of what there is.
        """
        self._closed = True
        if not self.finished:
            self.truncated = True
            self._wake()
        self._close_when_unused()

    def reader_closed(self) -> None:
        """One reading less."""
        self._readers -= 1
        self._close_when_unused()

    def _close_when_unused(self) -> None:
        if self._closed and not self._readers and self._file is not None:
            os.close(self._file)
            self._file = None
            if self._path is not None:
                self._path.unlink(missing_ok=True)

    def _wake(self) -> None:
        progress, self._progress = self._progress, asyncio.get_running_loop().create_future()
        progress.set_result(None)


class SpoolReader:
    """One reading of a spool."""

    __slots__ = ("_open", "_spool")

    def __init__(self, spool: Spool) -> None:
        self._spool = spool
        self._open = True

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """Waits for bytes that have not arrived yet."""
        return await self._spool.read(offset, size)

    def close(self) -> None:
        """Lets the spool go when nobody else reads it."""
        if self._open:
            self._open = False
            self._spool.reader_closed()


def _mapped(descriptor: int, length: int) -> memoryview:
    if length == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_READ))


def _write_all(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view = view[written:]
        offset += written
