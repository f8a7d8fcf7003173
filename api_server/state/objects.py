"""The object store: bytes too many for the database, by key, in local files or in S3 (decision D10)."""

import asyncio
import errno
import io
import os
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import obstore
from aiohttp import web
from obstore.exceptions import BaseError
from obstore.store import LocalStore, from_url
from obstore.store import ObjectStore as Backend

from api_server.state.disk import leaves_free
from api_server.state.errors import Unavailable

if TYPE_CHECKING:
    from obstore import ReadableFile

#: Bytes that are held at a time while an object is written or read.
CHUNK = 2**20
#: Parts of one object on their way at a time; S3 wants parts of at least 5 MiB.
_PART = 5 * CHUNK
_PARTS_AT_A_TIME = 2


class Objects:
    """Objects by key; keys are paths such as `projects/1/jobs/2/<random>`. An object is there wholly or not at all."""

    def __init__(self, backend: Backend, folder: Path | None, disk_reserve: int = 0) -> None:
        self._backend = backend
        self._folder = folder
        self._disk_reserve = disk_reserve

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        """Writes `chunks` as they come. Where that raises, nothing is there afterwards. On return it is durable.

        Raises `Unavailable` when the store is full or does not answer, and before the disk is.
        """
        try:
            await obstore.put_async(
                self._backend,
                key,
                chunks if self._folder is None else self._within_the_disk(chunks, self._folder),
                use_multipart=True,
                chunk_size=_PART,
                max_concurrency=_PARTS_AT_A_TIME,
            )
        except BaseError as problem:
            raise Unavailable("the object store") from problem
        if self._folder is not None:
            await asyncio.to_thread(_make_durable, self._folder / key)

    async def _within_the_disk(self, chunks: AsyncIterator[bytes], folder: Path) -> AsyncIterator[bytes]:
        async for chunk in chunks:
            if not await asyncio.to_thread(leaves_free, folder, len(chunk), self._disk_reserve):
                raise Unavailable("the object store") from OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            yield chunk

    async def read(self, key: str, start: int, end: int) -> AsyncIterator[bytes]:
        """Bytes `start` to `end` (exclusive). Raises FileNotFoundError, and `Unavailable`."""
        if start == end:
            return
        try:
            found = await obstore.get_async(self._backend, key, options={"range": (start, end)})
            async for chunk in found.stream(min_chunk_size=64 * 1024):
                yield bytes(chunk)
        except BaseError as problem:
            raise Unavailable("the object store") from problem

    def open(self, key: str) -> IO[bytes]:
        """A seekable file, for code that has to jump about in it; its calls block: use it in a thread.

        Raises FileNotFoundError.
        """
        return io.BufferedReader(_Object(obstore.open_reader(self._backend, key, buffer_size=CHUNK)))

    async def delete(self, keys: Iterable[str]) -> None:
        """Removes them; those that are gone already are passed over."""
        for key in keys:
            try:
                await obstore.delete_async(self._backend, key)
            except FileNotFoundError:
                continue

    async def delete_below(self, prefix: str) -> None:
        """Removes everything whose key begins with `prefix` and a slash."""
        async for listed in obstore.list(self._backend, prefix=prefix):
            await self.delete(meta["path"] for meta in listed)

    async def keys(self, prefix: str) -> AsyncIterator[str]:
        """The keys that begin with `prefix` and a slash, in no order. Raises `Unavailable`."""
        try:
            async for listed in obstore.list(self._backend, prefix=prefix):
                for meta in listed:
                    yield meta["path"]
        except BaseError as problem:
            raise Unavailable("the object store") from problem


OBJECTS = web.AppKey("objects", Objects)


class _Object(io.RawIOBase):
    """An object as Python's file protocol has it."""

    def __init__(self, reader: "ReadableFile") -> None:
        self._reader = reader

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._reader.read(len(buffer))
        buffer[: len(piece)] = bytes(piece)
        return len(piece)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        return self._reader.seek(offset, whence)

    def tell(self) -> int:
        return self._reader.tell()


def open_objects(url: str, data_dir: Path, disk_reserve: int = 0) -> Objects:
    """The store at `url`: `file:///folder`, `s3://bucket/prefix` (credentials as AWS tools find them), or without one
    the folder `objects` below `data_dir`. Of the disk below a folder `disk_reserve` bytes stay free."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        folder = Path(unquote(parts.path)) if url else data_dir / "objects"
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        return Objects(LocalStore(folder, automatic_cleanup=True), folder, disk_reserve)
    return Objects(from_url(url), None)


def _make_durable(file: Path) -> None:
    """The store renames a finished file into place; this waits until file and name are on the disk."""
    for path in (file, file.parent):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
