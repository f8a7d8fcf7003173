"""Looks at a database without changing anything in it: whether this program, with this role, can serve from it."""

from contextlib import closing
from pathlib import Path
from typing import Any

import attrs
import psycopg2

from api_server.state import migrate, secret_key
from api_server.state.database import system_clock
from common.mistakes import Mistake

#: Milliseconds that one statement may take.
_STATEMENT_TIMEOUT = 5000

_FACTS = """
    SELECT current_database(), current_user::text, pg_encoding_to_char(encoding),
        current_setting('server_version_num')::integer, current_setting('server_version'),
        pg_is_in_recovery() OR (SELECT boot.reset_val = 'on' FROM pg_settings boot
            WHERE boot.name = 'default_transaction_read_only'),
        current_setting('max_connections')::integer - current_setting('superuser_reserved_connections')::integer,
        least(nullif(datconnlimit, -1), nullif(rolconnlimit, -1))
    FROM pg_database, pg_roles WHERE datname = current_database() AND rolname = current_user
"""
#: The only one that asks for it: to compare it with this machine's.
CLOCK = "SELECT clock_timestamp()"
#: What grants.sql gives to a role that serves, and this one does not have.
_LACKING = r"""
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
    """What there is to know of a database; `clock_ahead` is in seconds, `connections` how many this role may have.

    `schema` says why it cannot be used as it is, `to_migrate` whether the next start changes its schema, `lacking` some
    rights that the role does not have, and `key` what is wrong with the secret key, which `has_key`.
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
        """Whether its tables can be read as this version's, secrets included."""
        new = self.version >= migrate.OLDEST_POSTGRESQL
        return new and not (self.schema or self.to_migrate or self.lacking or self.key)


def inspect(url: str, data_dir: Path, *, connect_timeout: int) -> Inspected:
    """Raises `Mistake` where the database cannot be asked at all."""
    with (
        migrate.unsuitable_database(),
        closing(psycopg2.connect(url, connect_timeout=connect_timeout)) as connection,
    ):
        connection.set_session(readonly=True, autocommit=True)
        with connection.cursor() as cursor:
            cursor.execute("SELECT set_config('statement_timeout', %s, false)", (str(_STATEMENT_TIMEOUT),))
            found = _facts(cursor)
            return found if found.version < migrate.OLDEST_POSTGRESQL else _schema(cursor, found, data_dir)


def _facts(cursor: Any) -> Inspected:
    cursor.execute(_FACTS)
    database, role, encoding, version, text, read_only, most, limit = cursor.fetchone()
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
        connections=most if limit is None else min(most, limit),
        clock_ahead=(clock - middle).total_seconds(),
    )


def _schema(cursor: Any, found: Inspected, data_dir: Path) -> Inspected:
    try:
        to_migrate = migrate.is_to_be_migrated(cursor)
    except Mistake as mistake:
        return attrs.evolve(found, schema=mistake.message, has_key=False)
    found = attrs.evolve(found, to_migrate=to_migrate)
    if to_migrate:
        return found
    cursor.execute(_LACKING)
    lacking = [name for (name,) in cursor.fetchall()]
    if lacking:
        return attrs.evolve(found, lacking=lacking)
    try:
        return attrs.evolve(found, has_key=secret_key.check(cursor, data_dir))
    except Mistake as mistake:
        return attrs.evolve(found, key=mistake.message)
