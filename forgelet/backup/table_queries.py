"""Statements that read and fill all tables of a database and bring it to a schema.

Contents are transferred by COPY, not by pg_dump, and the schema is always made by our own migrations. So no matching
PostgreSQL program has to be installed, a backup can be restored into another version of PostgreSQL, names of roles do
not matter, and an older schema is brought up to date by the usual migrations.
"""

from collections.abc import Iterator, Sequence
from typing import IO, Any

import attrs
from psycopg2 import sql
from psycopg2.extensions import cursor as Cursor  # noqa: N812

#: The tables of yoyo, which it creates while it migrates, are left out.
_OWN = "relnamespace = current_schema()::regnamespace AND relname !~ '^(_?yoyo)_'"
_OF_EXTENSIONS = "SELECT FROM pg_depend WHERE pg_depend.objid = pg_class.oid AND pg_depend.deptype = 'e'"

_TABLES = f"""
    SELECT relname::text, (
        SELECT array_agg(attname::text ORDER BY attnum) FROM pg_attribute
        WHERE attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped AND attgenerated = '')
    FROM pg_class WHERE {_OWN} AND relkind IN ('r', 'p') AND NOT relispartition AND NOT EXISTS ({_OF_EXTENSIONS})
    ORDER BY relname
"""
_SEQUENCES = f"SELECT relname::text FROM pg_class WHERE {_OWN} AND relkind = 'S' ORDER BY relname"
_MIGRATIONS = "SELECT migration_id::text FROM _yoyo_migration ORDER BY migration_id"
#: The completion of a push changes the row of its project.
_PROJECTS = "SELECT id, xmin::text::bigint, empty_repo FROM projects"
_PUSHED = "SELECT DISTINCT project_id FROM pushes"
_CHAIN_END = "SELECT coalesce(max(position), 0) FROM audit_chain"
#: Everything in the object store that a row names. An archive may have an index beside it.
_KEYS = """
    SELECT object_key, true FROM job_artifacts
    UNION ALL SELECT object_key, false FROM job_logs WHERE object_key IS NOT NULL
    UNION ALL SELECT object_key, false FROM lfs_objects
"""
_PARTITIONS = r"""
    SELECT relname::text, substring(bound FROM 'FROM \(''([^'']+)''\)'), substring(bound FROM 'TO \(''([^'']+)''\)')
    FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid,
        LATERAL pg_get_expr(relpartbound, pg_class.oid) AS bound
    WHERE inhparent = 'audit_events'::regclass ORDER BY relname
"""
_ALL_TABLES = f"SELECT relname::text FROM pg_class WHERE {_OWN} AND relkind IN ('r', 'p') ORDER BY relname"
_FOREIGN_KEYS = f"""
    SELECT relname::text, conname::text, pg_get_constraintdef(pg_constraint.oid)
    FROM pg_constraint JOIN pg_class ON pg_class.oid = conrelid
    WHERE {_OWN} AND contype = 'f' AND conparentid = 0
"""
_ANYTHING = f"""
    SELECT relname::text FROM pg_class
    WHERE {_OWN} AND relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT EXISTS ({_OF_EXTENSIONS}) ORDER BY relname LIMIT 1
"""
_HAS_USERS = "SELECT to_regclass('users') IS NOT NULL"
_ANY_USER = "SELECT EXISTS (SELECT FROM users)"
#: Drops everything in the schema except parts of extensions, whichever role created it.
_DROP_ALL = """
    DO $$ DECLARE one record; BEGIN
        FOR one IN SELECT oid::regclass AS name, relkind FROM pg_class
            WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p') AND NOT relispartition
                AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_class.oid AND deptype = 'e')
        LOOP EXECUTE format('DROP TABLE IF EXISTS %s CASCADE', one.name); END LOOP;
        FOR one IN SELECT oid::regprocedure AS name FROM pg_proc
            WHERE pronamespace = current_schema()::regnamespace
                AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_proc.oid AND deptype = 'e')
        LOOP EXECUTE format('DROP ROUTINE IF EXISTS %s CASCADE', one.name); END LOOP;
        FOR one IN SELECT oid::regtype AS name FROM pg_type
            WHERE typnamespace = current_schema()::regnamespace AND typtype IN ('e', 'c', 'd') AND typrelid = 0
                AND NOT EXISTS (SELECT FROM pg_depend WHERE objid = pg_type.oid AND deptype = 'e')
        LOOP EXECUTE format('DROP TYPE IF EXISTS %s CASCADE', one.name); END LOOP;
        FOR one IN SELECT pg_type.oid::regtype AS name FROM pg_type JOIN pg_class ON pg_class.oid = typrelid
            WHERE typnamespace = current_schema()::regnamespace AND relkind = 'c'
        LOOP EXECUTE format('DROP TYPE IF EXISTS %s CASCADE', one.name); END LOOP;
        FOR one IN SELECT oid::regclass AS name FROM pg_class
            WHERE relnamespace = current_schema()::regnamespace AND relkind = 'S'
        LOOP EXECUTE format('DROP SEQUENCE IF EXISTS %s CASCADE', one.name); END LOOP;
    END $$
"""
#: No time limits, and values in a form that every PostgreSQL reads.
_SESSION = {
    "statement_timeout": "0",
    "lock_timeout": "0",
    "idle_in_transaction_session_timeout": "0",
    "timezone": "UTC",
    "datestyle": "ISO, YMD",
    "intervalstyle": "postgres",
    "extra_float_digits": "3",
    "bytea_output": "hex",
    "client_encoding": "UTF8",
}
#: The edges' contents and pending purges do not match the restored state.
_FORGET = "DELETE FROM edge_purges"
_FORGET_EVERYTHING = "UPDATE edges SET purge_everything = true"


