"""Opening of the object store that the settings name, and the store in local files: a file for each object,
at its key."""

import asyncio
import datetime
import errno
import io
import os
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import islice
from pathlib import Path
from typing import IO, ParamSpec, TypeVar
from urllib.parse import unquote, urlsplit

from api_server.state import disk
from api_server.state.errors import Unavailable
from api_server.state.objects import LISTED_TOGETHER, Entry, Objects, OpenedObject, store_failures
from common.concurrency import ended
from common.config_errors import require_obstore

#: Bytes that are read at a time.
_CHUNK = 256 * 1024
#: Attempts to create a file whose folder another task removes because it was empty.
_TRIES = 100

P = ParamSpec("P")
T = TypeVar("T")


class ObjectsInFolder(Objects):
    """Objects in a folder. While an object is written, its file name has a `#` and digits appended."""

    folder: Path

    def __init__(self, folder: Path, disk_reserve: int = 0) -> None:
        disk.make_folder(folder)
        self.folder = folder
        self.disk_reserve = disk_reserve

    async def put(self, key: str, chunks: AsyncIterator[bytes]) -> None:
        with _writing():
            upload = _Upload(self, self._path(key))
        try:
            with _writing():
                await _in_thread(upload.begin)
            async for chunk in chunks:
                with _writing():
                    await _in_thread(upload.append, chunk)
            with _writing():
                await _in_thread(upload.finish)
        except BaseException:
            await _in_thread(upload.give_up)
            raise

    async def read(self, key: str, start: int, end: int) -> AsyncGenerator[bytes, None]:
        position = start
        with store_failures():
            # A file descriptor instead of a file object: if the reader stops early and leaves this generator
            # to the garbage collector, generators are finalized before their descriptors, but file objects in
            # any order.
            file = await self._descriptor(key)
            try:
                while position < end:
                    chunk = await _in_thread(os.pread, file, min(_CHUNK, end - position), position)
                    if not chunk:
                        raise EOFError(f"{key} is too short")
                    position += len(chunk)
                    yield chunk
            except EOFError as problem:
                raise Unavailable("the object store") from problem
            finally:
                os.close(file)

    async def _descriptor(self, key: str) -> int:
        opening = asyncio.ensure_future(asyncio.to_thread(self._open_file, key))
        try:
            return await ended(opening)
        except asyncio.CancelledError:
            if not opening.exception():
                os.close(opening.result())
            raise

    def open(self, key: str) -> IO[bytes]:
        with store_failures():
            return io.BufferedReader(OpenedObject(os.fdopen(self._open_file(key), "rb")))

    async def size(self, key: str) -> int:
        with store_failures():
            return await asyncio.to_thread(self._size, key)

    async def delete(self, keys: Iterable[str]) -> None:
        with store_failures():
            await _in_thread(self._delete, list(keys))

    async def batches(self, prefix: str) -> AsyncIterator[list[Entry]]:
        with closing(self._entries(prefix)) as entries, store_failures():
            await asyncio.to_thread(self.check_folder)
            while batch := await _in_thread(lambda: list(islice(entries, LISTED_TOGETHER))):
                yield batch

    async def _try(self) -> None:
        await asyncio.to_thread(self._try_folder)

    def _path(self, key: str) -> Path:
        if any(part in ("", ".", "..") or is_unfinished(part) for part in key.split("/")):
            raise OSError(errno.EINVAL, "not the key of an object", key)
        return self.folder / key

    def _open_file(self, key: str) -> int:
        try:
            return os.open(self._path(key), os.O_RDONLY)
        except FileNotFoundError:
            self.check_folder()
            raise

    def _size(self, key: str) -> int:
        try:
            return self._path(key).stat().st_size
        except FileNotFoundError:
            self.check_folder()
            raise

    def _delete(self, keys: Iterable[str]) -> None:
        """Delete the objects and the folders that become empty."""
        for key in keys:
            path = self._path(key)
            path.unlink(missing_ok=True)
            with suppress(OSError):  # it is not empty, or another task was faster
                for folder in path.parents:
                    if folder == self.folder:
                        break
                    folder.rmdir()

    def _entries(self, prefix: str) -> Generator[Entry, None, None]:
        """Yield the objects below `prefix`; those deleted meanwhile may be included. Folders are read lazily:
        one may hold a million objects."""
        with suppress(FileNotFoundError), os.scandir(self._path(prefix)) as entries:
            for entry in entries:
                key = f"{prefix}/{entry.name}"
                if entry.is_dir():
                    yield from self._entries(key)
                elif not is_unfinished(entry.name):
                    with suppress(FileNotFoundError):
                        yield _entry(key, entry.stat())

    def _try_folder(self) -> None:
        self.check_folder()
        if not os.access(self.folder, os.W_OK | os.X_OK):
            raise Unavailable("the object store") from PermissionError(
                errno.EACCES, "it cannot be written to"
            )
        with store_failures():
            if not disk.leaves_free(self.folder, 1, max(self.disk_reserve, 1)):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def check_folder(self) -> None:
        """Raise `Unavailable` if the store's folder is missing: no object can be found then, but that does
        not mean there were none."""
        if not self.folder.is_dir():
            raise Unavailable("the object store") from NotADirectoryError(errno.ENOENT, "its folder is gone")


