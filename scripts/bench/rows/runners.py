"""Runners at work: pieces of logs stored, and jobs handed out, as shares of what PostgreSQL does of the same kind."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import aiohttp
import attrs
import psycopg2

from scripts.bench.harness.measuring import statements
from scripts.bench.harness.runs import OURS, Bench, Row, Sample, Sides
from scripts.bench.scene.crowds import LINE, POLLING, project_with_jobs, take_all
from scripts.bench.scene.service import Plain, connection, plain

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
    url = served.cluster.url()
    with contextlib.closing(psycopg2.connect(url)) as database, database, database.cursor() as cursor:
        cursor.execute(TABLES)
    yield Jobs(served, jobs)


def _appends(size: int, bench: Bench) -> Sides:
    found = bench.use(_running_jobs)
    base = found.plain.running.api.base_url
    here = connection(found.plain.cluster)
    return {
        OURS: lambda seconds: Sample(asyncio.run(_append(base, found.jobs, size, seconds))),
        PGBENCH: lambda seconds: statements(APPEND.format(size=size), here, seconds, 10),
    }


def _hand_outs(bench: Bench) -> Sides:
    found = bench.use(_running_jobs)
    here = connection(found.plain.cluster)
    return {
        OURS: lambda _: _handed_out(found.plain, bench.size.handed_out),
        PGBENCH: lambda seconds: statements(TAKE, here, seconds, POLLING),
    }


def _handed_out(served: Plain, number: int) -> Sample:
    api = served.running.api
    _, token = project_with_jobs(api, number, f"pending-{secrets.token_hex(4)}")
    began = time.perf_counter()
    asyncio.run(take_all(api.base_url, token, number))
    return Sample(number / (time.perf_counter() - began))


async def _append(base_url: str, jobs: list[dict[str, Any]], size: int, seconds: float) -> float:
    """Pieces of `size` bytes a second that are acknowledged, each job's one after the other."""
    piece = (LINE * (size // len(LINE) + 1))[:size]
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
            async with session.patch(url, data=piece, headers=headers) as answer:
                if answer.status != 202:
                    raise RuntimeError(f"An append was answered {answer.status}.")
            start += size
            acknowledged += 1

    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        await asyncio.gather(*(send(session, job) for job in jobs))
        return max(acknowledged, 1) / (time.perf_counter() - began)


ROWS = (
    Row(
        "log-appends-1k",
        "pieces of 1 KiB of 50 jobs' logs, against a row updated and 1 KiB inserted",
        partial(_appends, SMALL),
        "appends/s",
        aims={PGBENCH: 0.05},
    ),
    Row(
        "log-appends-256k",
        "pieces of 256 KiB of 50 jobs' logs, against a row updated and 256 KiB inserted",
        partial(_appends, LARGE),
        "appends/s",
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
