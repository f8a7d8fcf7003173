"""The bytes of responses, in memory or in a file (see `spool.py` for those that arrive); all are read by offset."""

import mmap
import os
from pathlib import Path
from typing import Final, Protocol

#: Most bytes that are read at a time.
BLOCK: Final = 256 * 1024

#: What changes with a file, also when its length stays: inode, length, and times of its last changes (ns).
Identity = tuple[int, int, int, int]


class TruncatedBodyError(Exception):
    """The origin stopped before the end; whoever reads must not let its own answer end cleanly."""


class BodyGoneError(Exception):
    """The file of a stored body is not there any more, or has changed; the response counts as not stored."""


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
    """A complete body in memory; its own reader. `file` held the same bytes when it was made, `coded` are the same by
    content coding (None: it makes them no smaller).
    """

    __slots__ = ("coded", "data", "file", "length")

    def __init__(self, data: bytes, file: "FileBody | None" = None) -> None:
        self.data = data
        self.length = len(data)
        self.file = file
        self.coded: dict[str, MemoryBody | None] = {}

    @property
    def resident(self) -> int:
        """Bytes in memory, those of its codings included."""
        return self.length + sum(body.length for body in self.coded.values() if body is not None)

    def open(self) -> "MemoryBody":
        """Memory needs no opening."""
        return self

    async def read(self, offset: int, size: int) -> memoryview:
        """A view, no copy."""
        return memoryview(self.data)[offset : offset + size]

    def close(self) -> None:
        """Memory needs no closing."""


class FileBody:
    """A complete body in a file of the disk tier, which has `identity` as long as it holds these bytes."""

    __slots__ = ("_mapped", "identity", "length", "path")

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.length = identity[1]
        self._mapped: MappedFile | None = None

    def open(self) -> "FileReader":
        """Maps the file, once for all who read it at a time; raises `BodyGoneError` when it was evicted or is not
        what it was.
        """
        self._check()
        if self._mapped is None or not self._mapped.is_open:
            self._mapped = MappedFile(self)
        return FileReader(self._mapped)

    def descriptor(self) -> int:
        """The file, opened for reading, for the caller to close; raises `BodyGoneError`."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BodyGoneError from error
        if identity(os.fstat(descriptor)) != self.identity:
            os.close(descriptor)
            raise BodyGoneError
        return descriptor

    def read_all(self) -> bytes:
        """All bytes; raises `BodyGoneError`."""
        descriptor = self.descriptor()
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(self.length + 1)
            if identity(os.fstat(descriptor)) != self.identity:
                raise BodyGoneError
        return data

    def _check(self) -> None:
        try:
            if identity(self.path.stat()) == self.identity:
                return
        except OSError:
            pass
        raise BodyGoneError


class MappedFile:
    """A file's bytes in the page cache: readers share them without copies, and keep them when it is evicted.

    It is let go of with its last reader, whoever else still holds this object.
    """

    def __init__(self, body: FileBody) -> None:
        self.readers = 0
        self._descriptor = body.descriptor()
        self._bytes = body.identity[1:3]
        self._view = mapped(self._descriptor, body.length)
        self.is_open = True

    def piece(self, offset: int, size: int) -> memoryview:
        """A view; raises `TruncatedBodyError` when the file is being changed. What is not there any more must not be
        looked at: the kernel kills whoever does.
        """
        stat = os.fstat(self._descriptor)
        if (stat.st_size, stat.st_mtime_ns) != self._bytes:
            raise TruncatedBodyError
        return self._view[offset : offset + size]

    def close(self) -> None:
        """Lets the file go, as soon as what was given away of it is gone too."""
        if self.is_open:
            self.is_open = False
            self._view = memoryview(b"")
            os.close(self._descriptor)


class FileReader:
    """Reads a mapped file."""

    __slots__ = ("_file",)

    def __init__(self, file: MappedFile) -> None:
        self._file: MappedFile | None = file
        file.readers += 1

    async def read(self, offset: int, size: int) -> memoryview:
        """A view, no copy."""
        assert self._file is not None  # noqa: S101 - nobody reads after closing
        return self._file.piece(offset, min(size, BLOCK))

    def close(self) -> None:
        """Lets the file go, if nobody else reads it."""
        file, self._file = self._file, None
        if file is not None:
            file.readers -= 1
            if not file.readers:
                file.close()


def identity(stat: os.stat_result) -> Identity:
    """What a change of a file would change."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def mapped(descriptor: int, length: int) -> memoryview:
    """The first `length` bytes of a file, as a view of the page cache."""
    if length == 0:
        return memoryview(b"")
    return memoryview(mmap.mmap(descriptor, length, access=mmap.ACCESS_READ))
