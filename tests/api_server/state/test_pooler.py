"""Behind a PgBouncer that pools transactions, settings of a session are made in each transaction."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import psycopg2
import pytest

from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.ci.runners.pending_jobs import CHANNEL
from api_server.state.database import Database, connect
from api_server.state.errors import Unavailable, UnsuitableDatabase
from api_server.state.migrate import check_notices
from api_server.state.statements import Statement
from api_server.web.context import SERVICES
from tests.support import pgbouncer
from tests.support.forge import Forge, new_name, running_forge

pytestmark = pytest.mark.skipif(not pgbouncer.program(), reason="PgBouncer is not installed")

URL = Statement("SELECT web_url(%(path)s::text)")
#: PgBouncer with its defaults; ignoring unknown parameters, as is common; with one session for all.
KINDS = {
    "as it comes": {},
    "overlooking": {"ignore_startup_parameters": "extra_float_digits,options"},
    "one session": {"default_pool_size": 1},
}


@pytest.fixture(params=KINDS)
def direct_and_pooled(
    request: pytest.FixtureRequest, new_database: Callable[[], str]
) -> Iterator[tuple[str, str]]:
    direct = new_database()
    with pgbouncer.running(direct, **KINDS[request.param]) as pooled:
        yield direct, pooled


@pytest.fixture
async def two(direct_and_pooled: tuple[str, str]) -> AsyncIterator[tuple[Database, Database]]:
    """Databases of two services with different addresses and timeouts that share sessions."""
    _, url = direct_and_pooled
    one = connect(url, base_url="https://one.example.org/50%25 of it's", size=2)
    async with (
        one as first,
        connect(url, base_url="https://two.example.org", statement_timeout=1.0) as second,
    ):
        yield first, second


async def test_each_has_its_own_settings(two: tuple[Database, Database]) -> None:
    for _ in range(2):
        assert await two[0].value(URL, path="a") == "https://one.example.org/50%25 of it's/a"
        assert await two[1].value(URL, path="b") == "https://two.example.org/b"
    async with two[0].transaction() as transaction:
        assert await transaction.value(URL, path="a") == "https://one.example.org/50%25 of it's/a"
        assert await transaction.value("SHOW timezone") == "UTC"
        assert await transaction.value("SHOW lock_timeout") == "5s"


async def test_each_has_its_own_timeout(two: tuple[Database, Database]) -> None:
    with pytest.raises(Unavailable):
        await two[1].value("SELECT pg_sleep(20)")
    assert await two[0].value("SELECT 1 FROM pg_sleep(1.5)") == 1


def test_nobody_can_listen_through_it(direct_and_pooled: tuple[str, str]) -> None:
    direct, pooled = direct_and_pooled
    check_notices(direct)
    with pytest.raises(
        UnsuitableDatabase, match=r"give the URL of PostgreSQL itself in the setting database_direct_url$"
    ):
        check_notices(pooled)


async def test_a_service_works_and_hears_by_the_direct_way(
    direct_and_pooled: tuple[str, str], tmp_path: Path
) -> None:
    direct, pooled = direct_and_pooled
    async with running_forge(pooled, tmp_path, database_direct_url=direct) as forge:
        await _works(forge)
        pending = forge.server.app[SERVICES][PENDING_JOBS]
        before = pending.generation
        with contextlib.closing(psycopg2.connect(direct)) as other, other, other.cursor() as cursor:
            cursor.execute(f"NOTIFY {CHANNEL}")
        async with asyncio.timeout(30):
            while pending.generation == before:
                await asyncio.sleep(0.01)


async def _works(forge: Forge) -> None:
    name = new_name("project")
    made = await forge.root.post("/projects", json={"name": name, "initialize_with_readme": True})
    assert (made.status, made.body["name"]) == (201, name)
    shown = await forge.root.get(f"/projects/{made.body['id']}/repository/commits")
    assert (shown.status, len(shown.body)) == (200, 1)
    listed = await forge.root.get(f"/projects?search={name}")
    assert [one["web_url"] for one in listed.body] == [made.body["web_url"]]
