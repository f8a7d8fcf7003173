"""What tests of the audit trail share: recording events directly, as changes do."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Database, connect
from tests.support.clock import MovedClock
from tests.support.forge import Forge, Person

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
    """A database, and the clock by which it is used."""
    clock = MovedClock()
    async with connect(database_url, base_url="http://forge.example.org", clock=clock) as connected:
        yield connected, clock


@pytest.fixture
def record(forge: Forge) -> RecordEvent:
    """`await record("group_created", entity, person, **more)` gives the new event's id."""

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
