"""The bytes of responses, in memory or in a file (see `spool.py` for those that are arriving). All are read by
offset."""

import asyncio
import os
from pathlib import Path
from typing import Final, Protocol

import attrs

#: The most bytes that are read at a time.
BLOCK: Final = 256 * 1024
#: The most bytes of a file that are sent at a time.
FILE_BLOCK: Final = 1024 * 1024

#: Properties that change with a file even if its length does not: inode, length, and times of its last changes (ns).
Identity = tuple[int, int, int, int]


class TruncatedBodyError(Exception):
    """The origin stopped before the end. The reader must not end its own answer normally."""


class BodyGoneError(Exception):
    """The file of a stored body has changed or no longer exists. The response counts as not stored."""


@attrs.frozen
class FilePart:
    """`size` bytes of an open file from `offset`, valid until the reader is closed."""

    descriptor: int
    offset: int
    size: int


class Reader(Protocol):
    """One reading of a body."""

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """Return at least one and at most `size` bytes from `offset`, as soon as there are any, and nothing only at
        the end.

        Raise `TruncatedBodyError` if the bytes will never come.
        """

    async def part(self, offset: int, size: int) -> FilePart | None:
        """Return the same bytes as a part of a file, or None if they are not in a file or there are none."""

    def close(self) -> None:
        """Release the resources of the reading."""


class Body(Protocol):
    """The bytes of one response."""

    @property
    def length(self) -> int | None:
        """The length in bytes, or None while the end of an arriving body is not known."""

    def open(self) -> Reader:
        """Start a reading. Raise `BodyGoneError`."""


class MemoryBody:
    """A complete body in memory, which is its own reader. `file` held the same bytes when it was made. `coded` has
    the same bytes compressed (None: that makes them no smaller)."""

    __slots__ = ("coded", "data", "file", "length")

    def __init__(self, data: bytes, file: "FileBody | None" = None) -> None:
        self.data = data
        self.length = len(data)
        self.file = file
        self.coded: dict[str, MemoryBody | None] = {}

    @property
    def resident(self) -> int:
        """Bytes in memory, including those of its codings."""
        return self.length + sum(body.length for body in self.coded.values() if body is not None)

    def open(self) -> "MemoryBody":
        """Return this body, since memory need not be opened."""
        return self

    async def read(self, offset: int, size: int) -> memoryview:
        """Return a view, not a copy."""
        return memoryview(self.data)[offset : offset + size]

    async def part(self, offset: int, size: int) -> None:
        """Return None: a body in memory has no file."""

    def close(self) -> None:
        """Do nothing, since memory need not be closed."""


class FileBody:
    """A complete body in a file of the disk tier. The file has `identity` as long as it holds these bytes."""

    __slots__ = ("_shared", "identity", "length", "path")

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.length = identity[1]
        self._shared: SharedFile | None = None

    def open(self) -> "FileReader":
        """Open the file, once for all who read it at the same time. Raise `BodyGoneError` if it was evicted or
        changed."""
        self._check()
        if self._shared is None or not self._shared.is_open:
            self._shared = SharedFile(self)
        return FileReader(self._shared)

    def descriptor(self) -> int:
        """Return a new descriptor of the file for reading, which the caller has to close. Raise `BodyGoneError`."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise BodyGoneError from error
        if identity(os.fstat(descriptor)) != self.identity:
            os.close(descriptor)
            raise BodyGoneError
        return descriptor

    def read_all(self) -> bytes:
        """Return all bytes. Raise `BodyGoneError`."""
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


class SharedFile:
    """A file that stays open for its readers even if it is evicted. It is closed with its last reader, even if this
    object is still referenced."""

    def __init__(self, body: FileBody) -> None:
        self.readers = 0
        self.descriptor = body.descriptor()
        self.length = body.length
        self._bytes = body.identity[1:3]
        self.is_open = True

    def check(self) -> None:
        """Raise `TruncatedBodyError` if the file is being changed."""
        stat = os.fstat(self.descriptor)
        if (stat.st_size, stat.st_mtime_ns) != self._bytes:
            raise TruncatedBodyError

    def close(self) -> None:
        """Close the file. If it was evicted, a thread does that, because freeing the blocks of a large file takes
        long."""
        if self.is_open:
            self.is_open = False
            if os.fstat(self.descriptor).st_nlink:
                os.close(self.descriptor)
            else:
                asyncio.get_running_loop().run_in_executor(None, os.close, self.descriptor)


class FileReader:
    """A reading of a file that others may be reading, too."""

    __slots__ = ("_file",)

    def __init__(self, file: SharedFile) -> None:
        self._file: SharedFile | None = file
        file.readers += 1

    async def read(self, offset: int, size: int) -> bytes:
        """Return a copy: a view of a mapped file would count as memory of the process for everything that was ever
        sent."""
        return piece(self._checked().descriptor, min(size, BLOCK), offset)

    async def part(self, offset: int, size: int) -> FilePart | None:
        """Return the place of the bytes in the file."""
        file = self._checked()
        size = min(size, FILE_BLOCK, file.length - offset)
        return FilePart(file.descriptor, offset, size) if size > 0 else None

    def _checked(self) -> SharedFile:
        assert self._file is not None  # noqa: S101 - nobody reads after closing
        self._file.check()
        return self._file

    def close(self) -> None:
        """Close the file if nobody else reads it."""
        file, self._file = self._file, None
        if file is not None:
            file.readers -= 1
            if not file.readers:
                file.close()


def identity(stat: os.stat_result) -> Identity:
    """Return the properties by which a change of the file is noticed."""
    return stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns


def piece(descriptor: int, size: int, offset: int) -> bytes:
    """Return bytes of a file that must exist. Raise `TruncatedBodyError` if they cannot be read."""
    try:
        return os.pread(descriptor, size, offset)
    except OSError as error:
        raise TruncatedBodyError from error
