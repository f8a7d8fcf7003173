"""The backup of a running instance: database, refs and stored objects of the same moment.

The order makes this possible:

1. Until the end, nothing is removed that a row has named (`api_server/state/backups.py`). The backup waits for
repositories that are being packed.
2. All refs are read. Then pushes are held: none is recorded or completed. The snapshot of the database is taken, and
the refs that have moved since they were read are read again: those of projects whose rows have changed. Then pushes go
on. A push that was recorded but not completed is in that state in the backup too, and the next start completes it.
3. Tables are copied from the snapshot.
4. Objects of git and stored objects are copied. Both are complete before a ref or a row names them, and never change
afterwards.
"""

import asyncio
import contextlib
import datetime
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import metadata
from typing import IO, Any

import attrs
import orjson
import psycopg2

from api_server.state.backups import backing_up
from api_server.state.driver import blocking_connection
from common.config_errors import ConfigError
from forgelet.backup import contents, form, table_queries
from forgelet.backup.contents import Copier, Keys, Places, Refs, Tally
from forgelet.backup.form import DATABASE, HEADER, MANIFEST, Seal, Writer

#: Seconds in which a transaction that moves refs has to end. New pushes wait during this time.
_TIMEOUT_SECONDS = 2.0
_TRIES = 30
#: Number of times that refs are read before pushes are held. Hardly any ref moves after the second reading.
_READINGS = 2
#: Maximum number of seconds to wait for refs that are being moved, all together. Pushes wait as long; they give up
#: after 5 seconds.
_HOLD_SECONDS = 1.0
#: Number of bytes of a packed table that are held in memory.
_PIECE = 4 * 2**20

#: `progress(step, done, of)` reports the progress of the backup.
Progress = Callable[[str, int, int], None]


@attrs.frozen
class BackedUp:
    """The content of a backup. `missing` lists repositories and objects that rows name but that do not exist."""

    projects: int
    objects: int
    rows: int
    bytes: int
    pushes_waited: float
    missing: list[str]


@attrs.define
class _Moment:
    """The facts about the moment of a backup, in addition to the snapshot: all projects, those with pushed commits, and
    the seconds that pushes have waited."""

    ids: list[int]
    pushed_to: set[int]
    pushes_waited: float


def back_up(
    places: Places, passphrase: str, stream: IO[bytes], now: datetime.datetime, progress: Progress
) -> BackedUp:
    """Write a backup to `stream` and return a description of its content.

    Raise `ConfigError`, `Unavailable`, psycopg2's errors or `OSError`; the stream then contains no valid backup.
    """
    _check_place(places)
    seal = Seal.new(passphrase)
    with contextlib.ExitStack() as stack:
        stack.enter_context(backing_up(places.repositories.root))
        snapshot, barrier = (stack.enter_context(_cursor(places)) for _ in range(2))
        refs, keys = stack.enter_context(closing(Refs())), stack.enter_context(closing(Keys()))
        moment = _take_moment(places, snapshot, barrier, refs, progress)
        writer = Writer(stream)
        header = _header(places, seal, snapshot, now)
        writer.add(HEADER, header)
        rows = _copy_tables(writer, snapshot, progress)
        keys.add(table_queries.keys(snapshot))
        chain_end = table_queries.chain_end(snapshot)
        snapshot.execute("COMMIT")  # the rest may take long and does not need the snapshot
        for count, (project_id, files) in enumerate(refs.each(moment.ids)):
            progress("repositories", count, len(moment.ids))
            contents.copy_repository(writer, places.repositories, project_id, files)
        tally = _copy_objects(writer, places, keys, chain_end, progress)
        missing = sorted(refs.missing.intersection(moment.pushed_to))
        result = BackedUp(
            projects=len(moment.ids) - len(missing),
            objects=tally.count,
            rows=sum(rows.values()),
            bytes=sum(part.size for part in writer.parts.values()),
            pushes_waited=moment.pushes_waited,
            missing=[*(f"repository of project {missing_id}" for missing_id in missing), *tally.missing],
        )
        _close(writer, seal, header, result, rows)
    return result


def _check_place(places: Places) -> None:
    if not places.repositories.root.is_dir():
        if not places.data_dir.is_dir():
            raise ConfigError(f"There is no data directory {places.data_dir}: check the setting data_dir")
        places.repositories.root.mkdir()


@contextlib.contextmanager
def _cursor(places: Places) -> Iterator[Any]:
    with blocking_connection(places.database_url) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor


def _take_moment(places: Places, snapshot: Any, barrier: Any, refs: Refs, progress: Progress) -> _Moment:
    snapshot.execute("SELECT 1")
    for project_id in contents.wait_for_packing(places.repositories, list(table_queries.projects(snapshot))):
        progress(f"waiting until the repository of project {project_id} is packed", 0, 0)
    latest: dict[int, table_queries.Project] = {}
    for _ in range(_READINGS):
        before, latest = latest, table_queries.projects(snapshot)
        changed_ids = sorted(dict(latest.items() - before.items()))
        for count, project_id in enumerate(changed_ids):
            progress("refs", count, len(changed_ids))
            refs.read(places.repositories, project_id)
    _hold_pushes(barrier)
    held_at = time.monotonic()
    try:
        table_queries.begin_snapshot(snapshot)
        now, moving = table_queries.projects(snapshot), table_queries.pushed(snapshot)
        for project_id in {*dict(now.items() - latest.items()), *moving, *refs.missing}.intersection(now):
            timeout = held_at + _HOLD_SECONDS if project_id in moving else None
            refs.read(places.repositories, project_id, moving_until=timeout)
    finally:
        barrier.execute("ROLLBACK")
    pushed_to = {project_id for project_id, project in now.items() if not project.is_empty}
    return _Moment(sorted(now), pushed_to, time.monotonic() - held_at)


def _hold_pushes(barrier: Any) -> None:
    for _ in range(_TRIES):
        barrier.execute("BEGIN")
        try:
            table_queries.hold_pushes(barrier, _TIMEOUT_SECONDS)
        except psycopg2.errors.LockNotAvailable:
            barrier.execute("ROLLBACK")  # so that transactions that wait behind this one continue
        else:
            return
    seconds = f"{_TRIES * _TIMEOUT_SECONDS:.0f} seconds"
    raise ConfigError(f"A push has been moving refs for more than {seconds}: try again when it has ended")


def _header(places: Places, seal: Seal, snapshot: Any, now: datetime.datetime) -> bytes:
    return orjson.dumps(
        {
            "format": form.FORMAT,
            "forgelet": metadata.version("forgelet"),
            "made_at": now.isoformat(),
            "postgresql": snapshot.connection.server_version,
            "migrations": table_queries.migrations(snapshot),
            "key": seal.derivation,
            "sealed": seal.close({"files": places.small_files()}),
        }
    )


def _copy_tables(writer: Writer, snapshot: Any, progress: Progress) -> dict[str, int]:
    """Copy all tables and return the number of rows of each."""
    tables = table_queries.tables(snapshot)
    schema = {
        "tables": {table.name: table.columns for table in tables},
        "partitions": table_queries.partitions(snapshot),
    }
    writer.add(f"{DATABASE}/schema.json", orjson.dumps(schema))
    rows = {}
    for count, table in enumerate(tables):
        progress("tables", count, len(tables))
        target = _Parts(writer, table.name)
        rows[table.name] = table_queries.dump(snapshot, table, target)
        target.flush()
    writer.add(f"{DATABASE}/sequences.json", orjson.dumps(table_queries.sequences(snapshot)))
    return rows


def _copy_objects(writer: Writer, places: Places, keys: Keys, chain_end: int, progress: Progress) -> Tally:
    with asyncio.Runner() as runner:
        copier = Copier(places.objects(), writer, runner)
        for count, _ in enumerate(copier.copy(keys.each())):
            progress("stored objects", count, keys.count)
        for _ in copier.copy(copier.heads(chain_end)):
            continue
        return copier.tally


def _close(writer: Writer, seal: Seal, header: bytes, result: BackedUp, rows: dict[str, int]) -> None:
    parts = {name: part.as_manifest() for name, part in writer.parts.items()}
    counts = {"projects": result.projects, "objects": result.objects, "rows": rows, "missing": result.missing}
    text = orjson.dumps({**counts, "parts": parts})
    signed = {"manifest": text.decode(), "signature": seal.signature(header, text)}
    writer.add(MANIFEST, orjson.dumps(signed))
    writer.close()


class _Parts:
    """A target of COPY that writes the packed rows as members of a backup. Each member is a complete gzip file."""

    def __init__(self, writer: Writer, table: str) -> None:
        self._writer = writer
        self._table = table
        self._number = 0
        self._begin()

    def _begin(self) -> None:
        self._packer = zlib.compressobj(1, wbits=31)
        self._packed = bytearray()
        self._is_empty = True

    def write(self, text: bytes) -> int:
        self._is_empty = False
        self._packed += self._packer.compress(text)
        if len(self._packed) >= _PIECE:
            self.flush()
        return len(text)

    def flush(self) -> None:
        if self._is_empty:
            return
        self._packed += self._packer.flush()
        self._writer.add(f"{DATABASE}/{self._table}.{self._number:06}.gz", bytes(self._packed))
        self._number += 1
        self._begin()
