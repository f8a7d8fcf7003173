"""The disk tier's index, an SQLite file: its statements (see `index.sql`), and the connections of one process to it."""

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
    """A response of the index; purges up to `purged` have been carried out on it."""

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
        """The response, unless one of `purges`, which have not been carried out on it, has dropped it."""
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
    """Whether the bytes with this digest are kept."""
    return index.execute("SELECT 1 FROM bodies WHERE digest = ?", (digest,)).fetchone() is not None


def add_body(index: sqlite3.Connection, digest: str, size: int, now: float) -> None:
    """Adds a body, used now."""
    index.execute("INSERT INTO bodies VALUES (?, ?, ?)", (digest, size, now))


def remove_body(index: sqlite3.Connection, digest: str) -> bool:
    """Drops a body and the responses that have it; whether it was there."""
    return index.execute("DELETE FROM bodies WHERE digest = ?", (digest,)).rowcount > 0


def bodies(index: sqlite3.Connection, beginning: str) -> list[str]:
    """The digests that begin so."""
    rows = index.execute(
        "SELECT digest FROM bodies WHERE digest >= ? AND digest < ?", (beginning, f"{beginning}g")
    )
    return [digest for (digest,) in rows.fetchall()]


def total(index: sqlite3.Connection) -> int:
    """Bytes of all bodies."""
    return int(index.execute("SELECT coalesce(sum(bytes), 0) FROM totals").fetchone()[0])


def count(index: sqlite3.Connection) -> int:
    """How many responses are kept."""
    return int(index.execute("SELECT responses FROM counts").fetchone()[0])


def evict(index: sqlite3.Connection) -> bool:
    """Drops the body that has not been used for the longest time; False when there is none."""
    statement = "DELETE FROM bodies WHERE digest = (SELECT digest FROM bodies ORDER BY used LIMIT 1)"
    return index.execute(statement).rowcount > 0


def take_garbage(index: sqlite3.Connection) -> list[str]:
    """The digests of bodies that have been dropped and whose files are still there."""
    return [digest for (digest,) in index.execute("DELETE FROM garbage RETURNING digest").fetchall()]


def touch(index: sqlite3.Connection, hits: Mapping[str, int], now: float) -> list[str]:
    """Notes how often targets were used since the last time; those of which nothing is kept here."""
    index.executemany(
        "UPDATE bodies SET used = ? WHERE digest IN (SELECT digest FROM responses WHERE target = ?)",
        [(now, target) for target in hits],
    )
    known = {target for target in hits if has(index, target)}
    index.executemany(
        "INSERT INTO hits VALUES (?, ?) ON CONFLICT (target) DO UPDATE SET count = count + excluded.count",
        [(target, hits[target]) for target in known],
    )
    return [target for target in hits if target not in known]


def has(index: sqlite3.Connection, target: str) -> bool:
    """Whether anything is stored under a target."""
    statement = "SELECT 1 FROM responses WHERE target = ? LIMIT 1"
    return index.execute(statement, (target,)).fetchone() is not None


def digest_of(index: sqlite3.Connection, stored: StoredResponse) -> str | None:
    """The digest of the response with the same target and selection."""
    row = index.execute(
        "SELECT digest FROM responses WHERE target = ? AND selected = ?",
        (stored.target, selection_key(stored.selected)),
    ).fetchone()
    return None if row is None else str(row[0])


def remove(index: sqlite3.Connection, target: str, selected: str) -> None:
    """Drops a response."""
    index.execute("DELETE FROM responses WHERE target = ? AND selected = ?", (target, selected))


def find(index: sqlite3.Connection, target: str) -> list[Row]:
    """The responses under a target."""
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
    """Adds a response, or replaces the one with the same target and selection."""
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
    """The newest purge that has been carried out."""
    return int(index.execute("SELECT coalesce(max(epoch), 0) FROM purged").fetchone()[0])


def carry_out(index: sqlite3.Connection, number: int, purge: Purge) -> int:
    """Drops the responses that a purge concerns, or makes them stale, but for those whose requests began after it; how
    many there were.
    """
    statement = (
        "UPDATE responses SET stale = 1 WHERE id = ? AND epoch < ?"
        if purge.soft
        else "DELETE FROM responses WHERE id = ? AND epoch < ?"
    )
    hit = index.executemany(statement, [(id_, number) for id_ in concerned(index, purge)]).rowcount
    index.execute("UPDATE purged SET epoch = ?", (number,))
    return max(hit, 0)


def concerned(index: sqlite3.Connection, purge: Purge) -> set[int]:
    """The ids of the responses that a purge names."""
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
                return has(self._reader, target)
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
            tables = resources.files("storage_edge.storage").joinpath("index.sql").read_text(encoding="utf-8")
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
