"""The purges of a data directory, in a file that all of its processes map.

Its room was taken when it was made, so a purge is written down in place, on a full disk as well. What cannot be read
counts as a purge of everything, and so does a file that has gone: it is made anew, and begins with a higher number.
"""

import contextlib
import errno
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from storage_edge.tiers.purge_file import Numbered, PurgeFile
from storage_edge.tiers.purges import EVERYTHING, Purge

#: Seconds between two attempts to make a file that could not be made.
RETRY_SECONDS: Final = 1.0
#: Seconds for which a process goes on with its file without looking whether the path still leads there, which costs as
#: much as a tenth of a hit.
LOOK_SECONDS: Final = 0.05


class NoLogError(OSError):
    """The file is not there and could not be made."""

    def __init__(self) -> None:
        super().__init__(errno.ENOENT, "there is no purge log")


class OldLogError(OSError):
    """There is another file by now, which the thread that asks has not noticed yet."""

    def __init__(self) -> None:
        super().__init__(errno.ESTALE, "there is another purge log")


class PurgeLog:
    """The purges at `path`, numbered; `clock` gives seconds since 1970.

    For one thread that asks and adds, and one more that reads.
    """

    def __init__(self, path: Path, clock: Callable[[], float]) -> None:
        self._path = path
        self._clock = clock
        self._file: PurgeFile | None = None
        self._retry_at = self._look_at = self._known_at = 0.0
        self._lock = threading.Lock()

    def epoch(self, known: int) -> int:
        """How many purges there have been, more or less: it grows with each, by whichever process. `known` is what
        it was when the caller last asked.

        While there is no file, nobody would hear of others' purges, and it grows whenever it is asked for.
        """
        file = self._file
        if file is not None and file.is_whole() and (time.monotonic() < self._look_at or self._look(file)):
            epoch = file.epoch
            if epoch >= known:
                return epoch
        return self._opened_anew(known)

    def since(self, epoch: int) -> list[Numbered]:
        """The purges after `epoch` in their order; one of everything where some are not known any more."""
        with self._lock:
            return [(epoch + 1, EVERYTHING)] if self._file is None else self._file.since(epoch)

    def add(self, purge: Purge, known: int) -> bool:
        """Makes a purge known to all processes; False while another process is adding one. Raises OSError; `known` as
        for `epoch`.
        """
        self._retry_at = self._look_at = 0.0
        self.epoch(known)
        with self._lock:
            if self._file is None:
                raise NoLogError
            return self._file.add(purge) and self._file.is_current()

    @property
    def unknown_for(self) -> float:
        """Seconds until all processes have noticed that the file is another one than before, or none."""
        return max(0.0, self._known_at - time.monotonic())

    def sync(self) -> None:
        """What has been added survives a crash of the machine. Raises OSError."""
        with self._lock:
            descriptor = None if self._file is None else os.dup(self._file.descriptor)
        if descriptor is not None:
            try:
                os.fdatasync(descriptor)
            finally:
                os.close(descriptor)

    def discard(self) -> None:
        """Takes the file away, which all processes notice: everything has been purged. Raises OSError."""
        self.close()
        self._known_at = time.monotonic() + LOOK_SECONDS
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
            directory = os.open(self._path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(directory)
            finally:
                os.close(directory)

    @property
    def index(self) -> int:
        """The number of the file (inode) that is the index of this directory; 0 when there is none. Raises OSError
        when there is no log.
        """
        with self._lock:
            if self._file is None:
                raise NoLogError
            return self._file.index

    @index.setter
    def index(self, inode: int) -> None:
        with self._lock:
            if self._file is None:
                raise NoLogError
            self._file.index = inode

    def check_current(self) -> None:
        """Raises `OldLogError` where the path leads elsewhere: what the file says of the index is no longer so."""
        with self._lock:
            if self._file is not None and not self._file.is_current():
                raise OldLogError

    def close(self) -> None:
        """Lets the file go; it is opened again when the epoch is asked for."""
        with self._lock:
            file, self._file = self._file, None
            if file is not None:
                file.close()

    def _look(self, file: PurgeFile) -> bool:
        self._look_at = time.monotonic() + LOOK_SECONDS
        return file.is_current()

    def _opened_anew(self, known: int) -> int:
        file = self._file
        is_damaged = file is not None and file.is_current()
        self.close()
        if time.monotonic() < self._retry_at:
            return known + 1
        try:
            if is_damaged:
                self._path.unlink(missing_ok=True)
            opened = PurgeFile(self._path, known, int(self._clock() * 1e6))
        except OSError:
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return known + 1
        self._look_at = self._known_at = time.monotonic() + LOOK_SECONDS
        with self._lock:
            self._file = opened
        return opened.epoch