@attrs.frozen
class Table:
    """A table and its columns that are copied."""

    name: str
    columns: Sequence[str]

    @property
    def _columns(self) -> sql.Composed:
        return sql.SQL(", ").join(map(sql.Identifier, self.columns))


@attrs.frozen
class Project:
    """A project. `changed_by` is the transaction that last changed its row: if it is the same as before, no push was
    completed in between. An empty project may have no repository."""

    changed_by: int
    is_empty: bool


def begin_snapshot(cursor: Cursor) -> None:
    """Begin a transaction that sees the database as it is now."""
    cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
    _as_it_takes(cursor)
    cursor.execute("SELECT 1")


def _as_it_takes(cursor: Cursor) -> None:
    for name, value in _SESSION.items():
        cursor.execute("SELECT set_config(%s, %s, true)", (name, value))


def hold_pushes(cursor: Cursor, timeout: float) -> None:
    """Prevent others from recording or completing a push until the transaction ends. Raise `LockNotAvailable` after
    `timeout` seconds."""
    cursor.execute("SET LOCAL lock_timeout = %s", (int(timeout * 1000),))
    cursor.execute("LOCK TABLE pushes IN SHARE MODE")


def tables(cursor: Cursor) -> list[Table]:
    return [Table(*row) for row in _rows(cursor, _TABLES)]


def dump(cursor: Cursor, table: Table, target: Any) -> int:
    """Write the rows of a table to `target`, which has `write(bytes)`, and return their number."""
    statement = sql.SQL("COPY (SELECT {} FROM {}) TO STDOUT").format(
        table._columns, sql.Identifier(table.name)
    )
    cursor.copy_expert(statement, target)
    return cursor.rowcount


def load(cursor: Cursor, table: Table, source: IO[bytes]) -> int:
    """Read the rows of a table from `source`, and return their number."""
    statement = sql.SQL("COPY {} ({}) FROM STDIN").format(sql.Identifier(table.name), table._columns)
    cursor.copy_expert(statement, source)
    return cursor.rowcount


def sequences(cursor: Cursor) -> dict[str, Any]:
    """Return the last value of each sequence, and whether that value was used."""
    values = {}
    for (name,) in _rows(cursor, _SEQUENCES):
        cursor.execute(sql.SQL("SELECT last_value, is_called FROM {}").format(sql.Identifier(name)))
        values[name] = cursor.fetchone()
    return values


