"""The restoration of a backup into an empty place, completely or not at all.

Files are written to a folder whose name marks them as unfinished, and rows are written in one transaction. Both take
effect at the end, when everything has been read and checked. The secret key comes last: no server starts without it.
"""

import asyncio
import contextlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs
import orjson
import psycopg2
from psycopg2.errors import UndefinedColumn

from api_server.state import disk
from api_server.state.backups import UNFINISHED_RESTORE
from api_server.state.driver import blocking_connection
from api_server.state.migrate import make_older_schema, migrate, unsuitable_database
from api_server.state.objects import Objects
from api_server.state.secrets import KEY_FILE as SECRET_KEY
from common.config_errors import ConfigError, first_line
from forgelet.backup import form, table_queries
from forgelet.backup.contents import Places, chunks_of, is_without_objects, small_files_of_up
from forgelet.backup.form import DATABASE, OBJECTS, PIECE, REPOSITORIES, Member, Members, Rows, opened
from forgelet.backup.table_queries import Table

#: `progress(part, bytes)` reports how many bytes of the current part have been read.
Progress = Callable[[str, int], None]


@attrs.frozen
class Restored:
    """The content of the backup. `migrations` lists those that brought its schema up to date."""

    projects: int
    objects: int
    rows: int
    migrations: list[str]
    missing: list[str]


def check_is_empty(places: Places) -> None:
    """Raise `ConfigError` if the database, the data directory or the object store is not empty."""
    if places.data_dir.exists() and any(places.data_dir.iterdir()):
        raise ConfigError(f"The data directory {places.data_dir} is not empty: name another one")
    with unsuitable_database(), _cursor(places) as cursor:
        if not table_queries.is_empty(cursor):
            raise ConfigError(
                "The database is not empty: create another one, and name it with --database-url"
            )
    if places.object_store_url and not asyncio.run(is_without_objects(places.objects())):
        raise ConfigError(
            f"The object store {places.object_store_url} is not empty: name another place by object_store_url"
        )


def restore(places: Places, passphrase: str, stream: IO[bytes], progress: Progress) -> Restored:
    """Restore a backup into `places`, which `check_is_empty` has found empty, and describe its content. Raise
    `ConfigError`, `Unavailable`, psycopg2's errors or `OSError`; in this case `places` are empty again."""
    reader, seal, files = opened(stream, passphrase)
    disk.make_folder(places.data_dir)
    places.data_dir.chmod(0o700)
    stage = places.data_dir / UNFINISHED_RESTORE
    stage.mkdir(mode=0o700)
    with contextlib.ExitStack() as undo:
        undo.callback(shutil.rmtree, stage, ignore_errors=True)
        target = _Files(places, stage, undo.enter_context(asyncio.Runner()))
        undo.callback(target.remove)
        undo.callback(_empty_database, places)
        _make_schema(places, reader.header["migrations"])
        with _cursor(places) as cursor:
            members = Members(reader)
            rows = _load_tables(cursor, members, progress)
            while (member := members.next) is not None:
                progress(member.part, reader.parts[member.part].size)
                target.write(member)
                members.skip()
            reader.check(seal)
            _compare(rows, reader.manifest["rows"])
            cursor.execute("COMMIT")
        target.make_durable()
        before = set(reader.header["migrations"])
        migrate(places.database_url)
        with _cursor(places) as cursor:
            added = sorted(set(table_queries.migrations(cursor)) - before)
        _put_in_place(places, stage, files)
        undo.pop_all()
        target.close()
    manifest = reader.manifest
    return Restored(manifest["projects"], manifest["objects"], sum(rows.values()), added, manifest["missing"])


@contextlib.contextmanager
def _cursor(places: Places) -> Any:
    with blocking_connection(places.database_url) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            yield cursor


def _make_schema(places: Places, migrations: Sequence[str]) -> None:
    with _cursor(places) as cursor:
        table_queries.drop_everything(cursor)
    make_older_schema(places.database_url, migrations)


def _empty_database(places: Places) -> None:
    with contextlib.suppress(psycopg2.Error), _cursor(places) as cursor:
        table_queries.drop_everything(cursor)


