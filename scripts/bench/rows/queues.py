"""Queued work: logs that runners send, jobs handed out to them, and deliveries of status checks to receivers."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import aiohttp
import attrs

from api_server.status_checks.dispatcher import CONNECTIONS_OF_ONE, DISPATCHER
from api_server.web.context import SERVICES
from forgelet.local.embedded_postgres import autocommitting
from scripts.bench.measuring import small_server, statements
from scripts.bench.runs import OURS, Bench, Measure, Row, Sample, Sides
from scripts.bench.service import (
    LINE,
    POLLING,
    Plain,
    connection,
    in_process,
    plain,
    project_with_jobs,
    take_all,
)
from tests.support.forge import Forge, Person
from tests.support.merge_requests import new_project, open_merge_request

PGBENCH = "pgbench"
RUNNING_JOBS = 50
SMALL, LARGE = 1024, 256 * 1024

TABLES = """
    CREATE TABLE bench_logs (id integer PRIMARY KEY, size bigint NOT NULL);
    CREATE TABLE bench_pieces (id integer, start bigint, bytes bytea);
    CREATE TABLE bench_queue (id bigserial PRIMARY KEY, status text NOT NULL);
    INSERT INTO bench_logs SELECT number, 0 FROM generate_series(1, 50) number;
    INSERT INTO bench_queue (status) SELECT 'pending' FROM generate_series(1, 200000);
    CREATE INDEX bench_pending ON bench_queue (id) WHERE status = 'pending';
