"""Brings a database to the schema of this version: the plain SQL files in `migrations/`, then `functions.sql`."""

from contextlib import closing
from importlib import resources

import psycopg2
import yoyo
from procrastinate.schema import SchemaManager

#: One process migrates at a time; a killed one holds no lock.
_LOCK = 0x666F726765
OLDEST_POSTGRESQL = 150000


class UnsuitableDatabase(Exception):
    """A PostgreSQL that cannot be used; the text says what to do."""


def migrate(url: str) -> None:
    """Applies what is missing to the database at `url`. Raises `UnsuitableDatabase`, or psycopg2's errors."""
    with closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        if connection.server_version < OLDEST_POSTGRESQL:
            version = connection.server_version // 10000
            raise UnsuitableDatabase(f"PostgreSQL 15 or newer is needed, this is {version}: upgrade it")
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
            cursor.execute("SELECT to_regclass('procrastinate_jobs') IS NULL")
            if cursor.fetchone() == (True,):
                cursor.execute(SchemaManager.get_schema().replace("%", "%%"), ())
            _apply_migrations(url)
            cursor.execute(resources.files("api_server.state").joinpath("functions.sql").read_text())


def _apply_migrations(url: str) -> None:
    backend = yoyo.get_backend(url)
    with resources.as_file(resources.files("api_server.state").joinpath("migrations")) as folder:
        migrations = yoyo.read_migrations(str(folder))
        try:
            backend.apply_migrations(backend.to_apply(migrations))
        finally:
            backend.connection.close()
