"""The interface of the object store, which keeps bytes by key that are too many for the database (decision
D10).

Every failure of the store raises `Unavailable`; a missing object raises FileNotFoundError.
"""

import abc
import asyncio
import datetime
import io
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Protocol

import attrs
import structlog

from api_server.state.errors import Unavailable
from common.lifecycle import Degraded
from common.logs import ThrottledLog
from common.measures import Tally

STORE_ERRORS = Tally("forgelet_object_store_errors", "Requests to the object store that failed.")


@contextmanager
def store_failures(*others: type[Exception]) -> Iterator[None]:
    """Convert OSError and `others`, the errors of a store, to `Unavailable`, except for FileNotFoundError."""
    failures: tuple[type[Exception], ...] = (OSError, *others)
    try:
        yield
    except FileNotFoundError as problem:
        if "NoSuchBucket" in str(problem):
            STORE_ERRORS.value += 1
            raise Unavailable("the object store") from problem
        raise
    except failures as problem:
        STORE_ERRORS.value += 1
        raise Unavailable("the object store") from problem


log = ThrottledLog(structlog.get_logger(__name__))

#: Suffix of the key of an object that says where an archive's files are; it is deleted together with the
#: archive.
INDEX = ".index"
#: Bytes that are held at a time while an object is written or read.
CHUNK = 2**20
#: Maximum number of objects in one batch of a listing.
LISTED_TOGETHER = 1000
#: Seconds that the store has to answer a readiness check.
CHECK_SECONDS = 2.0


@attrs.frozen
class Entry:
    """A stored object: its size in bytes, and the time at which the store says that it was written."""

    key: str
    size: int
    modified: datetime.datetime


class Objects(abc.ABC):
    """Objects by key; keys are paths such as `projects/1/jobs/2/<random>`. An object exists completely or not
    at all."""

    #: The folder of a store in local files; None for others.
    folder: Path | None = None
    _check: "asyncio.Task[None] | None" = None

    @property
    def location(self) -> str:
        """The name by which operators know the store."""
        return "object store" if self.folder is None else str(self.folder)

    @abc.abstractmethod
    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        """Write `chunks` as they come. On return the object is durable; after an error there is no object.

        Raise `Unavailable` if the store is full or does not answer, and before the disk is full.
        """

    @abc.abstractmethod
    def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Yield the bytes from `start` to `end` (exclusive). Raise FileNotFoundError, before the first byte
        only, or `Unavailable` if not all can be read. A reader that may stop early must close the generator
        (`aclosing`): a file may be open."""

    @abc.abstractmethod
    def open(self, key: str) -> IO[bytes]:
        """Return a seekable file for random access. Its calls block: use it in a thread.

        Raise FileNotFoundError and, as all calls of the file do, `Unavailable`.
        """

    @abc.abstractmethod
    async def size(self, key: str) -> int:
        """Return the size of an object in bytes. Raise FileNotFoundError and `Unavailable`."""

    @abc.abstractmethod
    async def delete(self, keys: Iterable[str]) -> None:
        """Delete the objects, ignoring those that do not exist. Raise `Unavailable`."""

    @abc.abstractmethod
    def batches(self, prefix: str) -> AsyncIterator[list[Entry]]:
        """Yield the objects whose keys begin with `prefix` and a slash, in no order, at most LISTED_TOGETHER
        at a time. Raise `Unavailable`."""

    @abc.abstractmethod
    async def _try(self) -> None:
        """Raise `Unavailable` if the store cannot be used."""

    async def exists(self, key: str) -> bool:
        """Return whether the object exists. Raise `Unavailable`."""
        with suppress(FileNotFoundError):
            await self.size(key)
            return True
        return False

    async def discard(self, keys: Iterable[str]) -> None:
        """Delete objects that no row names; leave those that cannot be deleted now to the sweep."""
        try:
            await self.delete(keys)
        except Unavailable as problem:
            log.warning(
                "an unneeded object could not be deleted, the sweep will delete it", cause=problem.cause
            )

    async def delete_below(self, prefix: str) -> None:
        """Delete every object whose key begins with `prefix` and a slash. Raise `Unavailable`."""
        async for batch in self.batches(prefix):
            await self.delete(entry.key for entry in batch)

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """Yield the keys that begin with `prefix` and a slash, in no order. Raise `Unavailable`."""
        async for batch in self.batches(prefix):
            for entry in batch:
                yield entry.key

    async def check(self) -> None:
        """Raise `Degraded` if the store cannot be used: requests that need only the database and repositories
        are still served. Only one check runs at a time, and no caller waits for it longer than
        CHECK_SECONDS."""
        if self._check is None:
            self._check = asyncio.create_task(self._try())
        trial = self._check
        if not (await asyncio.wait({trial}, timeout=CHECK_SECONDS))[0]:
            raise Degraded(f"the object store does not answer within {CHECK_SECONDS:.0f} seconds")
        self._check = None
        try:
            trial.result()
        except Unavailable as problem:
            raise Degraded(f"{problem}: {problem.cause}") from None


class Reader(Protocol):
    """The methods of a file that an opened object needs."""

    def read(self, size: int, /) -> Any: ...
    def seek(self, offset: int, whence: int, /) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class OpenedObject(io.RawIOBase):
    """An object as a Python file; `failures` are the errors that its store raises besides OSError."""

    def __init__(self, reader: Reader, *failures: type[Exception]) -> None:
        self._reader = reader
        self._failures = failures

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with store_failures(*self._failures):
            data = self._reader.read(len(buffer))
        buffer[: len(data)] = bytes(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with store_failures(*self._failures):
            return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()
