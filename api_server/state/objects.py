"""The object store: bytes too many for the database, by key, in local files or in S3 (decision D10).

Whatever goes wrong with the store is `Unavailable`, that there is no such object FileNotFoundError.
"""

import asyncio
import datetime
import errno
import io
import os
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import attrs
import obstore
import structlog
from aiohttp import web
from obstore.store import LocalStore, from_url
from obstore.store import ObjectStore as Backend

from api_server.state import disk
from api_server.state.errors import Unavailable
from api_server.state.store_failures import store_failures
from common.operations import Degraded
from common.throttled_log import ThrottledLog

if TYPE_CHECKING:
    from obstore import ReadableFile

log = ThrottledLog(structlog.get_logger(__name__))

#: At the end of the key of an object that says where in another one its files are, and goes with it.
INDEX = ".index"
#: Bytes that are held at a time while an object is written or read.
CHUNK = 2**20
#: Parts of one object on their way at a time; S3 wants parts of at least 5 MiB.
_PART = 5 * CHUNK
_PARTS_AT_A_TIME = 2
#: Seconds that the store has to answer when readiness asks.
CHECK_SECONDS = 2.0
#: Nothing is ever stored here. To read it costs a twelfth of a listing; unlike HEAD's, the answer says what is wrong.
_NOTHING = "readiness"
_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


@attrs.frozen
class Listed:
    """An object that is there: its size in bytes, and when the store says that it was written."""

    key: str
    size: int
    modified: datetime.datetime