"""
APPEND = r"""
\set id random(1, 50)
BEGIN;
UPDATE bench_logs SET size = size + {size} WHERE id = :id;
INSERT INTO bench_pieces VALUES (:id, 0, decode(repeat('ab', {size}), 'hex'));
COMMIT;
"""
TAKE = """
UPDATE bench_queue SET status = 'running'
WHERE id = (SELECT id FROM bench_queue WHERE status = 'pending' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED);
"""


@attrs.frozen
class Jobs:
    """A server with running jobs."""

    plain: Plain
    jobs: list[dict[str, Any]]


@contextlib.contextmanager
def _running_jobs(bench: Bench) -> Iterator[Jobs]:
    served = bench.use(plain)
    api = served.running.api
    _, token = project_with_jobs(api, RUNNING_JOBS, "running")
    jobs = asyncio.run(take_all(api.base_url, token, RUNNING_JOBS))
    with autocommitting(served.cluster.url()) as cursor:
        cursor.execute(TABLES)
    yield Jobs(served, jobs)


def _appends(size: int, bench: Bench) -> Sides:
    setup = bench.use(_running_jobs)
    base = setup.plain.running.api.base_url
    database = connection(setup.plain.cluster)
    return {
        OURS: lambda seconds: Sample(asyncio.run(_append(base, setup.jobs, size, seconds))),
        PGBENCH: lambda seconds: statements(APPEND.format(size=size), database, seconds, 10),
    }


def _hand_outs(bench: Bench) -> Sides:
    setup = bench.use(_running_jobs)
    database = connection(setup.plain.cluster)
    return {
        OURS: lambda _: _handed_out(setup.plain, bench.size.handed_out),
        PGBENCH: lambda seconds: statements(TAKE, database, seconds, POLLING),
    }


def _handed_out(served: Plain, number: int) -> Sample:
    api = served.running.api
    _, token = project_with_jobs(api, number, f"pending-{secrets.token_hex(4)}")
    start = time.perf_counter()
    asyncio.run(take_all(api.base_url, token, number))
    return Sample(number / (time.perf_counter() - start))


async def _append(base_url: str, jobs: list[dict[str, Any]], size: int, seconds: float) -> float:
    """Return the acknowledged pieces of `size` bytes per second; the pieces of each job are sent one after the
    other."""
    data = (LINE * (size // len(LINE) + 1))[:size]
    deadline = time.perf_counter() + seconds
    acknowledged = 0

    async def send(session: aiohttp.ClientSession, job: dict[str, Any]) -> None:
        nonlocal acknowledged
        url = f"{base_url}/api/v4/jobs/{job['id']}/trace"
        headers = {"JOB-TOKEN": job["token"], "Content-Range": "0-0"}
        async with session.patch(url, headers=headers) as answer:
            start = int(answer.headers["Range"].removeprefix("0-"))
        while time.perf_counter() < deadline:
            headers["Content-Range"] = f"{start}-{start + size - 1}"
            async with session.patch(url, data=data, headers=headers) as answer:
                if answer.status != 202:
                    raise RuntimeError(f"An append was answered {answer.status}.")
            start += size
            acknowledged += 1

    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        await asyncio.gather(*(send(session, job) for job in jobs))
        return max(acknowledged, 1) / (time.perf_counter() - began)


_appends_row = partial(Row, unit="appends/s")
RUNNER_ROWS = (
    _appends_row(
        "log-appends-1k",
        "pieces of 1 KiB of 50 jobs' logs, against a row updated and 1 KiB inserted",
        partial(_appends, SMALL),
        aims={PGBENCH: 0.05},
    ),
    _appends_row(
        "log-appends-256k",
        "pieces of 256 KiB of 50 jobs' logs, against a row updated and 256 KiB inserted",
        partial(_appends, LARGE),
        aims={PGBENCH: 0.1},
    ),
    Row(
        "hand-out",
        "jobs handed out to 20 runners that ask at once, against a row of a queue taken",
        _hand_outs,
        "jobs/s",
        aims={PGBENCH: 0.005},
        warmed_up=False,
    ),
)


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
    """A check whose receiver answers at once, a check whose receiver never answers, and the URL of the first
    receiver."""

    url: str
    fast: int
    hanging: int


@contextlib.contextmanager
def _receivers(bench: Bench) -> Iterator[Receivers]:
    server = bench.use(in_process)
    with small_server("receiver") as (port, _):
        url = f"http://localhost:{port}"  # a name, as receivers have
        fast, hanging = server.runner.run(_checks(server.forge, url))
        yield Receivers(f"{url}/fast", fast, hanging)


async def _checks(forge: Forge, url: str) -> tuple[int, int]:
    alice = await forge.user("alice")
    project = await new_project(forge, alice)
    fast = await _check(alice, project, f"{url}/fast", shared_secret="secret")
    await open_merge_request(alice, project)
    await forge.server.app[SERVICES][DISPATCHER].deliver_due()
    return fast, await _check(alice, project, f"{url}/hang")


async def _check(person: Person, project: dict[str, Any], url: str, **values: str) -> int:
    path = f"/projects/{project['id']}/external_status_checks"
    created = await person.api.post(path, {"name": url, "external_url": url} | values)
    return int(created.body["id"])


def _deliver(bench: Bench, *, hanging: bool) -> Measure:
    server, receivers, count = bench.use(in_process), bench.use(_receivers), bench.size.deliveries
    return lambda _: server.runner.run(_delivered(server.forge, receivers, count, hanging=hanging))


def _alone(bench: Bench) -> Sides:
    server, receivers, count = bench.use(in_process), bench.use(_receivers), bench.size.deliveries
    bare: Measure = lambda _: server.runner.run(_bare(server.forge, receivers.url, count))  # noqa: E731
    return {OURS: _deliver(bench, hanging=False), CLIENT: bare}


def _beside(bench: Bench) -> Sides:
    return {OURS: _deliver(bench, hanging=True), ALONE: _deliver(bench, hanging=False)}


async def _delivered(forge: Forge, receivers: Receivers, count: int, *, hanging: bool) -> Sample:
    queued = [receivers.hanging, receivers.fast] if hanging else [receivers.fast]
    async with forge.database.transaction() as transaction:
        await transaction.run(WITHDRAWN, check_id=receivers.hanging)
        for check_id in queued:
            await transaction.run(QUEUE, check_id=check_id, count=count)
    target = await forge.database.value(DELIVERED, check_id=receivers.fast) + count
    started, app = time.perf_counter(), forge.server.app
    async with app[SERVICES][DISPATCHER].working(app[SERVICES].background, app[SERVICES].shutdown):
        while await forge.database.value(DELIVERED, check_id=receivers.fast) < target:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        return Sample(count / (time.perf_counter() - started))


async def _bare(forge: Forge, url: str, count: int) -> Sample:
    body = (await forge.database.value("SELECT body FROM status_check_deliveries LIMIT 1")).encode()
    numbers = iter(range(count))

    async def post(session: aiohttp.ClientSession) -> None:
        for _ in numbers:
            async with session.post(url, data=body) as response:
                await response.read()

    async with aiohttp.ClientSession() as session:
        started = time.perf_counter()
        await asyncio.gather(*(post(session) for _ in range(CONNECTIONS_OF_ONE)))
        return Sample(count / (time.perf_counter() - started))


_delivery_row = partial(Row, unit="a second", warmed_up=False)
_beside_one = "the same while as many wait for one that hangs"
DELIVERY_ROWS = (
    # The service takes each delivery from the database, signs it, and records the result; the client does none of
    # this.
    _delivery_row("deliveries-alone", "3,000 deliveries to a fast receiver", _alone, aims={CLIENT: 0.15}),
    # Deliveries to a receiver that never answers may hardly slow down others.
    _delivery_row("deliveries-beside", _beside_one, _beside, aims={ALONE: 0.8}),
)
