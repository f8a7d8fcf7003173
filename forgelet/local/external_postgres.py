"""A PostgreSQL that is not ours, which `--database-url` names."""

import contextlib
import os

from common.mistakes import first_line
from forgelet.local import postgres_binaries
from forgelet.local.processes import CannotStart


def check_external(url: str) -> None:
    """Refuses a server that cannot be reached or is older than PostgreSQL 15."""
    import psycopg2  # which PostgreSQL of our own does without for longer

    try:
        with contextlib.closing(psycopg2.connect(url, connect_timeout=10)) as connection:
            major = connection.server_version // 10000
    except (psycopg2.Error, UnicodeError) as problem:
        raise CannotStart(f"The PostgreSQL of --database-url cannot be used: {first_line(problem)}") from None
    if major < postgres_binaries.OLDEST_MAJOR:
        oldest = postgres_binaries.OLDEST_MAJOR
        raise CannotStart(f"--database-url names PostgreSQL {major}; {oldest} or newer is needed")


def forget_variables() -> None:
    """Takes libpq's variables (`PGOPTIONS`, `PGSERVICE`) from this process and those that it starts: they are said of
    other servers than ours."""
    for name in [name for name in os.environ if name.startswith("PG")]:
        del os.environ[name]
