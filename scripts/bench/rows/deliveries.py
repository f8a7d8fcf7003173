"""Queued deliveries to a fast receiver, as a share of the bare HTTP client; alone, and beside one that hangs."""

import asyncio
import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import aiohttp
import attrs

from api_server.status_checks.dispatcher import CONNECTIONS_OF_ONE, DISPATCHER
from common.background import BACKGROUND
from common.shutdown import SHUTDOWN
from scripts.bench.harness.runs import OURS, Bench, Row, Sample, Sides
from scripts.bench.scene.service import in_process
from tests.support.forge import Forge, Person
from tests.support.merge_requests import new_project, open_merge_request

CLIENT, ALONE = "aiohttp's client with the same requests", "without that"

QUEUE = """
    INSERT INTO status_check_deliveries (check_id, merge_request_id, body, next_attempt_at, created_at)
    SELECT %(check_id)s, first.merge_request_id, first.body, %(now)s, %(now)s
    FROM generate_series(1, %(count)s), (SELECT * FROM status_check_deliveries ORDER BY id LIMIT 1) first
"""
DELIVERED = """
    SELECT count(*) FROM status_check_deliveries WHERE check_id = %(check_id)s AND status = 'delivered'
"""
WITHDRAWN = "DELETE FROM status_check_deliveries WHERE check_id = %(check_id)s"


@attrs.frozen
class Receivers:
    """Checks whose receivers answer at once, and never; and the URL of the first."""

    url: str
    fast: int
    hanging: int


@contextlib.contextmanager
def _receivers(bench: Bench) -> Iterator[Receivers]:
    server = bench.use(in_process)
    command = [sys.executable, "-m", "scripts.bench.scene.receiver"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            url = f"http://localhost:{int(process.stdout.readline())}"  # a name, as receivers have
            fast, hanging = server.runner.run(_checks(server.forge, url))
            yield Receivers(f"{url}/fast", fast, hanging)
        finally:
            process.terminate()


async def _checks(forge: Forge, url: str) -> tuple[int, int]:
    alice = await forge.user("alice")
    project = await new_project(forge, alice)
    fast = await _check(alice, project, f"{url}/fast", shared_secret="secret")
    await open_merge_request(alice, project)
    await forge.server.app[DISPATCHER].deliver_due()
    return fast, await _check(alice, project, f"{url}/hang")


async def _check(person: Person, project: dict[str, Any], url: str, **values: str) -> int:
    path = f"/projects/{project['id']}/external_status_checks"
    made = await person.api.post(path, {"name": url, "external_url": url} | values)
    return int(made.body["id"])


def _alone(bench: Bench) -> Sides:
    server, found, count = bench.use(in_process), bench.use(_receivers), bench.size.deliveries
    return {
        OURS: lambda _: server.runner.run(_delivered(server.forge, found, count, hanging=False)),
        CLIENT: lambda _: server.runner.run(_bare(server.forge, found.url, count)),
    }


def _beside(bench: Bench) -> Sides:
    server, found, count = bench.use(in_process), bench.use(_receivers), bench.size.deliveries
    return {
        OURS: lambda _: server.runner.run(_delivered(server.forge, found, count, hanging=True)),
        ALONE: lambda _: server.runner.run(_delivered(server.forge, found, count, hanging=False)),
    }


async def _delivered(forge: Forge, found: Receivers, count: int, *, hanging: bool) -> Sample:
    queued = [found.hanging, found.fast] if hanging else [found.fast]
    async with forge.database.transaction() as transaction:
        await transaction.run(WITHDRAWN, check_id=found.hanging)
        for check_id in queued:
            await transaction.run(QUEUE, check_id=check_id, count=count)
    wanted = await forge.database.value(DELIVERED, check_id=found.fast) + count
    started, app = time.perf_counter(), forge.server.app
    async with app[DISPATCHER].working(app[BACKGROUND], app[SHUTDOWN]):
        while await forge.database.value(DELIVERED, check_id=found.fast) < wanted:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return Sample(count / (time.perf_counter() - started))


async def _bare(forge: Forge, url: str, count: int) -> Sample:
    body = (await forge.database.value("SELECT body FROM status_check_deliveries LIMIT 1")).encode()
    left = iter(range(count))

    async def post(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(url, data=body) as response:
                await response.read()

    async with aiohttp.ClientSession() as session:
        started = time.perf_counter()
        await asyncio.gather(*(post(session) for _ in range(CONNECTIONS_OF_ONE)))
        return Sample(count / (time.perf_counter() - started))


ROWS = (
    # Each is taken from the database, signed, and recorded with what came back; the client does nothing of that.
    Row(
        "deliveries-alone",
        "3,000 deliveries to a fast receiver",
        _alone,
        "a second",
        aims={CLIENT: 0.15},
        warmed_up=False,
    ),
    # One that hangs may cost the others next to nothing.
    Row(
        "deliveries-beside",
        "the same while as many wait for one that hangs",
        _beside,
        "a second",
        aims={ALONE: 0.8},
        warmed_up=False,
    ),
)