class Objects:
    """Objects by key; keys are paths such as `projects/1/jobs/2/<random>`. An object is there wholly or not at all."""

    def __init__(self, backend: Backend, folder: Path | None, disk_reserve: int = 0) -> None:
        self._backend = backend
        self._disk_reserve = disk_reserve
        self._check: asyncio.Task[None] | None = None
        #: Of a store of local files.
        self.folder = folder

    @property
    def place(self) -> str:
        """What operators know it by."""
        return "object store" if self.folder is None else str(self.folder)

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        """Writes `chunks` as they come. Where that raises, nothing is there afterwards. On return it is durable.

        Raises `Unavailable` when the store is full or does not answer, and before the disk is.
        """
        source = _Source(chunks)
        await asyncio.to_thread(self._check_folder)
        try:
            with store_failures():
                await obstore.put_async(
                    self._backend,
                    key,
                    source.chunks() if self.folder is None else self._within_the_disk(source, self.folder),
                    use_multipart=True,
                    chunk_size=_PART,
                    max_concurrency=_PARTS_AT_A_TIME,
                )
                if self.folder is not None:
                    await asyncio.to_thread(disk.make_durable, self.folder / key, self.folder)
            return
        except (Unavailable, FileNotFoundError) as problem:
            cause = problem.__cause__ or problem
        if source.problem is not None:
            raise source.problem
        raise Unavailable("the object store") from cause

    async def _within_the_disk(self, source: "_Source", folder: Path) -> AsyncIterator[bytes]:
        async for chunk in source.chunks():
            if not await asyncio.to_thread(disk.leaves_free, folder, len(chunk), self._disk_reserve):
                raise Unavailable("the object store") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield chunk

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Bytes `start` to `end` (exclusive), all of them or it raises: FileNotFoundError, before the first of them
        only, and `Unavailable`.

        A store ends answers that take long, and a reader may be slow: what breaks off after some bytes is asked for
        again from there.
        """
        position = start
        while position < end:
            began = position
            try:
                with store_failures():
                    found = await obstore.get_async(self._backend, key, options={"range": (position, end)})
                    async for chunk in found.stream(min_chunk_size=64 * 1024):
                        position += len(chunk)
                        yield bytes(chunk)
            except FileNotFoundError as problem:
                if began == start:
                    await asyncio.to_thread(self._check_folder)
                    raise
                raise Unavailable("the object store") from problem
            except Unavailable:
                if position == began:
                    raise
            else:
                if position == began:
                    raise Unavailable("the object store") from EOFError(f"{key} is too short")

    def open(self, key: str) -> IO[bytes]:
        """A seekable file, for code that has to jump about in it; its calls block: use it in a thread.

        Raises FileNotFoundError, and as all that reads it, `Unavailable`.
        """
        with store_failures():
            try:
                reader = obstore.open_reader(self._backend, key, buffer_size=CHUNK)
            except FileNotFoundError:
                self._check_folder()
                obstore.get(self._backend, key)  # unlike HEAD's, this answer tells of a bucket that is gone
                raise
        return io.BufferedReader(_Object(reader))

    async def exists(self, key: str) -> bool:
        """Raises `Unavailable`."""
        with suppress(FileNotFoundError):
            await self.size(key)
            return True
        return False

    async def size(self, key: str) -> int:
        """Bytes of an object. Raises FileNotFoundError and `Unavailable`."""
        with store_failures():
            try:
                return int((await obstore.head_async(self._backend, key))["size"])
            except FileNotFoundError:
                await asyncio.to_thread(self._check_folder)
                await obstore.get_async(self._backend, key)  # as in `open`
                raise

    async def delete(self, keys: Iterable[str]) -> None:
        """Removes them; those that are gone already are passed over. Raises `Unavailable`."""
        for key in keys:
            with suppress(FileNotFoundError), store_failures():
                await obstore.delete_async(self._backend, key)

    async def discard(self, keys: Iterable[str]) -> None:
        """Removes what no row names; what cannot be removed now is left to the sweep."""
        try:
            await self.delete(keys)
        except Unavailable as problem:
            log.warning("an object that nothing needs stays for the sweep", cause=problem.cause)

    async def delete_below(self, prefix: str) -> None:
        """Removes everything whose key begins with `prefix` and a slash. Raises `Unavailable`."""
        async for batch in self.listed(prefix):
            await self.delete(one.key for one in batch)

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin with `prefix` and a slash, in no order. Raises `Unavailable`."""
        async for batch in self.listed(prefix):
            for one in batch:
                yield one.key

    async def listed(self, prefix: str) -> AsyncIterator[list[Listed]]:
        """Likewise with what the store says of them, at most 1,000 at a time."""
        with store_failures():
            async for batch in obstore.list(self._backend, prefix=prefix, chunk_size=1000):
                yield [Listed(meta["path"], meta["size"], meta["last_modified"]) for meta in batch]

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

    async def _look(self) -> None:
        if self.folder is not None:
            await asyncio.to_thread(self._look_at_folder, self.folder)
            return
        with suppress(FileNotFoundError), store_failures():
            await obstore.get_async(self._backend, _NOTHING)

    def _look_at_folder(self, folder: Path) -> None:
        self._check_folder()
        if not os.access(folder, os.W_OK | os.X_OK):
            raise Unavailable("the object store") from PermissionError(
                errno.EACCES, "it cannot be written to"
            )
        with store_failures():
            if not disk.leaves_free(folder, 1, max(self._disk_reserve, 1)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _check_folder(self) -> None:
        """Without its folder, no object is there; that says nothing of what there was. Raises `Unavailable`."""
        if self.folder is not None and not self.folder.is_dir():
            raise Unavailable("the object store") from NotADirectoryError(errno.ENOENT, "its folder is gone")


OBJECTS = web.AppKey("objects", Objects)


class _Source:
    """Chunks on their way into the store, which remember that it was they who failed: then the store has not."""

    def __init__(self, chunks: AsyncIterator[bytes]) -> None:
        self._chunks = chunks
        self.problem: Exception | None = None

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            async for chunk in self._chunks:
                yield chunk
        except Exception as problem:
            self.problem = problem
            raise


class _Object(io.RawIOBase):
    """An object as Python's file protocol has it."""

    def __init__(self, reader: "ReadableFile") -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        with store_failures():
            piece = self._reader.read(len(buffer))
        buffer[: len(piece)] = bytes(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        with store_failures():
            return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()


def open_objects(url: str, data_dir: Path, disk_reserve: int = 0, *, timeout: float = 20.0) -> Objects:
    """The store at `url`: `file:///folder`, `s3://bucket/prefix` (credentials as AWS tools find them), or without one
    the folder `objects` below `data_dir`. Of the disk below a folder `disk_reserve` bytes stay free; a request to S3
    takes at most `timeout` seconds, its repetitions included."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        folder = Path(unquote(parts.path)) if url else data_dir / "objects"
        disk.make_folder(folder)
        return Objects(LocalStore(folder, automatic_cleanup=True), folder, disk_reserve)
    endpoint = next(filter(None, map(os.environ.get, _ENDPOINTS)), "")
    each = datetime.timedelta(seconds=timeout / 2)
    backend = from_url(
        url,
        # an endpoint without TLS is for whoever names one
        client_options={
            "allow_http": endpoint.startswith("http://"),
            "timeout": each,
            "connect_timeout": each,
        },
        retry_config={"max_retries": 5, "retry_timeout": each},
    )
    return Objects(backend, None)
