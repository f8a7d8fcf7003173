"""The bytes of responses, in memory or in a file (see `spool.py` for those that arrive); all are read by offset."""

import os
from pathlib import Path
from typing import Final, Protocol

import attrs

#: Most bytes that are read at a time.
BLOCK: Final = 256 * 1024
#: Most bytes of a file that are given away at a time.
FILE_BLOCK: Final = 1024 * 1024

#: What changes with a file, also when its length stays: inode, length, and times of its last changes (ns).
Identity = tuple[int, int, int, int]


class TruncatedBodyError(Exception):
    """The origin stopped before the end; whoever reads must not let its own answer end cleanly."""


class BodyGoneError(Exception):
    """The file of a stored body is not there any more, or has changed; the response counts as not stored."""


@attrs.frozen
class FilePart:
    """`size` bytes of an open file from `offset`; right until their reader is closed."""

    descriptor: int
    offset: int
    size: int


class Reader(Protocol):
    """One reading of a body."""

    async def read(self, offset: int, size: int) -> bytes | memoryview:
        """At least one and at most `size` bytes from `offset`, as soon as there are any; nothing only at the end.

        Raises `TruncatedBodyError` when the bytes will never come.
        """

    async def part(self, offset: int, size: int) -> FilePart | None:
        """Likewise, as they are in a file; None where they are not in one, or there are none."""

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

    async def part(self, offset: int, size: int) -> None:
        """It is in memory."""

    def close(self) -> None:
        """Memory needs no closing."""


class FileBody:
    """A complete body in a file of the disk tier, which has `identity` as long as it holds these bytes."""

    __slots__ = ("_shared", "identity", "length", "path")

    def __init__(self, path: Path, identity: Identity) -> None:
        self.path = path
        self.identity = identity
        self.length = identity[1]
        self._shared: SharedFile | None = None

    def open(self) -> "FileReader":
        """Opens the file, once for all who read it at a time; raises `BodyGoneError` when it was evicted or is not
        what it was.
        """
        self._check()
        if self._shared is None or not self._shared.is_open:
            self._shared = SharedFile(self)
        return FileReader(self._shared)

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


class SharedFile:
    """A file that is read, and stays there for its readers when it is evicted. It is let go of with its last reader,
    whoever else still holds this object.
    """

    def __init__(self, body: FileBody) -> None:
        self.readers = 0
        self.descriptor = body.descriptor()
        self.length = body.length
        self._bytes = body.identity[1:3]
        self.is_open = True

    def check(self) -> None:
        """Raises `TruncatedBodyError` when the file is being changed."""
        stat = os.fstat(self.descriptor)
        if (stat.st_size, stat.st_mtime_ns) != self._bytes:
            raise TruncatedBodyError

    def close(self) -> None:
        """Lets the file go."""
        if self.is_open:
            self.is_open = False
            os.close(self.descriptor)


class FileReader:
    """Reads a file that others may be reading too."""

    __slots__ = ("_file",)

    def __init__(self, file: SharedFile) -> None:
        self._file: SharedFile | None = file
        file.readers += 1

    async def read(self, offset: int, size: int) -> bytes:
        """A copy: as a view of a mapped file it would count as memory of the process, for all that was ever sent."""
        return piece(self._checked().descriptor, min(size, BLOCK), offset)

    async def part(self, offset: int, size: int) -> FilePart | None:
        """What is to be read, where it is."""
        file = self._checked()
        size = min(size, FILE_BLOCK, file.length - offset)
        return FilePart(file.descriptor, offset, size) if size > 0 else None

    def _checked(self) -> SharedFile:
        assert self._file is not None  # noqa: S101 - nobody reads after closing
        self._file.check()
        return self._file

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


def piece(descriptor: int, size: int, offset: int) -> bytes:
    """Bytes of a file that are there; raises `TruncatedBodyError` when they cannot be read."""
    try:
        return os.pread(descriptor, size, offset)
    except OSError as error:
        raise TruncatedBodyError from error
