"""The files of the disk tier: of arriving bodies, and of complete ones, which are named by their digests."""

import asyncio
import contextlib
import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Protocol

import attrs
import structlog

from common.logs import ThrottledLog
from storage_edge.storage.bodies import FileBody, identity

#: Seconds to wait for another process that holds the directory's lock.
TIMEOUT: Final = 1.0


class Arrived(Protocol):
    """A body that has arrived."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    @property
    def digest(self) -> str:
        """The SHA-256 in hexadecimal. Computing it takes time."""

    @property
    def in_memory(self) -> bool:
        """Whether the body takes no space on disk yet."""

    def move_to(self, path: Path, directory: Path) -> None:
        """Move the body to `path` atomically, so that the file is never seen incomplete. `directory` is for the
        unfinished file. Raise `OSError`."""


class DirectoryLock:
    """A lock of all processes on a directory, for the thread of the disk tier. It needs no file."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._depth = 0

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock, also if it is held already. Raise `OSError`, and `TimeoutError` if another process keeps it
        for long."""
        if self._depth:
            yield
            return
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _lock(descriptor)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
        finally:
            os.close(descriptor)


@attrs.define
class ArrivingFile:
    """A file for an arriving body. It is created when `size` bytes are reserved for it."""

    descriptor: int | None = None
    path: Path | None = None
    size: int = 0

    def close(self) -> None:
        """Close the file, and delete it if it was not moved elsewhere."""
        descriptor, path = self.descriptor, self.path
        self.descriptor, self.path, self.size = None, None, 0
        if descriptor is not None:
            os.close(descriptor)
        if path is not None:
            path.unlink(missing_ok=True)


class Arrivals:
    """This process's folder below `directory`. A lock on the folder shows that it is in use; folders of dead processes
    are removed. All of this happens under the lock of the data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._folder: Path | None = None
        self._lock: int | None = None

    def prepare(self) -> Path:
        """Return the folder, and create it if it is missing. Raise `OSError`."""
        if self._folder is not None and self._lock is not None:
            with contextlib.suppress(OSError):
                if os.path.samestat(self._folder.stat(), os.fstat(self._lock)):
                    return self._folder
        self.close()
        self._directory.mkdir(parents=True, exist_ok=True)
        folder = Path(tempfile.mkdtemp(dir=self._directory))
        self._folder, self._lock = folder, os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        return folder

    def set_aside(self, file: ArrivingFile, size: int) -> None:
        """Change the length of a file, and create it if it is missing. Raise `OSError`."""
        if file.descriptor is None:
            descriptor, name = tempfile.mkstemp(dir=self.prepare())
            file.descriptor, file.path = descriptor, Path(name)
        os.ftruncate(file.descriptor, size)
        file.size = size

    def bytes_of_all(self) -> int:
        """Return the bytes that all processes have reserved for arriving bodies."""
        total = 0
        for path in self._directory.glob("*/*"):
            with contextlib.suppress(FileNotFoundError):  # the body has arrived, or is not needed any more
                total += path.stat().st_size
        return total

    def clear(self) -> None:
        """Remove the folders of dead processes. Raise `OSError`."""
        for other in self._directory.iterdir():
            if other != self._folder and not is_in_use(other):
                shutil.rmtree(other, ignore_errors=True)

    def close(self) -> None:
        """Remove the folder. Bodies that are still arriving are lost."""
        folder, lock, self._folder, self._lock = self._folder, self._lock, None, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def remove_others(root: Path) -> None:
    """Remove the folders of other versions beside `root` that are not in use, because they have missed purges."""
    for other in root.parent.glob("v[0-9]*"):
        if other != root and not any(map(is_in_use, other.glob("incoming/*"))):
            shutil.rmtree(other, ignore_errors=True)


def is_in_use(folder: Path) -> bool:
    """Return whether a folder belongs to a living process."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(descriptor)
    return False


def _lock(descriptor: int) -> None:
    deadline = time.monotonic() + TIMEOUT
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                raise TimeoutError("another process holds the directory's lock") from None
            time.sleep(0.002)


PIECE: Final = 256 * 1024


async def read_digest(path: Path, bytes_per_second: int) -> str:
    """Return the SHA-256 of a file in hexadecimal, or nothing if it cannot be read."""
    digest, offset = hashlib.sha256(), 0
    while True:
        chunk = await asyncio.to_thread(_read, path, offset)
        if chunk is None:
            return ""
        if not chunk:
            return digest.hexdigest()
        digest.update(chunk)
        offset += len(chunk)
        await asyncio.sleep(len(chunk) / bytes_per_second)


def _read(path: Path, offset: int) -> bytes | None:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read(PIECE)
    except OSError:
        return None


log = structlog.get_logger(__name__)


class BodyFiles:
    """The files of complete bodies below `directory`."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        #: Files that were read and found intact, by digest.
        self._checked: dict[str, FileBody] = {}
        #: The number of damaged files.
        self.damaged = 0
        self._log = ThrottledLog(log)

    def parts(self) -> list[str]:
        """Return all possible first two letters of digests. Each has a directory."""
        return [f"{number:02x}" for number in range(256)]

    def of_part(self, part: str) -> dict[str, Path]:
        """Return the files that exist, by digest. Raise `OSError`."""
        directory = self.directory / part
        return {part + path.name: path for path in directory.iterdir()} if directory.is_dir() else {}

    def path(self, digest: str) -> Path:
        """Return the path of the bytes with a digest."""
        return self.directory / digest[:2] / digest[2:]

    def find(self, digest: str, size: int) -> FileBody | None:
        """Return the bytes with a digest, if they exist. The file is read again if it has changed since it was last
        read."""
        path = self.path(digest)
        try:
            with path.open("rb") as file:
                now = identity(os.fstat(file.fileno()))
                known = self._checked.pop(digest, None)
                if known is None or known.identity != now:
                    if now[1] != size or hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        self.found_damaged(digest)
                        return None
                    known = FileBody(path, now)
        except OSError:
            return None
        self._checked[digest] = known
        return known

    def place(self, arrived: Arrived, directory: Path) -> FileBody:
        """Store a body that has arrived; see `Arrived.move_to`. Raise `OSError`."""
        digest = arrived.digest
        path = self.path(digest)
        try:
            arrived.move_to(path, directory)
        except FileNotFoundError:  # the first file of its directory
            path.parent.mkdir(parents=True, exist_ok=True)
            arrived.move_to(path, directory)
        body = self._checked[digest] = FileBody(path, identity(path.stat()))
        return body

    def found_damaged(self, digest: str) -> None:
        """Note that the file has other bytes than it should have."""
        self._checked.pop(digest, None)
        self.damaged += 1
        self._log.warning("a file of the disk tier is damaged and counts as not stored", digest=digest)

    def remove(self, digest: str) -> None:
        """Delete a file, if it exists. Raise `OSError`."""
        self._checked.pop(digest, None)
        self.path(digest).unlink(missing_ok=True)