def set_sequences(cursor: Cursor, values: dict[str, Any]) -> None:
    for name, (value, was_given) in values.items():
        cursor.execute("SELECT setval(quote_ident(%s)::regclass, %s, %s)", (name, value, was_given))


def partitions(cursor: Cursor) -> list[tuple[str, str | None, str | None]]:
    """Return name, beginning and end of each partition of the audit trail."""
    return _rows(cursor, _PARTITIONS)


def make_partitions(cursor: Cursor, new_partitions: Sequence[tuple[str, str | None, str | None]]) -> None:
    """Replace the partitions, which must be empty."""
    for name, _, _ in partitions(cursor):
        cursor.execute(sql.SQL("DROP TABLE {}").format(sql.Identifier(name)))
    for name, since, until in new_partitions:
        cursor.execute(
            "SELECT make_audit_partition(%s, %s::timestamptz, %s::timestamptz)", (name, since, until)
        )


def migrations(cursor: Cursor) -> list[str]:
    return [name for (name,) in _rows(cursor, _MIGRATIONS)]


def projects(cursor: Cursor) -> dict[int, Project]:
    """Return all projects by id."""
    return {number: Project(*values) for number, *values in _rows(cursor, _PROJECTS)}


def pushed(cursor: Cursor) -> set[int]:
    """Return the ids of projects with a push that is not completed."""
    return {number for (number,) in _rows(cursor, _PUSHED)}


def chain_end(cursor: Cursor) -> int:
    """Return the position of the last audit event."""
    return int(_rows(cursor, _CHAIN_END)[0][0])


def keys(cursor: Cursor) -> Iterator[tuple[str, bool]]:
    """Yield the key of every object that a row names, and whether it may have an index."""
    cursor.execute(f"DECLARE object_keys CURSOR FOR {_KEYS}")
    while rows := _rows(cursor, "FETCH 10000 FROM object_keys"):
        yield from rows


def is_empty(cursor: Cursor) -> bool:
    """Return whether the database has nothing, or only the tables of a forgelet that never had a user."""
    if not _rows(cursor, _ANYTHING):
        return True
    return bool(_rows(cursor, _HAS_USERS)[0][0]) and not _rows(cursor, _ANY_USER)[0][0]


def drop_everything(cursor: Cursor) -> None:
    cursor.execute(_DROP_ALL)


def begin_loading(cursor: Cursor) -> list[tuple[str, str, str]]:
    """Begin a transaction for loading rows, without triggers and foreign keys, and delete the rows that migrations
    inserted. Return the foreign keys for `end_loading`."""
    cursor.execute("BEGIN")
    _as_it_takes(cursor)
    foreign_keys = _rows(cursor, _FOREIGN_KEYS)
    for table, name, _ in foreign_keys:
        cursor.execute(
            sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}").format(sql.Identifier(table), sql.Identifier(name))
        )
    _triggers(cursor, "DISABLE")
    for table in tables(cursor):
        cursor.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier(table.name)))
    return foreign_keys


def end_loading(cursor: Cursor, foreign_keys: list[tuple[str, str, str]]) -> None:
    """Restore foreign keys and triggers, which checks all rows. The caller commits."""
    cursor.execute(_FORGET)
    cursor.execute(_FORGET_EVERYTHING)
    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")
    for table, name, definition in foreign_keys:
        cursor.execute(
            sql.SQL("ALTER TABLE {} ADD CONSTRAINT {} " + definition).format(
                sql.Identifier(table), sql.Identifier(name)
            )
        )
    _triggers(cursor, "ENABLE")


def begin_partitions(cursor: Cursor, new_partitions: Sequence[tuple[str, str | None, str | None]]) -> None:
    """Replace the partitions, and disable their triggers like all others."""
    make_partitions(cursor, new_partitions)
    _triggers(cursor, "DISABLE")


def _triggers(cursor: Cursor, verb: str) -> None:
    for (name,) in _rows(cursor, _ALL_TABLES):
        cursor.execute(sql.SQL("ALTER TABLE {} " + verb + " TRIGGER USER").format(sql.Identifier(name)))


def _rows(cursor: Cursor, statement: str) -> list[Any]:
    cursor.execute(statement)
    return list(cursor.fetchall())
