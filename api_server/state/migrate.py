"""The schema: migrating a database to this version (`migrations/`, functions), and inspecting one without
changing it."""

import hashlib
import logging
from collections.abc import Collection, Iterator
from contextlib import closing, contextmanager
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import attrs
import psycopg2
from psycopg2.extensions import parse_dsn

from api_server.state import secrets
from api_server.state.database import system_clock
from api_server.state.driver import blocking_connection, is_pooled
from api_server.state.errors import Unavailable, UnsuitableDatabase
from common.config_errors import ConfigError, first_line

#: Key of the lock that lets one process migrate at a time; a killed process holds no lock.
_LOCK = 0x666F726765
OLDEST_POSTGRESQL = 150000

#: In this order: later files call functions of earlier ones.
_FUNCTION_FILES = ("rights_functions.sql", "functions.sql", "merge_request_functions.sql")

#: These files created the whole schema when they replaced the migrations of earlier commits.
_BASELINE = ["0001_accounts", "0002_code", "0003_merge_requests", "0004_ci", "0005_operations"]
#: The first and the last of those earlier migrations, and the result of `_NAMES_AND_COLUMNS` after all of
#: them.
BEFORE_BASELINE = "0001_accounts_and_projects"
_LAST_BEFORE_BASELINE = "0280_submitted_forms"
_ALL_BEFORE_BASELINE = "c0ce9eb636e2f6f7a9d59c65a1261623"
_NAMES_AND_COLUMNS = r"""
    SELECT md5(
        (SELECT string_agg(migration_id, ',' ORDER BY migration_id COLLATE "C") FROM _yoyo_migration)
        || (SELECT string_agg(
                format('%s.%s %s %s', relname, attname, format_type(atttypid, atttypmod), attnotnull),
                ',' ORDER BY relname COLLATE "C", attname COLLATE "C")
            FROM pg_class JOIN pg_attribute ON attrelid = pg_class.oid AND attnum > 0 AND NOT attisdropped
            WHERE relnamespace = to_regnamespace(current_schema()) AND relkind IN ('r', 'p')
                AND relname !~ '^(_?yoyo|procrastinate|audit_events)_'))
"""
_TAKE_OVER = """
    WITH earlier AS (DELETE FROM _yoyo_migration RETURNING applied_at_utc)
    INSERT INTO _yoyo_migration (migration_hash, migration_id, applied_at_utc)
    SELECT encode(sha256(convert_to(id, 'UTF8')), 'hex'), id, (SELECT max(applied_at_utc) FROM earlier)
    FROM unnest(%s) id
"""

#: Return the applied migrations, and the digest of the function files that the database's functions come
#: from.
_APPLIED = "SELECT array_agg(migration_id::text) FROM _yoyo_migration"
_FUNCTIONS = "SELECT obj_description(to_regprocedure('iso8601(timestamptz)'))"
_REMEMBER_FUNCTIONS = "COMMENT ON FUNCTION iso8601(timestamptz) IS %s"
_IS_OWNER = """
    SELECT pg_has_role(pg_class.relowner, 'USAGE') FROM pg_class WHERE pg_class.oid = to_regclass('users')
"""
_SERVER = """
    SELECT pg_is_in_recovery(), current_setting('default_transaction_read_only')::boolean,
        current_setting('server_encoding')
"""
#: The schema is null if the search path names none that exists and that the role may use.
_SCHEMA = """
    SELECT current_user::text, quote_ident(current_schema()), has_schema_privilege(current_schema(), 'CREATE')
"""


#: Return a table of another application, as long as the database has none of ours.
_FOREIGN_TABLE = r"""
    SELECT relname::text FROM pg_class
    WHERE relnamespace = to_regnamespace(current_schema()) AND relkind IN ('r', 'p', 'v', 'm', 'f')
        AND relname !~ '^(_?yoyo|procrastinate)_'
        AND NOT EXISTS (SELECT FROM pg_depend WHERE pg_depend.objid = pg_class.oid AND pg_depend.deptype = 'e')
    ORDER BY relname LIMIT 1
"""


_IS_A_STANDBY = (
    "This PostgreSQL is a standby, which nobody can write to: name the primary in the setting database_url, or all"
    " servers with ?target_session_attrs=read-write"
)


@contextmanager
def unsuitable_database() -> Iterator[None]:
    """Convert errors that show that the database cannot be used to `UnsuitableDatabase`."""
    try:
        yield
    except Unavailable as problem:
        raise UnsuitableDatabase(f"PostgreSQL cannot be used: {problem.cause}") from None
    except psycopg2.errors.InsufficientPrivilege as problem:
        raise _lacks_rights(problem) from None
    except (psycopg2.OperationalError, psycopg2.ProgrammingError, UnicodeError) as problem:
        if isinstance(problem, psycopg2.ProgrammingError) and problem.pgcode is not None:
            raise  # a statement of ours is wrong, not the URL
        raise UnsuitableDatabase(
            f"PostgreSQL cannot be used, check the setting database_url: {_of_all_hosts(problem)}"
        ) from None


