"""The connections of one process to the disk tier's index, which may go, be damaged or be replaced under it."""

import contextlib
import sqlite3
import threading
from importlib import resources
from pathlib import Path
from typing import Final

import structlog

from storage_edge.tiers import index_file
from storage_edge.tiers.arrivals import DirectoryLock
from storage_edge.tiers.purge_log import PurgeLog

log = structlog.get_logger(__name__)

#: Seconds for which a statement waits for another process.
BUSY_SECONDS: Final = 1.0
#: What SQLite says of a file that is no index of ours, or none any more. That it is locked or cannot be written, or the
#: disk is full, is not among it.
_DAMAGE: Final = frozenset(
    {
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
        sqlite3.SQLITE_ERROR,
        sqlite3.SQLITE_CONSTRAINT,
        sqlite3.SQLITE_MISMATCH,
    }
)


class IndexConnection:
    """Connections to the index at `path`: one that writes, for the thread of the disk tier, and one that only reads.

    The purge log of the directory says which file is the index. Any other is thrown away: it may have missed purges,
    and the journal beside it may be another's.
    """

    def __init__(self, path: Path, log: PurgeLog, lock: DirectoryLock) -> None:
        self._path = path
        self._log = log
        self._lock = lock
        self._inode = 0
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._reading = threading.Lock()

    def writer(self) -> sqlite3.Connection:
        """The connection that writes, to the file that is the index now. Raises sqlite3.Error and OSError."""
        if self._writer is None or not 0 < self._inode == self._log.index == _inode(self._path):
            self._open()
        assert self._writer is not None  # noqa: S101 - opened
        return self._writer

    def has(self, target: str) -> bool:
        """Whether anything is stored under a target, or may be; quick, for the event loop, and without any lock."""
        with self._reading:
            try:
                if self._reader is None:
                    return True
                return index_file.has(self._reader, target)
            except sqlite3.Error:
                return True

    def start_anew(self) -> None:
        """The index is damaged: the next connection is to an empty one. Raises OSError."""
        self.close()
        with self._lock.held():
            if self._log.index == self._inode:
                self._log.index = 0

    def close(self) -> None:
        """Closes both connections."""
        with self._reading:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    def _open(self) -> None:
        self.close()
        with self._lock.held():
            self._log.check_current()
            known = self._log.index
            found = self._inode = _inode(self._path)
            if known == 0 or known != found:
                if known or found:
                    log.warning(
                        "the disk tier's index is damaged or not the one that was there; it begins anew"
                    )
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            writer = _connect(self._path, schema=True)
            with contextlib.ExitStack() as opened:
                opened.callback(writer.close)
                reader = _connect(self._path)
                opened.callback(reader.close)
                inode = _inode(self._path)
                if inode != known:
                    self._log.index = inode
                opened.pop_all()
        with self._reading:
            self._inode, self._writer, self._reader = inode, writer, reader


def is_damage(error: Exception) -> bool:
    """Whether an error says that the index has to be thrown away."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ


def reason(error: Exception) -> str:
    """What to tell operators of an error of the disk or the index; never a path or a value."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", type(error).__name__)
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__


def _connect(path: Path, *, schema: bool = False) -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread."""
    with contextlib.ExitStack() as opened:
        index = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        opened.callback(index.close)
        index.text_factory = lambda text: text.decode(errors="replace")  # damaged text fails its row's check
        script = "PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL;"
        if schema:
            tables = resources.files("storage_edge.tiers").joinpath("index.sql").read_text(encoding="utf-8")
            script += f"PRAGMA journal_mode = WAL; {tables}"
        index.executescript(script)
        opened.pop_all()
    return index


def _inode(path: Path) -> int:
    """The number of the file; 0 when there is none, or nothing in it."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0
    return stat.st_ino if stat.st_size else 0
