"""The interface of the object store, which keeps bytes too many for the database by key (decision D10).

Whatever goes wrong with the store is `Unavailable`, that there is no such object FileNotFoundError.
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
    """Turns what a store raises, OSError and `others`, into `Unavailable`, but for FileNotFoundError."""
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

#: At the end of the key of an object that says where in another one its files are, and goes with it.
INDEX = ".index"
#: Bytes that are held at a time while an object is written or read.
CHUNK = 2**20
#: Objects that a listing gives at a time.
LISTED_TOGETHER = 1000
#: Seconds that the store has to answer when readiness asks.
CHECK_SECONDS = 2.0


@attrs.frozen
class Listed:
    """An object that is there: its size in bytes, and when the store says that it was written."""

    key: str
    size: int
    modified: datetime.datetime


class Objects(abc.ABC):
    """Objects by key; keys are paths such as `projects/1/jobs/2/<random>`. An object is there wholly or not at all."""

    #: Of a store of local files.
    folder: Path | None = None
    _check: "asyncio.Task[None] | None" = None

    @property
    def location(self) -> str:
        """What operators know it by."""
        return "object store" if self.folder is None else str(self.folder)

    @abc.abstractmethod
    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        """Writes `chunks` as they come. Where that raises, nothing is there afterwards. On return it is durable.

        Raises `Unavailable` when the store is full or does not answer, and before the disk is.
        """

    @abc.abstractmethod
    def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        """Bytes `start` to `end` (exclusive), all of them or it raises: FileNotFoundError, before the first of them
        only, and `Unavailable`. Who may stop before the end closes it (`aclosing`): a file may be open."""

    @abc.abstractmethod
    def open(self, key: str) -> IO[bytes]:
        """A seekable file, for code that has to jump about in it; its calls block: use it in a thread.

        Raises FileNotFoundError, and as all that reads it, `Unavailable`.
        """

    @abc.abstractmethod
    async def size(self, key: str) -> int:
        """Bytes of an object. Raises FileNotFoundError and `Unavailable`."""

    @abc.abstractmethod
    async def delete(self, keys: Iterable[str]) -> None:
        """Removes them; those that are gone already are passed over. Raises `Unavailable`."""

    @abc.abstractmethod
    def listed(self, prefix: str) -> AsyncIterator[list[Listed]]:
        """The objects whose keys begin with `prefix` and a slash, in no order, at most LISTED_TOGETHER at a time.
        Raises `Unavailable`."""

    @abc.abstractmethod
    async def _look(self) -> None:
        """Raises `Unavailable` where the store cannot be used."""

    async def exists(self, key: str) -> bool:
        """Raises `Unavailable`."""
        with suppress(FileNotFoundError):
            await self.size(key)
            return True
        return False

    async def discard(self, keys: Iterable[str]) -> None:
        """Removes what no row names; what cannot be removed now is left to the sweep."""
        try:
            await self.delete(keys)
        except Unavailable as problem:
            log.warning("an object that nothing needs stays for the sweep", cause=problem.cause)

    async def delete_below(self, prefix: str) -> None:
        """Removes everything whose key begins with `prefix` and a slash. Raises `Unavailable`."""
        async for batch in self.listed(prefix):
            await self.delete(entry.key for entry in batch)

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin with `prefix` and a slash, in no order. Raises `Unavailable`."""
        async for batch in self.listed(prefix):
            for entry in batch:
                yield entry.key

    async def check(self) -> None:
        """Readiness: raises `Degraded` where the store cannot be used. What is in the database and in repositories is
        served even so. One look at a time, and nobody waits for it longer than CHECK_SECONDS."""
        if self._check is None:
            self._check = asyncio.create_task(self._look())
        look = self._check
        if not (await asyncio.wait({look}, timeout=CHECK_SECONDS))[0]:
            raise Degraded(f"the object store does not answer within {CHECK_SECONDS:.0f} seconds")
        self._check = None
        try:
            look.result()
        except Unavailable as problem:
            raise Degraded(f"{problem}: {problem.cause}") from None


class Reader(Protocol):
    """As much of a file as an opened object needs."""

    def read(self, size: int, /) -> Any: ...
    def seek(self, offset: int, whence: int, /) -> int: ...
    def tell(self) -> int: ...
    def close(self) -> None: ...


class OpenedObject(io.RawIOBase):
    """An object as Python's file protocol has it; `failures` is what its store raises besides OSError."""

    def __init__(self, reader: Reader, *failures: type[Exception]) -> None:
        self._reader = reader
        self._failures = failures

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with store_failures(*self._failures):
            piece = self._reader.read(len(buffer))
        buffer[: len(piece)] = bytes(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with store_failures(*self._failures):
            return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()

    def close(self) -> None:
        if not self.closed:
            self._reader.close()
        super().close()
