"""The disk tier's index, an SQLite file: its statements (see `index.sql`), and one process's connections to it."""

import contextlib
import sqlite3
import threading
import zlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Final

import attrs
import structlog

from storage_edge.storage.bodies import FileBody
from storage_edge.storage.files import DirectoryLock
from storage_edge.storage.purges import Numbered, Purge, PurgeLog
from storage_edge.storage.stored_responses import StoredResponse, selection_from_key, selection_key


@attrs.frozen
class Row:
    """A response in the index. Purges up to `purged` have been carried out on it."""

    id: int
    selected: str
    digest: str
    size: int
    epoch: int
    stale: bool
    response: str
    is_intact: bool
    purged: int

    def stored(self, target: str, body: FileBody, purges: Sequence[Numbered]) -> StoredResponse | None:
        """Return the response, unless one of `purges`, which are still pending for it, removes it."""
        try:
            stored = StoredResponse.from_json(
                self.response,
                target=target,
                selected=selection_from_key(self.selected),
                epoch=self.epoch,
                body=body,
                stale=self.stale,
            )
        except (KeyError, TypeError, ValueError):  # another version of the edge has written it
            return None
        concerned = [purge for _, purge in purges if purge.concerns(stored)]
        if not concerned:
            return stored
        return attrs.evolve(stored, stale=True) if all(purge.soft for purge in concerned) else None


def has_body(index: sqlite3.Connection, digest: str) -> bool:
    """Return whether the bytes with this digest are stored."""
    return index.execute("SELECT 1 FROM bodies WHERE digest = ?", (digest,)).fetchone() is not None


def add_body(index: sqlite3.Connection, digest: str, size: int, now: float) -> None:
    """Add a body that was used now."""
    index.execute("INSERT INTO bodies VALUES (?, ?, ?)", (digest, size, now))


def remove_body(index: sqlite3.Connection, digest: str) -> bool:
    """Remove a body and the responses that have it. Return whether it was there."""
    return index.execute("DELETE FROM bodies WHERE digest = ?", (digest,)).rowcount > 0


def bodies(index: sqlite3.Connection, prefix: str) -> list[str]:
    """Return the digests with that beginning."""
    rows = index.execute("SELECT digest FROM bodies WHERE digest >= ? AND digest < ?", (prefix, f"{prefix}g"))
    return [digest for (digest,) in rows.fetchall()]


def total(index: sqlite3.Connection) -> int:
    """Return the bytes of all bodies."""
    return int(index.execute("SELECT coalesce(sum(bytes), 0) FROM totals").fetchone()[0])


def count(index: sqlite3.Connection) -> int:
    """Return the number of responses."""
    return int(index.execute("SELECT responses FROM counts").fetchone()[0])


def evict(index: sqlite3.Connection) -> bool:
    """Remove the least recently used body. Return False if there is none."""
    statement = "DELETE FROM bodies WHERE digest = (SELECT digest FROM bodies ORDER BY used LIMIT 1)"
    return index.execute(statement).rowcount > 0


def take_garbage(index: sqlite3.Connection) -> list[str]:
    """Return the digests of removed bodies whose files are still there."""
    return [digest for (digest,) in index.execute("DELETE FROM garbage RETURNING digest").fetchall()]


def touch(index: sqlite3.Connection, hits: Mapping[str, int], now: float) -> list[str]:
    """Record how often targets were used since the last time. Return those that are not stored here."""
    index.executemany(
        "UPDATE bodies SET used = ? WHERE digest IN (SELECT digest FROM responses WHERE target = ?)",
        [(now, target) for target in hits],
    )
    stored = {target for target in hits if has(index, target)}
    index.executemany(
        "INSERT INTO hits VALUES (?, ?) ON CONFLICT (target) DO UPDATE SET count = count + excluded.count",
        [(target, hits[target]) for target in stored],
    )
    return [target for target in hits if target not in stored]


