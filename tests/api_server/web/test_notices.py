"""What one process changes of rights, all others know before they would have forgotten what they remember."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from api_server.state import database
from api_server.state.driver import listening_connection
from api_server.web.context import RIGHTS_CHANNEL, SERVICES
from tests.support.forge import Forge, running_forge

CUT = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND query = 'LISTEN rights_changed'
"""
END = f"SELECT pg_notify('{RIGHTS_CHANNEL}', 'end')"
#: What is remembered is remembered for this long in these tests: it is the notices that make it go.
LONG = 300.0


@pytest.fixture
def long_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(database, "REMEMBERED_FOR", LONG)


@pytest.fixture(scope="module")
async def quiet(
    new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Forge]:
    async with running_forge(new_database(), tmp_path_factory.mktemp("quiet"), work=False) as forge:
        yield forge


@pytest.mark.usefixtures("long_memory")
async def test_a_token_that_one_process_revokes_is_refused_by_the_other(
    new_forge: Any, new_database: Any, tmp_path: Path
) -> None:
    shared = {"database_url": new_database(), "data_dir": tmp_path, "work": False}
    async with new_forge(**shared) as one, new_forge(**shared) as other, asyncio.timeout(30):
        alice = await one.user("alice")
        there = attrs.evolve(alice.api, base=other.base)
        assert (await there.get("/user")).status == 200
        token = await one.database.value(
            "SELECT id FROM personal_access_tokens WHERE user_id = %(id)s", id=alice.id
        )
        assert (await one.root.delete(f"/personal_access_tokens/{token}")).status == 204
        while (await there.get("/user")).status == 200:
            await asyncio.sleep(0.01)
        assert (await there.get("/user")).status == 401


async def test_what_happened_while_nobody_listened_counts(quiet: Forge) -> None:
    async with asyncio.timeout(30):
        alice = await quiet.user("alice")
        assert (await alice.api.get("/user")).status == 200
        before = quiet.database.generation
        while not await quiet.database.value(CUT):
            await asyncio.sleep(0.01)
        while quiet.database.generation == before:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(
    ("change", "tells"),
    [
        ("UPDATE users SET state = 'blocked' WHERE id <> 1", True),
        ("UPDATE users SET last_activity_on = now()", False),
        ("UPDATE personal_access_tokens SET revoked = true WHERE user_id <> 1", True),
        ("UPDATE personal_access_tokens SET last_used_at = now()", False),
        ("UPDATE application_settings SET values = '{}'", True),
        ("UPDATE namespaces SET visibility = 'private'", True),
        ("UPDATE projects SET archived = NOT archived", True),
        ("UPDATE projects SET last_activity_at = now()", False),
        ("DELETE FROM members", True),
        ("DELETE FROM projects", True),
    ],
)
async def test_who_writes_does_not_matter_but_what(quiet: Forge, change: str, *, tells: bool) -> None:
    alice = await quiet.user("alice")
    assert (await alice.api.post("/projects", {"name": "app"})).status == 201
    url = quiet.server.app[SERVICES].settings.unpooled_url
    async with listening_connection(url, RIGHTS_CHANNEL) as connection:
        for statement in (change, END):
            async with quiet.database.transaction() as transaction:
                assert await transaction.run(statement)
        heard = [await asyncio.wait_for(connection.notification(), 20)]
        while heard[-1].payload != "end":
            heard.append(await asyncio.wait_for(connection.notification(), 20))
        assert (len(heard) > 1) == tells
