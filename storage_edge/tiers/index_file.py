"""The statements of the disk tier's index (see `index.sql`)."""

import contextlib
import json
import sqlite3
from importlib import resources
from pathlib import Path
from typing import Final

import attrs
import structlog

from storage_edge.tiers.purges import EVERYTHING, REMEMBERED, Purge
from storage_edge.tiers.stored_responses import StoredResponse, selection_key

log = structlog.get_logger(__name__)

#: Purges that are kept for processes that look at the index but now and then.
KEPT_PURGES: Final = 4 * REMEMBERED


def connect(path: Path, script: str = "") -> sqlite3.Connection:
    """A connection in autocommit mode, usable from any thread, that has run `script`."""
    with contextlib.ExitStack() as opened:
        index = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
        opened.callback(index.close)
        index.executescript(f"PRAGMA foreign_keys = ON; PRAGMA synchronous = NORMAL; {script}")
        opened.pop_all()
    return index


def open_or_start_anew(path: Path) -> sqlite3.Connection:
    """A connection to the index; one that cannot be read is thrown away, for it is only a cache's."""
    schema = resources.files("storage_edge.tiers").joinpath("index.sql").read_text(encoding="utf-8")
    try:
        return connect(path, f"PRAGMA journal_mode = WAL; {schema}")
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError:
        pass
    log.warning("The cache index cannot be read; starting with an empty cache.")
    for suffix in ("", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    return open_or_start_anew(path)


def last_epoch(index: sqlite3.Connection) -> int:
    """How many purges there have been."""
    row = index.execute("SELECT seq FROM sqlite_sequence WHERE name = 'purges'").fetchone()
    return int(row[0]) if row else 0


def has_body(index: sqlite3.Connection, digest: str) -> bool:
    """Whether the bytes with this digest are kept."""
    return index.execute("SELECT 1 FROM bodies WHERE digest = ?", (digest,)).fetchone() is not None


def put(index: sqlite3.Connection, stored: StoredResponse, digest: str) -> None:
    """Adds a response, or replaces the one with the same target and selection."""
    ((id_,),) = index.execute(
        "INSERT INTO responses (target, selected, digest, epoch, stale, response) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT (target, selected) DO UPDATE SET digest = excluded.digest, epoch = excluded.epoch,"
        " stale = excluded.stale, response = excluded.response RETURNING id",
        (
            stored.target,
            selection_key(stored.selected),
            digest,
            stored.epoch,
            stored.stale,
            stored.to_json(),
        ),
    ).fetchall()
    index.execute("DELETE FROM response_keys WHERE response = ?", (id_,))
    index.executemany(
        "INSERT INTO response_keys VALUES (?, ?)", [(key, id_) for key in sorted(stored.surrogate_keys)]
    )


def record(index: sqlite3.Connection, purge: Purge) -> int:
    """Adds a purge and forgets the oldest; its epoch."""
    cursor = index.execute("INSERT INTO purges (purge) VALUES (?)", (purge_to_json(purge),))
    epoch = int(cursor.lastrowid or 0)
    index.execute("DELETE FROM purges WHERE epoch <= ?", (epoch - KEPT_PURGES,))
    return epoch


def purges_since(index: sqlite3.Connection, epoch: int) -> list[tuple[int, Purge]]:
    """Purges of any process after `epoch`, in their order. Those that are forgotten may have named anything."""
    rows = index.execute(
        "SELECT epoch, purge FROM purges WHERE epoch > ? ORDER BY epoch", (epoch,)
    ).fetchall()
    purges = [(number, purge_from_json(text)) for number, text in rows]
    if purges and purges[0][0] > epoch + 1:
        purges.insert(0, (purges[0][0] - 1, EVERYTHING))
    return purges


def is_purged(index: sqlite3.Connection, stored: StoredResponse) -> bool:
    """Whether any purge, of any process, since the response's origin request concerns it."""
    return any(purge.concerns(stored) for _, purge in purges_since(index, stored.epoch))


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


def purge_to_json(purge: Purge) -> str:
    """A purge as the index keeps it."""
    return json.dumps({**attrs.asdict(purge), "keys": sorted(purge.keys), "urls": sorted(purge.urls)})


def purge_from_json(text: str) -> Purge:
    """The opposite of `purge_to_json`."""
    kept = json.loads(text)
    return Purge(
        keys=frozenset(kept["keys"]),
        urls=frozenset(kept["urls"]),
        prefixes=tuple(kept["prefixes"]),
        soft=kept["soft"],
    )
