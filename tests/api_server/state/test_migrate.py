"""Bringing a database up to date: interrupted anywhere, the next start goes on; and two may start at once."""

import threading
from collections.abc import Callable, Iterator

import psycopg2
import pytest

from api_server.state.migrate import migrate, planned
from forgelet.local.embedded_postgres import Cluster
from tests.support import pgbouncer
from tests.support.database_roles import as_role
from tests.support.forge import new_name

#: Fails, as on a full disk, where this table is made or this function.
FULL_DISK = """
    CREATE FUNCTION full_disk() RETURNS event_trigger LANGUAGE plpgsql AS $$ BEGIN
        IF EXISTS (SELECT FROM pg_event_trigger_ddl_commands() WHERE object_identity LIKE '%{}%') THEN
            RAISE EXCEPTION 'No space left on device' USING ERRCODE = 'disk_full';
        END IF;
    END $$;
    CREATE EVENT TRIGGER full_disk ON ddl_command_end EXECUTE FUNCTION full_disk()
"""
SCHEMA = """
    SELECT string_agg(table_name || '.' || column_name || ' ' || data_type, ', ' ORDER BY table_name, column_name)
    FROM information_schema.columns WHERE table_schema = 'public' AND table_name !~ '^audit_events_'
"""


@pytest.fixture
def empty(postgres: Cluster) -> Iterator[tuple[str, str]]:
    """URLs of a database with nothing in it: as its owner, and as the superuser."""
    name = new_name("empty").replace("-", "_")
    with as_role(postgres.url()) as owner:
        owner.execute(f"CREATE DATABASE {name}")
    yield postgres.url(name), postgres.url(name, "postgres")
    with as_role(postgres.url()) as owner:
        owner.execute(f"DROP DATABASE {name} WITH (FORCE)")


def _schema(url: str) -> str:
    with as_role(url) as cursor:
        cursor.execute(SCHEMA)
        return str(cursor.fetchone()[0])


@pytest.mark.parametrize("made", ["_yoyo_version", "merge_requests"])
def test_after_an_interruption_the_next_start_goes_on(
    empty: tuple[str, str], new_database: Callable[[], str], made: str
) -> None:
    url, superuser_url = empty
    with as_role(superuser_url) as superuser:
        superuser.execute(FULL_DISK.format(made))
        with pytest.raises(psycopg2.errors.DiskFull):
            migrate(url)
        superuser.execute("DROP EVENT TRIGGER full_disk; DROP FUNCTION full_disk()")
    migrate(url)
    assert _schema(url) == _schema(new_database())


@pytest.fixture(params=["directly", "pooled"])
def way(request: pytest.FixtureRequest, empty: tuple[str, str]) -> Iterator[str]:
    """URLs of an empty database: its own, and through a PgBouncer that pools transactions."""
    if request.param == "directly":
        yield empty[0]
        return
    if not pgbouncer.program():
        pytest.skip("PgBouncer is not installed")
    with pgbouncer.running(empty[0]) as url:
        yield url


def test_those_that_start_at_once_migrate_once(
    way: str, empty: tuple[str, str], new_database: Callable[[], str]
) -> None:
    url, problems = way, []

    def start() -> None:
        try:
            migrate(url)
        except Exception as problem:
            problems.append(problem)

    threads = [threading.Thread(target=start) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    assert _schema(empty[0]) == _schema(new_database())


def test_looking_at_what_is_to_be_done_leaves_sessions_as_they_were(way: str) -> None:
    """A pooler gives them to others."""
    assert planned(way)
    with as_role(way) as cursor:
        cursor.execute("CREATE TABLE made_afterwards ()")
