"""The disk tier: bodies in files named by their digest, and an SQLite index that processes on one machine share.

All methods block; `Store` calls them from one worker thread.
"""

import contextlib
import fcntl
import hashlib
import mmap
import os
import shutil
import sqlite3
import struct
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

import structlog

from storage_edge.tiers import index_file
from storage_edge.tiers.bodies import FileBody, Spool
from storage_edge.tiers.purges import Purge
from storage_edge.tiers.stored_responses import StoredResponse, selection_from_key, selection_key

log = structlog.get_logger(__name__)

#: A body larger than this part of the budget is kept only when it is asked for again, if others had to go for it.
LARGE_PART: Final = 1 / 16
_SCHEMA_VERSION: Final = "1"
_EPOCH = struct.Struct("=Q")


class DiskTier:
    """Files below `directory`, at most `budget` bytes of them. `clock` gives seconds since 1970."""

    def __init__(self, directory: Path, budget: int, clock: Callable[[], float]) -> None:
        self._root = directory / f"v{_SCHEMA_VERSION}"
        self._budget = budget
        self._clock = clock
        self._verified: set[str] = set()
        #: Bodies that this process has evicted, and bytes of all bodies when it last looked.
        self.evicted = self.size = 0
        try:
            for part in ("objects", "incoming"):
                (self._root / part).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SystemExit(f"The data directory {directory} cannot be written: {error.strerror}.") from None
        self._index = index_file.open_or_start_anew(self._root / "index.sqlite3")
        self._reader = index_file.connect(self._root / "index.sqlite3")
        self._lock, self.incoming = _own_incoming(self._root / "incoming")
        self._epoch_file = _open_epoch(self._root / "epoch")
        with self._transaction() as index:
            _EPOCH.pack_into(self._epoch_file, 0, index_file.last_epoch(index))
        self._sweep()

    def close(self) -> None:
        """Closes the index; what arrives still is lost."""
        self._reader.close()
        self._index.close()
        self._epoch_file.close()
        shutil.rmtree(self.incoming, ignore_errors=True)
        os.close(self._lock)

    @property
    def epoch(self) -> int:
        """Purges that the processes of this directory have seen; cheap enough to ask at every request."""
        return int(_EPOCH.unpack_from(self._epoch_file, 0)[0])

    def has(self, target: str) -> bool:
        """Whether anything is stored under a target; quick, for the event loop, and without any lock."""
        row = self._reader.execute("SELECT 1 FROM responses WHERE target = ? LIMIT 1", (target,)).fetchone()
        return row is not None

    def find(self, target: str) -> list[StoredResponse]:
        """All responses stored under a target, their files there, complete and checked once per process."""
        rows = self._index.execute(
            "SELECT selected, digest, size, epoch, stale, response FROM responses JOIN bodies USING (digest)"
            " WHERE target = ?",
            (target,),
        ).fetchall()
        found = []
        for selected, digest, size, epoch, stale, response in rows:
            if not self._is_intact(digest, size):
                self._forget_body(digest)
                continue
            try:
                stored = StoredResponse.from_json(
                    response,
                    target=target,
                    selected=selection_from_key(selected),
                    epoch=epoch,
                    body=FileBody(self._path(digest), size),
                    stale=bool(stale),
                )
            except (KeyError, TypeError, ValueError):  # another version of the edge has written it
                continue
            found.append(stored)
        return found

    def save(self, stored: StoredResponse, spool: Spool, *, wanted_again: bool) -> FileBody | None:
        """Keeps a response whose body has arrived; None when it is too large, or a purge came in between.

        `wanted_again` says that the object has been asked for before, which lets a large one displace others.
        """
        size, digest = spool.size, spool.digest
        if size > self._budget:
            return None
        with self._transaction() as index:
            if index_file.is_purged(index, stored):
                return None
            if not index_file.has_body(index, digest):
                if not self._make_room(
                    index, size, displace=wanted_again or size <= self._budget * LARGE_PART
                ):
                    return None
                self._path(digest).parent.mkdir(exist_ok=True)
                spool.move_to(self._path(digest))
                index.execute("INSERT INTO bodies VALUES (?, ?, ?)", (digest, size, self._clock()))
            self._verified.add(digest)
            index_file.put(index, stored, digest)
        return FileBody(self._path(digest), size)

    def update(self, stored: StoredResponse) -> None:
        """Replaces the fields of a response whose bytes stay the same (304, HEAD)."""
        with self._transaction() as index:
            row = index.execute(
                "SELECT digest FROM responses WHERE target = ? AND selected = ?",
                (stored.target, selection_key(stored.selected)),
            ).fetchone()
            if row is not None and not index_file.is_purged(index, stored):
                index_file.put(index, stored, row[0])

    def remove(self, stored: StoredResponse) -> None:
        """Drops one response."""
        with self._transaction() as index:
            index.execute(
                "DELETE FROM responses WHERE target = ? AND selected = ?",
                (stored.target, selection_key(stored.selected)),
            )

    def touch(self, targets: Iterable[str]) -> None:
        """Notes the use of responses, for eviction."""
        now = self._clock()
        with self._transaction() as index:
            index.executemany(
                "UPDATE bodies SET used = ? WHERE digest IN (SELECT digest FROM responses WHERE target = ?)",
                [(now, target) for target in targets],
            )

    def purge(self, purge: Purge) -> int:
        """Carries out a purge for all processes of this directory; the number of responses hit.

        When it returns, the purge survives a crash of the machine.
        """
        self._index.execute("PRAGMA synchronous = FULL")
        try:
            with self._transaction() as index:
                epoch = index_file.record(index, purge)
                ids = index_file.concerned(index, purge)
                statement = (
                    "UPDATE responses SET stale = 1 WHERE id = ?"
                    if purge.soft
                    else "DELETE FROM responses WHERE id = ?"
                )
                index.executemany(statement, [(id_,) for id_ in ids])
            _EPOCH.pack_into(self._epoch_file, 0, epoch)
        finally:
            self._index.execute("PRAGMA synchronous = NORMAL")
        return len(ids)

    def purges_since(self, epoch: int) -> list[tuple[int, Purge]]:
        """Purges of any process after `epoch`."""
        return index_file.purges_since(self._reader, epoch)

    def _path(self, digest: str) -> Path:
        return self._root / "objects" / digest[:2] / digest[2:]

    def _is_intact(self, digest: str, size: int) -> bool:
        path = self._path(digest)
        try:
            if path.stat().st_size != size:
                return False
            if digest not in self._verified:
                with path.open("rb") as file:
                    if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                        return False
                self._verified.add(digest)
        except OSError:
            return False
        return True

    def _forget_body(self, digest: str) -> None:
        self._verified.discard(digest)
        with self._transaction() as index:
            index.execute("DELETE FROM bodies WHERE digest = ?", (digest,))

    def _make_room(self, index: sqlite3.Connection, size: int, *, displace: bool) -> bool:
        used = int(index.execute("SELECT bytes FROM totals").fetchone()[0])
        if used + size > self._budget and not displace:
            return False
        while used + size > self._budget:
            oldest = index.execute("SELECT digest, size FROM bodies ORDER BY used LIMIT 1").fetchone()
            if oldest is None:
                return False
            index.execute("DELETE FROM bodies WHERE digest = ?", (oldest[0],))
            used -= oldest[1]
            self.evicted += 1
        return True

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """One write transaction; files of bodies that it drops are deleted before it ends, so that no process can
        bring such a body back in between.
        """
        self._index.execute("BEGIN IMMEDIATE")
        try:
            yield self._index
            for (digest,) in self._index.execute("DELETE FROM garbage RETURNING digest").fetchall():
                if not index_file.has_body(self._index, digest):
                    self._path(digest).unlink(missing_ok=True)
            self.size = int(self._index.execute("SELECT bytes FROM totals").fetchone()[0])
        except BaseException:
            self._index.execute("ROLLBACK")
            raise
        self._index.execute("COMMIT")

    def _sweep(self) -> None:
        """Deletes files that a killed process left without a row."""
        for directory in (self._root / "objects").iterdir():
            with self._transaction() as index:
                for path in directory.iterdir():
                    if not index_file.has_body(index, directory.name + path.name):
                        path.unlink(missing_ok=True)


def _own_incoming(directory: Path) -> tuple[int, Path]:
    """A directory for bodies that arrive at this process, and the lock that says that it lives.

    Directories of processes that live no more are removed.
    """
    for other in directory.iterdir():
        descriptor = os.open(other, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(other, ignore_errors=True)
        except OSError:
            pass
        finally:
            os.close(descriptor)
    own = Path(tempfile.mkdtemp(dir=directory))
    lock = os.open(own, os.O_RDONLY | os.O_CLOEXEC)
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock, own


def _open_epoch(path: Path) -> mmap.mmap:
    with path.open("a+b") as file:
        if file.tell() < _EPOCH.size:
            file.truncate(_EPOCH.size)
        return mmap.mmap(file.fileno(), _EPOCH.size)
