"""The job list of a project with 200,000 jobs: against PostgreSQL alone, and page 5,000 against page 1."""

import asyncio
import base64
import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg2

from api_server.state.database import connect
from forgelet.local.embedded_postgres import Cluster, temporary
from scripts.bench.api_process import requests, running, share_of_postgresql
from scripts.bench.many_jobs import fill
from scripts.bench.rows import Row, by_turns

JOBS = 200_000
PER_PAGE = 20
DEEP = 5_000


def measure() -> Iterator[Row]:
    """GET /projects/:id/jobs, 20 rows a page."""
    with temporary() as cluster, tempfile.TemporaryDirectory() as folder:
        with running(cluster, Path(folder)) as api:
            project_id = int(api.post("projects", {"name": "busy", "visibility": "public"})["id"])
            user_id = int(api.get("user")["id"])
        newest = asyncio.run(_fill(cluster, project_id, user_id))
        path = f"projects/{project_id}/jobs?per_page={PER_PAGE}"
        keyset = f"{path}&pagination=keyset"
        yield share_of_postgresql(cluster, Path(folder), "GET jobs, 20 rows, keyset", keyset, 0.75)
        yield share_of_postgresql(cluster, Path(folder), "GET jobs, 20 rows, counted", path, 0.75)
        deep = f"{keyset}&cursor={_cursor(newest - DEEP * PER_PAGE)}"
        with running(cluster, Path(folder)) as api:
            ours, theirs = by_turns(lambda: requests(api, deep), lambda: requests(api, keyset))
        yield Row(f"GET jobs, keyset page {DEEP:,}", ours, theirs, "page 1", 1 / 1.2)


def _cursor(after: int) -> str:
    return base64.urlsafe_b64encode(b'{"id":"%d","_kd":"n"}' % after).decode()


CREATE_RUNNER = """
    INSERT INTO runners (runner_type, token_digest, description, contacted_at, created_at)
    VALUES ('instance_type', '', 'a runner', %(now)s, %(now)s) RETURNING id
"""


async def _fill(cluster: Cluster, project_id: int, user_id: int) -> int:
    """The id of the newest job."""
    async with connect(cluster.url(), base_url="http://localhost", statement_timeout=120) as database:
        async with database.transaction() as transaction:
            runner_id = await transaction.value(CREATE_RUNNER)
            await fill(transaction, project_id=project_id, user_id=user_id, runner_id=runner_id, jobs=JOBS)
        newest = int(await database.value("SELECT max(id) FROM jobs"))
    with contextlib.closing(psycopg2.connect(cluster.url())) as connection:
        connection.autocommit = True
        connection.cursor().execute("VACUUM (ANALYZE)")
    return newest
