"""Built archives as files, which all processes of one data directory share: they take no more room than they may.

Locks of the file system (flock) say who needs a file: whoever builds one holds it exclusively, whoever sends one shares
it, and only what nobody holds is removed. They end with their process, so a crash leaves nothing that looks needed.
"""

import fcntl
import os
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

import attrs
import structlog

from api_server.git.errors import NotFoundError
from api_server.state.disk import leaves_free
from common.concurrency import TooBusy

log = structlog.get_logger(__name__)

#: A growing file takes at least so many bytes at a time, twice as many each time, up to the second number.
_FIRST_STEP, _LAST_STEP = 2**20, 64 * 2**20


class TooLargeError(Exception):
    """An archive that is not built to its end, as it would be too large or take too long; the text says so."""


class NoRoomError(TooBusy):
    """All that could be removed has been, and there is not enough room."""


@attrs.frozen
class Bounds:
    """Bytes of one archive, of all together, and of the disk that stay free (0: it is not looked at)."""

    one: int
    all: int
    disk_reserve: int = 0
    #: However small they are: whoever makes room looks at each.
    files: int = 10_000


class ArchiveFiles:
    """Archives at `<root>/<project>/<name>`; those that are being built have names that begin with a dot."""

    def __init__(self, root: Path, bounds: Bounds) -> None:
        self.root = root
        self._bounds = bounds

    def path(self, project_id: int, name: str) -> Path:
        return self.root / str(project_id) / name

    def open(self, file: Path) -> BinaryIO | None:
        """The archive, which is there until it is closed; None if there is none."""
        with suppress(FileNotFoundError):
            opened = file.open("rb")
            fcntl.flock(opened, fcntl.LOCK_SH)
            if os.fstat(opened.fileno()).st_nlink:
                os.utime(opened.fileno())
                return opened
            opened.close()  # removed a moment before it was ours
        return None

    def remove_project(self, project_id: int) -> None:
        """Also what is being sent or built: what of it is open can be read to its end."""
        folder = self.root / str(project_id)
        if folder.exists():
            with self.locked():
                for file in folder.iterdir():
                    file.unlink(missing_ok=True)
                folder.rmdir()

    def shrink(self) -> None:
        """Removes what a crash has left unfinished, and what was not asked for the longest, down to the limits."""
        if not self.root.exists():
            return
        with self.locked():
            for file, _ in self._found():
                if file.name.startswith("."):
                    _remove(file)
            self._make_room(0)

    def reserve(self, growing: BinaryIO, size: int, reserved: int) -> int:
        """Makes room for a file that has `reserved` bytes and needs `size`; how many it has then, `size` or more.

        Raises `TooLargeError` and `NoRoomError`.
        """
        if size > self._bounds.one:
            raise TooLargeError(f"The archive has more than {self._bounds.one} bytes")
        step = min(max(_FIRST_STEP, reserved), _LAST_STEP)
        with self.locked():
            for wanted in (min(max(size, reserved + step), self._bounds.one), size):
                if self._make_room(wanted - reserved):
                    growing.truncate(wanted)
                    return wanted
        log.warning("no room for an archive", bytes=size)
        raise NoRoomError

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else makes room, begins or finishes a file meanwhile, in whatever process."""
        self.root.mkdir(parents=True, exist_ok=True)
        with (self.root / ".lock").open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def _make_room(self, more: int) -> bool:
        """Whether there is room for so many bytes, after as much as necessary has been removed."""
        found = sorted(self._found(), key=lambda one: one[1].st_mtime)
        count, total = len(found), sum(stat.st_size for _, stat in found)
        for file, stat in found:
            if self._fits(count, total + more, more):
                return True
            if _remove(file):
                count, total = count - 1, total - stat.st_size
        return self._fits(count, total + more, more)

    def _fits(self, count: int, total: int, more: int) -> bool:
        return (
            count <= self._bounds.files
            and total <= self._bounds.all
            and leaves_free(self.root, more, self._bounds.disk_reserve)
        )

    def _found(self) -> Iterator[tuple[Path, os.stat_result]]:
        """Every file; who holds none of the locks may finish or remove one during the look."""
        for file in self.root.glob("*/*"):
            with suppress(FileNotFoundError):
                yield file, file.stat()


def _remove(file: Path) -> bool:
    """False for a file that somebody builds or sends."""
    with suppress(FileNotFoundError), file.open("rb") as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        file.unlink()
    return True


class GrowingFile:
    """An archive that is being built. Its calls block, and come one after the other."""

    def __init__(self, files: ArchiveFiles, destination: Path) -> None:
        self._files = files
        self._destination = destination
        self._path = destination.with_name(f".{destination.name}.{uuid.uuid4().hex}")
        self._opened = ExitStack()
        self._file: BinaryIO
        self._size = self._reserved = 0

    def begin(self) -> None:
        with self._files.locked():
            self._path.parent.mkdir(exist_ok=True)
            self._file = self._opened.enter_context(self._path.open("xb"))
            fcntl.flock(self._file, fcntl.LOCK_EX)

    def write(self, data: bytes) -> None:
        """Raises `TooLargeError` and `NoRoomError` before the bytes take any room."""
        if self._size + len(data) > self._reserved:
            self._reserved = self._files.reserve(self._file, self._size + len(data), self._reserved)
        self._file.write(data)
        self._size += len(data)

    def finish(self) -> None:
        """The archive is at its destination, and stays there until `close`. Raises `NotFoundError` where its project
        has been removed."""
        self._file.truncate(self._size)
        self._file.flush()
        os.fsync(self._file.fileno())
        with self._files.locked():
            try:
                self._path.replace(self._destination)
            except FileNotFoundError:
                raise NotFoundError(self._destination.name) from None
            fcntl.flock(self._file, fcntl.LOCK_SH)

    def close(self) -> None:
        """Removes it if it has not been finished."""
        self._path.unlink(missing_ok=True)
        self._opened.close()