def _of_all_hosts(problem: Exception) -> str:
    """Return libpq's message for each host that it has tried, if it gives one line for each."""
    lines = [line.strip() for line in str(problem).splitlines()]
    attempts = [line for line in lines if line.startswith("connection to server")]
    return "; ".join(attempts) if len(attempts) > 1 else first_line(problem)


def migrate(url: str, serving_role: str | None = None) -> None:
    """Apply the missing migrations to the database at `url`, and grant `serving_role` the rights that it
    needs to serve.

    If nothing is missing, a role with read access suffices. Raise `UnsuitableDatabase` or psycopg2's errors.
    """
    with blocking_connection(url) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            _check_server(connection.server_version, cursor)
            if not _is_up_to_date(cursor):
                with _alone(url):
                    _bring_up_to_date(url, cursor)
            if serving_role is not None:
                grants = _file("grants.sql").read_text().replace("%", "%%")
                cursor.execute(  # one statement, and so one transaction
                    f"SELECT set_config('forgelet.serving_role', %s, true); {grants}", (serving_role,)
                )


@contextmanager
def _alone(url: str) -> Iterator[None]:
    """Hold the migration lock for the duration of the block. A transaction on a separate connection holds it:
    behind a PgBouncer that pools transactions, a session lock could pass to another client."""
    with blocking_connection(url) as connection:
        with connection.cursor() as cursor:
            cursor.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        yield


def check_notices(url: str) -> None:
    """Raise `UnsuitableDatabase` if PostgreSQL's notifications do not reach listeners at `url`."""
    with blocking_connection(url) as connection:
        if is_pooled(connection):
            raise UnsuitableDatabase(
                "Between this server and PostgreSQL there is a pooler, such as PgBouncer, through which nobody can"
                " listen: give the URL of PostgreSQL itself in the setting database_direct_url"
            )


def planned(url: str) -> list[str]:
    """Return the steps that `migrate` would take for the database at `url`, without changing anything. Raise
    the errors of `migrate`."""
    with blocking_connection(url) as connection:
        connection.set_session(readonly=True)  # applies to each transaction, not to the session
        with connection.cursor() as cursor:
            _check_server(connection.server_version, cursor)
            if not is_to_be_migrated(cursor):
                return []
            applied = set(_value(cursor, _APPLIED)) if _has_migrations(cursor) else set()
            steps = []
            if BEFORE_BASELINE in applied:
                steps.append("take over the schema of the last commit before version 1.0.0")
                applied = set(_BASELINE)
            steps += [f"apply {name}" for name in sorted(known_migrations() - applied)]
            if _value(cursor, "SELECT to_regclass('procrastinate_jobs')") is None:
                steps.insert(0, "make the tables of the queue")
            return [*steps, "replace the functions"]


def make_older_schema(url: str, migrations: Collection[str]) -> None:
    """Create the tables of a version that had these migrations in an empty database, for `migrate` to
    continue from."""
    with blocking_connection(url) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            _make_queue(cursor)
    _apply_migrations(url, migrations)


def known_migrations() -> set[str]:
    """Return the names of all migrations of this version."""
    return {file.name.removesuffix(".sql") for file in _file("migrations").iterdir()}


def is_to_be_migrated(cursor: Any) -> bool:
    """Return whether `migrate` would change the database; change nothing. Raise `UnsuitableDatabase` if it
    must not or apparently could not."""
    cursor.execute(_SCHEMA)
    role, schema, may_create = cursor.fetchone()
    if schema is None:
        raise UnsuitableDatabase(
            f"The role {role} may use no schema of its search_path: run `forgelet migrate --grant-to {role}` as the"
            " role that owns the tables, or name a schema that exists in search_path"
        )
    if _is_up_to_date(cursor):
        return False
    if not _has_migrations(cursor) and (table := _value(cursor, _FOREIGN_TABLE)):
        raise _of_another_application(table)
    if _value(cursor, _IS_OWNER) is False:
        raise _not_the_owner()
    if not may_create:
        raise UnsuitableDatabase(
            f"The role {role} may not create tables: run GRANT CREATE ON SCHEMA {schema} TO {role} as the owner of the"
            f" database, or `forgelet migrate --grant-to {role}` as a role that may create them"
        )
    return True


