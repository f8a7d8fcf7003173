"""Two servers with a database that has a synchronous standby: acknowledged data still exists when the primary is
lost."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import attrs
import pytest

from forgelet.local import embedded_postgres
from tests.support import standbys
from tests.support.server_process import ServerProcess, server_process
from tests.support.standbys import Standby

pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.skipif(not standbys.program(), reason="pg_basebackup is not installed"),
]
#: Number of writes of each server, before and after.
MANY = 15


@attrs.frozen
class Place:
    """Two servers, each of which has the hosts of the primary and the standby."""

    primary: embedded_postgres.Cluster
    standby: Standby
    servers: tuple[ServerProcess, ServerProcess]
    variables: str


@contextlib.asynccontextmanager
async def replicated(folder: Path, **settings: object) -> AsyncIterator[Place]:
    with embedded_postgres.temporary_cluster() as primary, standbys.standby_of(primary) as standby:
        standbys.have_commits_wait(primary)
        url = standbys.several_hosts(primary.url(), standby.url("forgelet", "forgelet"))
        async with (
            server_process(url, folder / "data", **settings) as one,
            server_process(url, folder / "data", **settings) as other,
        ):
            made = await one.root.post("/projects", {"name": "kept"})
            yield Place(primary, standby, (one, other), f"/projects/{made.body['id']}/variables")


async def keys(server: ServerProcess, variables: str) -> set[str]:
    """Return the keys of all shown variables."""
    shown: set[str] = set()
    for page in range(1, 1000):
        answer = await server.root.get(f"{variables}?per_page=100&page={page}")
        assert answer.status == 200, answer
        if not answer.body:
            break
        shown |= {one["key"] for one in answer.body}
    return shown


async def test_what_was_acknowledged_is_there_and_both_go_on_by_themselves(tmp_path: Path) -> None:
    async with replicated(tmp_path, database_connect_timeout=4) as place:
        acknowledged: list[set[str]] = [set(), set()]
        lost = asyncio.Event()
        after = [0, 0]

        async def write(who: int, name: str) -> None:
            """Write until as many writes as before have succeeded after the loss."""
            number = 0
            while after[who] < MANY:
                number += 1
                begun_after, key = lost.is_set(), f"{name}_{number}"
                answer = await place.servers[who].root.post(place.variables, {"key": key, "value": "x"})
                assert answer.status in (201, 503), answer
                if answer.status == 201:
                    acknowledged[who].add(key)
                    after[who] += begun_after
                else:
                    assert answer.headers["Retry-After"]
                    await asyncio.sleep(0.02)

        pids = [server.pid for server in place.servers]
        async with asyncio.timeout(150), asyncio.TaskGroup() as group:
            for who, name in ((0, "A"), (0, "B"), (1, "C"), (1, "D")):
                group.create_task(write(who, name))
            while min(map(len, acknowledged)) < MANY:
                await asyncio.sleep(0.01)
            standbys.kill(place.primary)
            lost.set()
            await asyncio.to_thread(place.standby.promote)
        for server in place.servers:
            assert set.union(*acknowledged) - await keys(server, place.variables) == set()
            async with asyncio.timeout(60):
                while await readiness(server) != "ok":
                    await asyncio.sleep(0.1)
        assert [server.pid for server in place.servers] == pids


async def readiness(server: ServerProcess) -> str:
    with contextlib.suppress(aiohttp.ClientError):
        async with server.session.get(f"{server.base}/-/readiness") as answer:
            return str((await answer.json())["status"])
    return "refused"
