"""A streaming replica answers reads, as fresh as the primary; one that cannot is skipped."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from api_server.state import connections, listing
from api_server.state.connections import Replica
from api_server.state.database import Database, connect
from forgelet.local import embedded_postgres
from tests.support import standbys
from tests.support.forge import running_forge
from tests.support.standbys import Standby
from tests.support.waiting import until

pytestmark = [
    pytest.mark.skipif(not standbys.program(), reason="pg_basebackup is not installed"),
]

WORDS = listing.ListQuery(
    "SELECT position, id, to_json(word) AS entity FROM page", "SELECT id, word FROM kept"
)
COUNT = listing.entity_statement(
    "SELECT 1 AS id, to_json(count) AS entity FROM page", "SELECT count(*) FROM kept"
)


@pytest.fixture(scope="module")
def standby(postgres: embedded_postgres.Cluster) -> Iterator[Standby]:
    with standbys.standby_of(postgres) as running:
        yield running


@pytest.fixture
def urls(new_database: Callable[[], str], standby: Standby) -> tuple[str, str]:
    """The URLs of one database at the primary and at the standby; commits wait for the disk."""
    url = new_database()
    name = urlsplit(url).path[1:]
    standbys.run(url, f"ALTER DATABASE {name} SET synchronous_commit = 'on'")
    standbys.until(
        lambda: standby.run(f"SELECT count(*) FROM pg_database WHERE datname = '{name}'") == 1, "a database"
    )
    return url, standby.url(name, "forgelet")


@pytest.fixture
async def database(urls: tuple[str, str]) -> AsyncIterator[Database]:
    async with connect(urls[0], base_url="x", size=2, replica_urls=urls[1]) as connected:
        async with connected.transaction() as transaction:
            await transaction.run("CREATE TABLE kept (id bigserial PRIMARY KEY, word text)")
        await ready(connected)
        yield connected


def the_one(database: Database) -> Replica:
    assert database.replicas is not None
    return database.replicas.all[0]


async def ready(database: Database, *, wanted: bool = True) -> None:
    await until(lambda: the_one(database).is_ready is wanted, standbys.SECONDS)


async def add(database: Database, word: str) -> None:
    async with database.transaction() as transaction:
        await transaction.run("INSERT INTO kept (word) VALUES (%(word)s)", word=word)


async def count(database: Database) -> int:
    return int(await database.showing().entity(COUNT))


async def until_it_is_read(database: Database, *, expected: int) -> None:
    before = the_one(database).reads
    async with asyncio.timeout(standbys.SECONDS):
        while the_one(database).reads == before:
            assert await count(database) == expected


async def test_what_is_shown_comes_from_it_and_nothing_else(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CATCH_UP_SECONDS", standbys.SECONDS)
    await add(database, "first")
    assert await count(database) == 1
    listed = await WORDS.read(database.showing(), listing.Page())
    assert (listed.body, listed.total) == ('["first"]', 1)
    assert the_one(database).reads == 2
    assert await database.entity(COUNT) == "1"
    async with database.transaction() as transaction:
        assert await transaction.entity(COUNT) == "1"
    assert await database.showing().value("SELECT pg_is_in_recovery()") is False
    assert the_one(database).reads == 2


async def test_whatever_was_written_is_seen(database: Database, urls: tuple[str, str]) -> None:
    """One of two processes has written a moment ago, and both see it."""
    async with connect(urls[0], base_url="y", size=2) as other:
        for number in range(100):
            await add((database, other)[number % 2], "word")
            assert await count(database) == number + 1
    assert the_one(database).reads > 0


async def test_one_that_is_behind_is_let_alone_until_it_has_caught_up(
    database: Database, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "REST_SECONDS", 0.05)
    standby.run("SELECT pg_wal_replay_pause()")
    try:
        standbys.until(lambda: standby.run("SELECT pg_get_wal_replay_pause_state()") == "paused", "a pause")
        await add(database, "late")
        before = the_one(database).reads
        assert await count(database) == 1
        assert the_one(database).reads == before
    finally:
        standby.run("SELECT pg_wal_replay_resume()")
    await until_it_is_read(database, expected=1)


async def test_one_that_is_gone_comes_back_by_itself(database: Database, standby: Standby) -> None:
    await add(database, "here")
    standby.stop()
    try:
        assert await count(database) == 1
        await ready(database, wanted=False)
        assert await count(database) == 1
    finally:
        standby.start()
    await ready(database)
    await until_it_is_read(database, expected=1)


async def test_one_that_answers_nothing_is_passed_over(database: Database, standby: Standby) -> None:
    await add(database, "here")
    standby.pause()
    try:
        async with asyncio.timeout(20):
            assert await count(database) == 1
        await ready(database, wanted=False)
    finally:
        standby.pause(stopped=False)
    await ready(database)


async def test_another_database_and_the_primary_itself_are_no_replicas(
    urls: tuple[str, str], new_database: Callable[[], str]
) -> None:
    for wrong, why in ((new_database(), "another database"), (urls[0], "does not follow")):
        async with connect(urls[0], base_url="x", size=2, replica_urls=wrong) as database:
            async with asyncio.timeout(standbys.SECONDS):
                while why not in the_one(database)._logged_reason:
                    await asyncio.sleep(0.02)
            assert not the_one(database).is_ready


async def test_a_service_shows_by_it_what_it_has_written(urls: tuple[str, str], tmp_path: Path) -> None:
    async with running_forge(urls[0], tmp_path, database_replica_urls=urls[1]) as forge:
        await ready(forge.database)
        project = await forge.project()
        for number in range(20):
            made = await forge.root.post(
                f"/projects/{project['id']}/variables", json={"key": f"KEY_{number}", "value": "x"}
            )
            assert made.status == 201
            shown = await forge.root.get(f"/projects/{project['id']}/variables?per_page=100")
            assert len(shown.body) == number + 1
            one = await forge.root.get(f"/projects/{project['id']}/variables/KEY_{number}")
            assert one.body == made.body
        gone = await forge.root.delete(f"/projects/{project['id']}/variables/KEY_0")
        assert gone.status == 204
        assert (await forge.root.get(f"/projects/{project['id']}/variables/KEY_0")).status == 404
        assert the_one(forge.database).reads > 0