def _check_server(version: int, cursor: Any) -> None:
    if version < OLDEST_POSTGRESQL:
        raise UnsuitableDatabase(f"PostgreSQL 15 or newer is needed, this is {version // 10000}: upgrade it")
    cursor.execute(_SERVER)
    is_standby, is_read_only, encoding = cursor.fetchone()
    if is_standby:
        raise UnsuitableDatabase(_IS_A_STANDBY)
    if is_read_only:
        raise UnsuitableDatabase(
            "The database is read-only: set default_transaction_read_only to off for the database and its role"
        )
    if encoding != "UTF8":
        raise UnsuitableDatabase(
            f"The database's encoding is {encoding}, texts need UTF8: make a database with ENCODING 'UTF8'"
        )


def _is_up_to_date(cursor: Any) -> bool:
    if not _has_migrations(cursor):
        return False
    known_ids = known_migrations()
    applied = set(_value(cursor, _APPLIED))
    if BEFORE_BASELINE in applied:
        if _value(cursor, _NAMES_AND_COLUMNS) == _ALL_BEFORE_BASELINE:
            return False
        raise UnsuitableDatabase(
            "The database is of a commit before version 1.0.0, and not of the last one, which this version takes over:"
            f" run the commit whose migrations end with {_LAST_BEFORE_BASELINE} on it first, or use an empty database"
        )
    if not applied & known_ids:
        raise _of_another_application("_yoyo_migration")
    if newer := sorted(applied - known_ids):
        raise UnsuitableDatabase(
            f"The database is newer than this program, it has {newer[-1]}: run the version that it is of"
        )
    return known_ids <= applied and _value(cursor, _FUNCTIONS) == _functions_digest()


def _bring_up_to_date(url: str, cursor: Any) -> None:
    if not is_to_be_migrated(cursor):  # another process may have done it
        return
    try:
        _make_queue(cursor)
        if _has_migrations(cursor) and BEFORE_BASELINE in _value(cursor, _APPLIED):
            cursor.execute(_TAKE_OVER, (_BASELINE,))
        _apply_migrations(url, known_migrations())
        for name in _FUNCTION_FILES:
            cursor.execute(_file(name).read_text())
        cursor.execute(_REMEMBER_FUNCTIONS, (_functions_digest(),))
    except psycopg2.errors.InsufficientPrivilege as problem:
        raise _lacks_rights(problem) from None


def _make_queue(cursor: Any) -> None:
    from procrastinate.schema import SchemaManager  # this imports psycopg 3

    if _value(cursor, "SELECT to_regclass('procrastinate_jobs')") is None:
        cursor.execute(SchemaManager.get_schema().replace("%", "%%"), ())


def _apply_migrations(url: str, ids: Collection[str]) -> None:
    import yoyo  # not needed for a database that is up to date
    from yoyo.backends.core.postgresql import PostgresqlBackend
    from yoyo.connections import DatabaseURI
    from yoyo.migrations import default_migration_table

    logging.getLogger("yoyo.migrations").addFilter(_is_a_migration)
    known = parse_dsn(url)  # yoyo itself would not decode the database's name, nor understand several hosts
    uri = DatabaseURI("postgresql", None, None, None, None, known.pop("dbname", None), known)
    backend = PostgresqlBackend(uri, default_migration_table)
    backend.init_database()
    with resources.as_file(_file("migrations")) as folder:
        migrations = yoyo.read_migrations(str(folder)).filter(lambda migration: migration.id in ids)
        try:
            backend.apply_migrations(backend.to_apply(migrations))
        finally:
            backend.connection.close()


def _is_a_migration(record: logging.LogRecord) -> bool:
    """Return whether a record is about a whole migration, or a problem: yoyo also logs each of their 300 steps."""
    return record.levelno > logging.INFO or str(record.msg).startswith("Applying")


def _has_migrations(cursor: Any) -> bool:
    return _value(cursor, "SELECT to_regclass('_yoyo_migration')") is not None and bool(
        _value(cursor, _APPLIED)
    )


def _of_another_application(table: str) -> UnsuitableDatabase:
    return UnsuitableDatabase(
        f"The database has tables of another application ({table}): give this service a database of its own"
    )


def _lacks_rights(problem: psycopg2.Error) -> UnsuitableDatabase:
    return UnsuitableDatabase(
        f"The role of the setting database_url lacks rights ({first_line(problem)}): run"
        " `forgelet migrate --grant-to ROLE` as the role that owns the tables"
    )


def _not_the_owner() -> UnsuitableDatabase:
    return UnsuitableDatabase(
        "The database is not of this version's schema, and its role may not change it:"
        " run `forgelet migrate` as the role that owns the tables"
    )


def _functions_digest() -> str:
    return hashlib.sha256(b"".join(_file(name).read_bytes() for name in _FUNCTION_FILES)).hexdigest()