def _entry(key: str, status: os.stat_result) -> Entry:
    return Entry(key, status.st_size, datetime.datetime.fromtimestamp(status.st_mtime, datetime.UTC))


def is_unfinished(name: str) -> bool:
    """Return whether a file belongs to an upload that is running or was cut off."""
    key, sign, number = name.rpartition("#")
    return bool(key and sign) and number.isascii() and number.isdigit()


async def _in_thread(work: Callable[P, T], *arguments: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread to its end, even if the caller is cancelled: it works with open files."""
    return await ended(asyncio.ensure_future(asyncio.to_thread(work, *arguments, **kwargs)))


@contextmanager
def _writing() -> Iterator[None]:
    """Convert every failure of a write to `Unavailable`: a missing file here is not a missing object."""
    try:
        with store_failures():
            yield
    except FileNotFoundError as problem:
        raise Unavailable("the object store") from problem


class _Upload:
    """The upload of one object; its methods block."""

    def __init__(self, store: ObjectsInFolder, path: Path) -> None:
        self._store = store
        self._path = path
        self._unfinished = path.with_name(f"{path.name}#{secrets.randbits(60)}")
        self._file: IO[bytes] = io.BytesIO()  # replaced when writing begins

    def begin(self) -> None:
        self._store.check_folder()
        for _ in range(_TRIES):
            with suppress(FileNotFoundError):
                self._make_folder()
                self._file = self._unfinished.open("xb")
                return
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self._path.parent))

    def _make_folder(self) -> None:
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
        except FileExistsError:  # also raised if an empty folder is removed at the same moment
            if self._path.parent.is_file():
                raise

    def append(self, chunk: bytes) -> None:
        if not disk.leaves_free(self._store.folder, len(chunk), self._store.disk_reserve):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._file.write(chunk)

    def finish(self) -> None:
        self._file.close()
        disk.sync(self._unfinished)
        self._unfinished.rename(self._path)
        try:
            disk.sync_folders(self._path, self._store.folder)
        except BaseException:
            self._path.unlink(missing_ok=True)
            raise

    def give_up(self) -> None:
        with suppress(OSError):  # closing tries once more to write the rest
            self._file.close()
        with suppress(OSError):
            self._unfinished.unlink(missing_ok=True)


def open_objects(url: str, data_dir: Path, disk_reserve: int = 0, *, timeout: float = 20.0) -> Objects:
    """Open the store at `url`: `file:///folder`, `s3://bucket/prefix` (credentials as AWS tools find them),
    or by default the folder `objects` below `data_dir`. Keep `disk_reserve` bytes of a folder's disk free. A
    request to S3 takes at most `timeout` seconds, including repetitions. Raise `ConfigError` if the extra for
    S3 is not installed."""
    parts = urlsplit(url)
    if parts.scheme in ("", "file"):
        return ObjectsInFolder(Path(unquote(parts.path)) if url else data_dir / "objects", disk_reserve)
    require_obstore("The object store")
    from api_server.state.objects_in_bucket import open_bucket  # takes 15 MB, for few processes

    return open_bucket(url, timeout)