def _load_tables(cursor: Any, members: Members, progress: Progress) -> dict[str, int]:
    """Load all rows and leave the transaction open. Return the number of rows of each table."""
    schema = _document(members, "schema.json")
    foreign_keys = table_queries.begin_loading(cursor)
    table_queries.begin_partitions(cursor, schema["partitions"])
    table_names = {table.name for table in table_queries.tables(cursor)}
    rows = dict.fromkeys(schema["tables"], 0)
    size = 0
    while (entry := members.rows_of_next_table()) is not None:
        name, source = entry
        if name not in table_names or name not in rows:
            raise form.damaged(f"the table {name} does not exist in its version")
        progress(DATABASE, size)
        rows[name] = _load(cursor, Table(name, schema["tables"][name]), source)
        size += rows[name]
    table_queries.set_sequences(cursor, _document(members, "sequences.json"))
    table_queries.end_loading(cursor, foreign_keys)
    return rows


def _load(cursor: Any, table: Table, source: Rows) -> int:
    try:
        return table_queries.load(cursor, table, source)  # type: ignore[arg-type]
    except (psycopg2.DataError, psycopg2.IntegrityError, UndefinedColumn) as problem:
        raise form.damaged(f"rows of {table.name} do not fit: {first_line(problem)}") from None


def _document(members: Members, name: str) -> Any:
    member = members.next
    if member is None or member.name != f"{DATABASE}/{name}":
        raise form.damaged(f"{name} is not in its place")
    text = member.content.read()
    members.skip()
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        raise form.damaged(name) from None


def _compare(loaded: Mapping[str, int], expected: Mapping[str, int]) -> None:
    for name, count in expected.items():
        if loaded.get(name) != count:
            raise form.damaged(f"{count:,} rows of {name} were written, {loaded.get(name):,} were read")


class _Files:
    """The repositories and stored objects of a restore, which are written below a folder. Objects for an external store
    are put there at once."""

    def __init__(self, places: Places, stage: Path, runner: asyncio.Runner) -> None:
        self._stage = stage
        self._runner = runner
        self._store: Objects | None = places.objects() if places.object_store_url else None
        self._uploaded: list[str] = []
        for name in (REPOSITORIES, OBJECTS):
            (stage / name).mkdir(mode=0o700)

    def write(self, member: Member) -> None:
        if member.part == REPOSITORIES:
            project_id, _, name = member.path.partition("/")
            if not project_id.isdecimal() or not name:
                raise form.damaged(f"{member.name!r} belongs to no repository")
            folder = self._stage / REPOSITORIES / f"{int(project_id) % 256:02x}" / f"{int(project_id)}.git"
            self._write_file(folder / name, member)
        elif member.part == OBJECTS and self._store is not None:
            self._uploaded.append(member.path)
            self._runner.run(self._store.put(member.path, chunks_of(member.content)))
        elif member.part == OBJECTS:
            self._write_file(self._stage / OBJECTS / member.path, member)
        else:
            raise form.damaged(f"{member.name!r} does not belong there")

    @staticmethod
    def _write_file(file: Path, member: Member) -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as opened_file:
            shutil.copyfileobj(member.content, opened_file, PIECE)

    def make_durable(self) -> None:
        """Create the folders that git expects in each repository, and return when everything is on the disk."""
        for repository in (self._stage / REPOSITORIES).glob("*/*.git"):
            for name in ("refs/heads", "refs/tags", "objects/info", "objects/pack"):
                (repository / name).mkdir(parents=True, exist_ok=True)
        os.sync()

    def remove(self) -> None:
        """Remove the objects that were put into an external store."""
        with contextlib.suppress(Exception):
            if self._store is not None and self._uploaded:
                self._runner.run(self._store.discard(self._uploaded))

    def close(self) -> None:
        self._runner.close()


def _put_in_place(places: Places, stage: Path, files: Mapping[str, str]) -> None:
    for name in (REPOSITORIES, OBJECTS):
        if name == REPOSITORIES or not places.object_store_url:
            (stage / name).rename(places.data_dir / name)
    if places.up is not None:
        for name, text in small_files_of_up(files).items():
            _write_secret(places.up / name, text)
    shutil.rmtree(stage)
    _write_secret(places.data_dir / SECRET_KEY, files[SECRET_KEY])
    os.sync()


def _write_secret(file: Path, text: str) -> None:
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened_file:
        opened_file.write(text)