def _file(name: str) -> Traversable:
    return resources.files("api_server.state").joinpath(name)


def _value(cursor: Any, statement: str) -> Any:
    cursor.execute(statement)
    row = cursor.fetchone()
    return row[0] if row else None


#: Milliseconds that one statement may take.
_INSPECTION_TIMEOUT = 5000

_INSPECTED_FACTS = """
    SELECT current_database(), current_user::text, pg_encoding_to_char(encoding),
        current_setting('server_version_num')::integer, current_setting('server_version'),
        pg_is_in_recovery() OR (SELECT boot.reset_val = 'on' FROM pg_settings boot
            WHERE boot.name = 'default_transaction_read_only'),
        current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
        least(nullif(datconnlimit, -1), nullif(rolconnlimit, -1))
    FROM pg_database, pg_roles WHERE datname = current_database() AND rolname = current_user
"""
#: The only statement that asks for the real time, to compare it with this machine's.
CLOCK = "SELECT clock_timestamp()"
#: Return the rights that grants.sql gives to a serving role and that this role lacks.
_LACKING_RIGHTS = r"""
    SELECT format('%s on %s', privilege, relname) FROM pg_class, unnest(string_to_array(CASE
        WHEN relkind = 'S' THEN 'USAGE'
        WHEN relname = 'audit_events' THEN 'SELECT,INSERT'
        WHEN relname LIKE ANY ('{audit\_%%,%%yoyo\_%%}') THEN 'SELECT'
        ELSE 'SELECT,INSERT,UPDATE,DELETE' END, ',')) privilege
    WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'S') AND NOT relispartition
        AND NOT CASE WHEN relkind = 'S' THEN has_sequence_privilege(pg_class.oid, privilege)
            ELSE has_table_privilege(pg_class.oid, privilege) END
    ORDER BY relname, privilege LIMIT 3
"""


@attrs.frozen(kw_only=True)
class Inspected:
    """The result of inspecting a database; `clock_ahead` is in seconds, `connections` is how many this role
    may have.

    `schema` says why the schema cannot be used as it is, `to_migrate` whether the next start changes it.
    `lacking` names some rights that the role lacks. `key` says what is wrong with the secret key, and
    `has_key` whether there is one.
    """

    database: str
    role: str
    encoding: str
    version: int
    version_text: str
    read_only: bool
    connections: int
    clock_ahead: float
    schema: str | None = None
    to_migrate: bool = False
    lacking: list[str] = attrs.field(factory=list)
    key: str | None = None
    has_key: bool = True

    @property
    def serves(self) -> bool:
        """Whether this version can read the tables of the database, secrets included."""
        new = self.version >= OLDEST_POSTGRESQL
        return new and not (self.schema or self.to_migrate or self.lacking or self.key)


def inspect(url: str, data_dir: Path, *, connect_timeout: int) -> Inspected:
    """Inspect the database at `url`. Raise `ConfigError` if it cannot be asked at all."""
    with (
        unsuitable_database(),
        closing(psycopg2.connect(url, connect_timeout=connect_timeout)) as connection,
    ):
        connection.set_session(readonly=True, autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, false)", (str(_INSPECTION_TIMEOUT),))
            inspected = _inspect_server(cursor)
            return (
                inspected
                if inspected.version < OLDEST_POSTGRESQL
                else _inspect_schema(cursor, inspected, data_dir)
            )


def _inspect_server(cursor: Any) -> Inspected:
    cursor.execute(_INSPECTED_FACTS)
    database, role, encoding, version, text, read_only, max_connections, limit = cursor.fetchone()
    before = system_clock()
    cursor.execute(CLOCK)
    (clock,) = cursor.fetchone()
    middle = before + (system_clock() - before) / 2
    return Inspected(
        database=database,
        role=role,
        encoding=encoding,
        version=version,
        version_text=text,
        read_only=read_only,
        connections=max_connections if limit is None else min(max_connections, limit),
        clock_ahead=(clock - middle).total_seconds(),
    )


def _inspect_schema(cursor: Any, inspected: Inspected, data_dir: Path) -> Inspected:
    try:
        to_migrate = is_to_be_migrated(cursor)
    except ConfigError as error:
        return attrs.evolve(inspected, schema=error.message, has_key=False)
    inspected = attrs.evolve(inspected, to_migrate=to_migrate)
    if to_migrate:
        return inspected
    cursor.execute(_LACKING_RIGHTS)
    lacking = [name for (name,) in cursor.fetchall()]
    if lacking:
        return attrs.evolve(inspected, lacking=lacking)
    try:
        return attrs.evolve(inspected, has_key=secrets.check_key(cursor, data_dir))
    except ConfigError as error:
        return attrs.evolve(inspected, key=error.message)
