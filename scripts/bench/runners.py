"""Runners at work: pieces of logs stored, and jobs handed out, as shares of what PostgreSQL does of the same kind."""

import asyncio
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import psycopg2

from forgelet.local.api_client import Api
from forgelet.local.embedded_postgres import temporary
from scripts.bench.api_process import connection, running
from scripts.bench.load import statements
from scripts.bench.rows import Row

RUNNING_JOBS = 50
POLLING_RUNNERS = 20
HANDED_OUT = 300
SECONDS = 4
SMALL, LARGE = 1024, 256 * 1024

TABLES = """
    CREATE TABLE IF NOT EXISTS bench_logs (id integer PRIMARY KEY, size bigint NOT NULL);
    CREATE TABLE IF NOT EXISTS bench_pieces (id integer, start bigint, bytes bytea);
    CREATE TABLE IF NOT EXISTS bench_queue (id bigserial PRIMARY KEY, status text NOT NULL);
    INSERT INTO bench_logs SELECT number, 0 FROM generate_series(1, 50) number ON CONFLICT DO NOTHING;
    INSERT INTO bench_queue (status) SELECT 'pending' FROM generate_series(1, 200000);
    CREATE INDEX IF NOT EXISTS bench_pending ON bench_queue (id) WHERE status = 'pending';
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


def measure() -> Iterator[Row]:
    """PATCH /jobs/:id/trace with 50 jobs running; POST /jobs/request with 20 runners asking at once."""
    with temporary() as cluster, tempfile.TemporaryDirectory() as folder:
        with running(cluster, Path(folder)) as api:
            token = _project_with_jobs(api, RUNNING_JOBS)
            jobs = asyncio.run(_take_all(api, token, RUNNING_JOBS))
            small = asyncio.run(_append(api, jobs, SMALL))
            large = asyncio.run(_append(api, jobs, LARGE))
            token = _project_with_jobs(api, HANDED_OUT)
            began = time.perf_counter()
            taken = asyncio.run(_take_all(api, token, HANDED_OUT))
            hand_outs = len(taken) / (time.perf_counter() - began)
        with closing(psycopg2.connect(cluster.url())) as database, database, database.cursor() as cursor:
            cursor.execute(TABLES)
        here = connection(cluster)
        limit = statements(APPEND.format(size=SMALL), here, SECONDS, 10)
        yield Row(
            "log appends of 1 KiB, 50 jobs",
            small,
            limit,
            "pgbench: a row updated, 1 KiB inserted",
            0.05,
            "appends/s",
        )
        limit = statements(APPEND.format(size=LARGE), here, SECONDS, 10) * LARGE / 2**20
        large *= LARGE / 2**20
        yield Row(
            "log appends of 256 KiB, 50 jobs",
            large,
            limit,
            "pgbench: a row updated, 256 KiB inserted",
            0.1,
            "MiB/s",
        )
        limit = statements(TAKE, here, SECONDS, POLLING_RUNNERS)
        yield Row(
            "jobs handed out, 20 runners",
            hand_outs,
            limit,
            "pgbench: a row of a queue taken",
            0.005,
            "jobs/s",
        )


def _project_with_jobs(api: Api, number: int) -> str:
    """The token of a runner for that many pending jobs of a new project."""
    project = api.post("projects", {"name": f"jobs-{number}"})["id"]
    text = "".join(f"job{index}: {{script: make}}\n" for index in range(number))
    body = {"branch": "main", "content": text, "commit_message": "Begin [ci skip]"}
    api.post(f"projects/{project}/repository/files/%2Egitlab-ci%2Eyml", body)
    api.post(f"projects/{project}/pipeline", {"ref": "main"})
    wanted = {"runner_type": "project_type", "project_id": project}
    return str(api.post("user/runners", wanted)["token"])


async def _take_all(api: Api, token: str, number: int) -> list[dict[str, Any]]:
    """All jobs, by POLLING_RUNNERS runners that ask at the same time."""
    taken: list[dict[str, Any]] = []

    async def poll(session: aiohttp.ClientSession, system: int) -> None:
        body = {"token": token, "system_id": f"s_{system}"}
        while len(taken) < number:
            async with session.post(f"{api.base_url}/api/v4/jobs/request", json=body) as answer:
                if answer.status != 201:
                    return
                taken.append(await answer.json())

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(poll(session, system) for system in range(POLLING_RUNNERS)))
    if len(taken) != number:
        raise RuntimeError(f"{len(taken)} of {number} jobs were handed out.")
    return taken


async def _append(api: Api, jobs: list[dict[str, Any]], size: int) -> float:
    """Pieces of `size` bytes a second that are acknowledged, each job's one after the other."""
    piece = b"a line of a log, as long as it takes\n" * (size // 37 + 1)
    deadline = time.perf_counter() + SECONDS
    acknowledged = 0

    async def send(session: aiohttp.ClientSession, job: dict[str, Any]) -> None:
        nonlocal acknowledged
        url = f"{api.base_url}/api/v4/jobs/{job['id']}/trace"
        headers = {"JOB-TOKEN": job["token"], "Content-Range": "0-0"}
        async with session.patch(url, headers=headers) as answer:
            start = int(answer.headers["Range"].removeprefix("0-"))
        while time.perf_counter() < deadline:
            headers["Content-Range"] = f"{start}-{start + size - 1}"
            async with session.patch(url, data=piece[:size], headers=headers) as answer:
                if answer.status != 202:
                    raise RuntimeError(f"An append was answered {answer.status}.")
            start += size
            acknowledged += 1

    async with aiohttp.ClientSession() as session:
        began = time.perf_counter()
        await asyncio.gather(*(send(session, job) for job in jobs))
        return acknowledged / (time.perf_counter() - began)
