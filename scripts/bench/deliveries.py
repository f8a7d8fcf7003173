"""10,000 queued deliveries to a fast receiver, as a share of the bare HTTP client; alone, and beside one that hangs."""

import asyncio
import contextlib
import logging
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import structlog

from api_server.state.migrate import migrate
from api_server.status_checks.dispatcher import CONNECTIONS_OF_ONE
from api_server.status_checks.tasks import DISPATCHER
from common.background import BACKGROUND
from common.shutdown import SHUTDOWN
from forgelet.local.embedded_postgres import temporary
from scripts.bench.rows import Row
from tests.support.forge import Forge, Person, running_forge
from tests.support.merge_requests import new_project, open_merge_request

DELIVERIES = 10_000
#: Each is taken from the database, signed, and recorded on disk with what came back; the bare client does nothing of
#: that.
AIM = 0.15
#: One that hangs may cost the others next to nothing.
AIM_BESIDE_ONE_THAT_HANGS = 0.8

QUEUE = """
    INSERT INTO status_check_deliveries (check_id, merge_request_id, body, next_attempt_at, created_at)
    SELECT %(check_id)s, first.merge_request_id, first.body, %(now)s, %(now)s
    FROM generate_series(1, %(count)s), (SELECT * FROM status_check_deliveries ORDER BY id LIMIT 1) first
"""
DELIVERED = """
    SELECT count(*) FROM status_check_deliveries WHERE check_id = %(check_id)s AND status = 'delivered'
"""


def measure() -> Iterator[Row]:
    """With PostgreSQL and the receiver as processes of their own, on loopback."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with temporary() as cluster, tempfile.TemporaryDirectory() as folder:
        migrate(cluster.url())
        alone, beside, bare, grown = asyncio.run(_measured(cluster.url(), Path(folder)))
    what = f"{DELIVERIES:,} deliveries to a fast receiver (memory +{grown:.0f} MiB)"
    yield Row(what, alone, bare, "aiohttp's client with the same requests", AIM, "a second")
    what = f"The same while {DELIVERIES:,} wait for one that hangs"
    yield Row(what, beside, alone, "without that", AIM_BESIDE_ONE_THAT_HANGS, "a second")


async def _measured(database_url: str, folder: Path) -> tuple[float, float, float, float]:
    """Deliveries a second: alone, beside a receiver that hangs, and by the bare client; MiB that were needed."""
    async with (
        _receiver() as receiver,
        running_forge(database_url, folder, work=False, allow_local_requests=True) as forge,
    ):
        alice = await forge.user("alice")
        project = await new_project(forge, alice)
        fast = await _check(alice, project, f"{receiver}/fast", shared_secret="secret")
        await open_merge_request(alice, project)
        await forge.server.app[DISPATCHER].deliver_due()
        bare = await _bare(forge, f"{receiver}/fast")
        before = _peak_memory()
        alone = await _delivered(forge, fast, None)
        grown = _peak_memory() - before
        hanging = await _check(alice, project, f"{receiver}/hang")
        beside = await _delivered(forge, fast, hanging)
        return alone, beside, bare, grown


async def _delivered(forge: Forge, check_id: int, hanging: int | None) -> float:
    async with forge.database.transaction() as transaction:
        for queued in filter(None, (hanging, check_id)):
            await transaction.run(QUEUE, check_id=queued, count=DELIVERIES)
    wanted = await forge.database.value(DELIVERED, check_id=check_id) + DELIVERIES
    started, app = time.perf_counter(), forge.server.app
    async with app[DISPATCHER].working(app[BACKGROUND], app[SHUTDOWN]):
        while await forge.database.value(DELIVERED, check_id=check_id) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        return DELIVERIES / (time.perf_counter() - started)


async def _bare(forge: Forge, url: str) -> float:
    body = (await forge.database.value("SELECT body FROM status_check_deliveries LIMIT 1")).encode()
    left = iter(range(DELIVERIES))

    async def post(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(url, data=body) as response:
                await response.read()

    async with aiohttp.ClientSession() as session:
        started = time.perf_counter()
        await asyncio.gather(*(post(session) for _ in range(CONNECTIONS_OF_ONE)))
        return DELIVERIES / (time.perf_counter() - started)


async def _check(person: Person, project: dict[str, Any], url: str, **values: str) -> int:
    path = f"/projects/{project['id']}/external_status_checks"
    made = await person.api.post(path, {"name": url, "external_url": url} | values)
    return int(made.body["id"])


def _peak_memory() -> float:
    """MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextlib.asynccontextmanager
async def _receiver() -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "scripts.bench.receiver", stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"http://localhost:{int(await process.stdout.readline())}"  # a name, as receivers have
    finally:
        process.terminate()
        await process.wait()