def has(index: sqlite3.Connection, target: str) -> bool:
    """Return whether anything is stored under a target."""
    statement = "SELECT 1 FROM responses WHERE target = ? LIMIT 1"
    return index.execute(statement, (target,)).fetchone() is not None


def digest_of(index: sqlite3.Connection, stored: StoredResponse) -> str | None:
    """Return the digest of the response with the same target and selection."""
    row = index.execute(
        "SELECT digest FROM responses WHERE target = ? AND selected = ?",
        (stored.target, selection_key(stored.selected)),
    ).fetchone()
    return None if row is None else str(row[0])


def remove(index: sqlite3.Connection, target: str, selected: str) -> None:
    """Remove a response."""
    index.execute("DELETE FROM responses WHERE target = ? AND selected = ?", (target, selected))


def find(index: sqlite3.Connection, target: str) -> list[Row]:
    """Return the responses under a target."""
    rows = index.execute(
        "SELECT id, selected, digest, size, responses.epoch, stale, response, checksum, purged.epoch"
        " FROM responses JOIN bodies USING (digest), purged WHERE target = ?",
        (target,),
    ).fetchall()
    return [
        Row(
            id=id_,
            selected=selected,
            digest=digest,
            size=size,
            epoch=epoch,
            stale=bool(stale),
            response=response,
            is_intact=checksum == _checksum(target, selected, digest, epoch, response),
            purged=purged,
        )
        for id_, selected, digest, size, epoch, stale, response, checksum, purged in rows
    ]


def put(index: sqlite3.Connection, stored: StoredResponse, digest: str) -> None:
    """Add a response, or replace the one with the same target and selection."""
    row = (stored.target, selection_key(stored.selected), digest, stored.epoch, stored.to_json())
    ((id_,),) = index.execute(
        "INSERT INTO responses (target, selected, digest, epoch, response, stale, checksum)"
        " VALUES (?, ?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (target, selected) DO UPDATE SET digest = excluded.digest, epoch = excluded.epoch,"
        " stale = excluded.stale, response = excluded.response, checksum = excluded.checksum RETURNING id",
        (*row, stored.stale, _checksum(*row)),
    ).fetchall()
    index.execute("DELETE FROM response_keys WHERE response = ?", (id_,))
    index.executemany(
        "INSERT INTO response_keys VALUES (?, ?)", [(key, id_) for key in sorted(stored.surrogate_keys)]
    )


def purged(index: sqlite3.Connection) -> int:
    """Return the newest purge that was carried out."""
    return int(index.execute("SELECT coalesce(max(epoch), 0) FROM purged").fetchone()[0])


def carry_out(index: sqlite3.Connection, number: int, purge: Purge) -> int:
    """Remove the responses that a purge concerns, or make them stale, except those whose requests began after it.
    Return their number."""
    statement = (
        "UPDATE responses SET stale = 1 WHERE id = ? AND epoch < ?"
        if purge.soft
        else "DELETE FROM responses WHERE id = ? AND epoch < ?"
    )
    hit = index.executemany(statement, [(id_, number) for id_ in concerned(index, purge)]).rowcount
    index.execute("UPDATE purged SET epoch = ?", (number,))
    return max(hit, 0)


def concerned(index: sqlite3.Connection, purge: Purge) -> set[int]:
    """Return the ids of the responses that a purge names."""
    ids: set[int] = set()
    for key in purge.keys:
        ids.update(
            row[0] for row in index.execute("SELECT response FROM response_keys WHERE key = ?", (key,))
        )
    for url in purge.urls:
        ids.update(row[0] for row in index.execute("SELECT id FROM responses WHERE target = ?", (url,)))
    for prefix in purge.prefixes:
        ids.update(
            row[0]
            for row in index.execute(
                "SELECT id FROM responses WHERE target >= :prefix"
                " AND substr(target, 1, length(:prefix)) = :prefix",
                {"prefix": prefix},
            )
        )
    return ids


