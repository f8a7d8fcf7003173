"""Functions that record, read and break an audit trail directly, and that run operators' commands."""

import contextlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from click.testing import CliRunner

from api_server.state import audit_trail
from api_server.state.audit_trail import SYSTEM, Author, Entity
from api_server.state.database import Database, connect
from forgelet.command_line import forgelet
from tests.support.clock import MovedClock
from tests.support.forge import Forge, Person

GROUP = Entity("Group", 1, "some/group")


async def new_group(forge: Forge, **values: Any) -> tuple[dict[str, Any], Entity]:
    """Create a group; return it with the entity of its events."""
    made = await forge.group(**values)
    return made, Entity("Group", made["id"], made["full_path"])


PARTITIONS = """
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
    WHERE inhparent = 'audit_events'::regclass ORDER BY relname
"""


async def partitions(database: Database) -> list[str]:
    return [row.relname for row in await database.rows(PARTITIONS)]


#: Creates a partition for October 2021, as if the service had run then.
MAKE_OLD_MONTH = """
    ALTER TABLE audit_events DETACH PARTITION audit_events_past;
    DROP TABLE audit_events_past;
    SELECT make_audit_partition('audit_events_past', NULL, '2021-10-01');
    SELECT make_audit_partition('audit_events_2021_10', '2021-10-01', '2021-11-01')
"""


async def record_events(database: Database, *names: str, fails: bool = False) -> None:
    """Record a group_created event for each of `names` in one transaction, which `fails` rolls back."""
    with contextlib.suppress(ZeroDivisionError):
        async with database.transaction() as transaction:
            for name in names:
                await audit_trail.record(transaction, "group_created", SYSTEM, GROUP.target(1, name))
            if fails:
                raise ZeroDivisionError


@contextlib.contextmanager
def without_triggers(url: str) -> Iterator[Any]:
    """Yield a cursor of the tables' owner while no trigger refuses or chains anything."""
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:
            for do in ("DISABLE", "ENABLE"):
                cursor.execute(
                    f"ALTER TABLE audit_events {do} TRIGGER USER; ALTER TABLE audit_chain {do} TRIGGER USER"
                )
                if do == "DISABLE":
                    yield cursor


def run_command(url: str, *arguments: str, data_dir: Path | None = None, **options: Any) -> Any:
    """Run an operator's command; without `data_dir`, no head of the chain is stored."""
    with tempfile.TemporaryDirectory() as empty:
        environment = {"FORGELET_API_DATABASE_URL": url, "FORGELET_API_DATA_DIR": str(data_dir or empty)}
        return CliRunner().invoke(forgelet, ["audit", *arguments], env=environment, **options)


NEWEST = """
    SELECT max(id) FROM audit_events WHERE entity_type = %(entity_type)s AND entity_id = %(entity_id)s
"""
RecordEvent = Callable[..., Awaitable[int]]


def author_of(person: Person | None) -> Author:
    if person is None:
        return Author(id=-1, name="(System)")
    return Author(id=person.id, name=person.username.title(), email=person.email, ip_address="192.0.2.7")


@pytest.fixture
def database_url(new_database: Callable[[], str]) -> str:
    return new_database()


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    async with connect(database_url, base_url="http://forge.example.org") as connected:
        yield connected


@pytest.fixture
async def clocked(database_url: str) -> AsyncIterator[tuple[Database, MovedClock]]:
    """A database with a clock that the test moves."""
    clock = MovedClock()
    async with connect(database_url, base_url="http://forge.example.org", clock=clock) as connected:
        yield connected, clock


@pytest.fixture
def record(forge: Forge) -> RecordEvent:
    """A function that records an event: `await record("group_created", entity, person, **more)` returns its id."""

    async def recorded(
        event_type: str,
        entity: Entity,
        person: Person | None = None,
        on: Forge = forge,
        *,
        target_id: int = 7,
        target_details: str = "some/group",
        message: str = "Added group",
        **values: Any,
    ) -> int:
        target = entity.target(target_id, target_details)
        async with on.database.transaction() as transaction:
            await audit_trail.record(transaction, event_type, author_of(person), target, message, **values)
        return int(await on.database.value(NEWEST, entity_type=entity.type, entity_id=entity.id))

    return recorded