def _checksum(target: str, selected: str, digest: str, epoch: int, response: str) -> int:
    return zlib.crc32("\0".join((target, selected, digest, str(epoch), response)).encode())


log = structlog.get_logger(__name__)

#: Seconds for which a statement waits for another process.
BUSY_SECONDS: Final = 1.0
#: SQLite's errors that mean that the file is no usable index. Locks, missing rights and full disks are not among
#: them.
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

    The purge log of the directory names the file that is the index. Any other file is discarded, because it may have
    missed purges, and the journal beside it may belong to another file.
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
        """Return the writing connection to the present index. Raise `sqlite3.Error` or `OSError`."""
        if self._writer is None or not 0 < self._inode == self._log.index == _inode(self._path):
            self._open()
        assert self._writer is not None  # noqa: S101 - it has been opened
        return self._writer

    def has(self, target: str) -> bool:
        """Return whether anything is or may be stored under a target. Fast enough for the event loop, without any
        lock."""
        with self._reading:
            try:
                if self._reader is None:
                    return True
                return has(self._reader, target)
            except sqlite3.Error:
                return True

    def start_anew(self) -> None:
        """Discard the damaged index. The next connection is to an empty one. Raise `OSError`."""
        self.close()
        with self._lock.held():
            if self._log.index == self._inode:
                self._log.index = 0

    def close(self) -> None:
        """Close both connections."""
        with self._reading:
            for connection in (self._reader, self._writer):
                if connection is not None:
                    connection.close()
            self._reader = self._writer = None

    def _open(self) -> None:
        self.close()
        with self._lock.held():
            self._log.check_current()
            logged = self._log.index
            present = self._inode = _inode(self._path)
            if logged == 0 or logged != present:
                if logged or present:
                    log.warning("the disk tier's index is damaged or was replaced, so a new one is created")
                for suffix in ("", "-wal", "-shm"):
                    self._path.with_name(self._path.name + suffix).unlink(missing_ok=True)
            writer = _connect(self._path, schema=True)
            with contextlib.ExitStack() as stack:
                stack.callback(writer.close)
                reader = _connect(self._path)
                stack.callback(reader.close)
                inode = _inode(self._path)
                if inode != logged:
                    self._log.index = inode
                stack.pop_all()
        with self._reading:
            self._inode, self._writer, self._reader = inode, writer, reader


def is_damage(error: Exception) -> bool:
    """Return whether an error means that the index must be discarded."""
    if not isinstance(error, sqlite3.DatabaseError):
        return False
    code = getattr(error, "sqlite_errorcode", 0)
    return code & 0xFF in _DAMAGE or code == sqlite3.SQLITE_IOERR_SHORT_READ


def reason(error: Exception) -> str:
    """Return an error of the disk or the index in words for operators, without paths and values."""
    if isinstance(error, sqlite3.Error):
        return getattr(error, "sqlite_errorname", type(error).__name__)
    return (error.strerror or type(error).__name__) if isinstance(error, OSError) else type(error).__name__


def _connect(path: Path, *, schema: bool = False) -> sqlite3.Connection:
    """Open a connection in autocommit mode, for use from any thread."""
    with contextlib.ExitStack() as stack:
        index = sqlite3.connect(path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        stack.callback(index.close)
        # A row with damaged text fails its check.
        index.text_factory = lambda text: text.decode(errors="replace")
        script = "PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL;"
        if schema:
            tables = resources.files("storage_edge.storage").joinpath("index.sql").read_text(encoding="utf-8")
            script += f"PRAGMA journal_mode = WAL; {tables}"
        index.executescript(script)
        stack.pop_all()
    return index


def _inode(path: Path) -> int:
    """Return the inode number of the file, or 0 if it does not exist or is empty."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return 0
    return stat.st_ino if stat.st_size else 0
