"""An API server over a database of some size, and where in it each endpoint finds what it shows."""

import asyncio
import contextlib
import tempfile
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import attrs
import psycopg2

from api_server.state.database import connect
from forgelet.local.api_client import Api
from forgelet.local.embedded_postgres import Cluster, temporary
from scripts.bench.harness.bench import Bench
from scripts.bench.scene import events, many_jobs, working_runners
from scripts.bench.scene.api_process import Running, list_statements, running

#: The keyset page of the job list that is read as "deep", in pages of 20.
DEEP = 5_000
#: Lists whose statements are run without a server around them too.
STATED = (
    "projects/{project_id}/jobs?pagination=keyset",
    "projects/{project_id}/jobs",
    "projects?simple=true",
)

CREATE_RUNNER = """
    INSERT INTO runners (runner_type, token_digest, description, contacted_at, created_at)
    VALUES ('instance_type', '', 'a runner', %(now)s, %(now)s) RETURNING id
"""
IDS = """
    SELECT (SELECT max(id) FROM jobs WHERE project_id = %(project_id)s AND kind = 'build') AS job_id,
        (SELECT max(pipeline_id) FROM jobs WHERE project_id = %(project_id)s AND kind = 'build') AS pipeline_id,
        (SELECT min(pipeline_id) FROM jobs WHERE kind = 'bridge') AS bridged_id,
        (SELECT max(id) FROM remote_mirrors) AS mirror_id,
        (SELECT max(id) FROM audit_events WHERE entity_type = 'Project' AND entity_id = %(project_id)s)
            AS project_event_id,
        (SELECT max(id) FROM audit_events WHERE entity_type = 'Group' AND entity_id = %(group_id)s) AS group_event_id
"""


@attrs.frozen
class Service:
    """`ids` are what paths name; `traced` is a running job with a log, and its token; `member` is the token of a
    Developer of the group; `statements` are pgbench scripts of the lists STATED, by their paths."""

    cluster: Cluster
    running: Running
    ids: dict[str, int]
    traced: dict[str, Any]
    member: str
    statements: dict[str, str]

    @property
    def api(self) -> Api:
        return self.running.api


@contextlib.contextmanager
def service(bench: Bench) -> Iterator[Service]:
    """With as many rows as the bench is large."""
    with temporary() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        with running(cluster, folder) as first:  # which migrates
            ids = _places(first.api)
            traced = working_runners.job_with_log(first.api)
            member = _member(first.api, ids["group_id"])
            ids["ci_project_id"] = traced["project_id"]
        asyncio.run(_fill_jobs(cluster, ids, bench.size.jobs))
        ids |= _furnish(cluster, ids, bench)
        statements = list_statements(cluster, folder, [path.format(**ids) for path in STATED])
        with running(cluster, folder) as server:
            yield Service(cluster, server, ids, traced, member, statements)


def _places(api: Api) -> dict[str, int]:
    group = api.post("groups", {"name": "bench", "path": "bench", "visibility": "public"})
    project = api.post("projects", {"name": "busy", "namespace_id": group["id"], "visibility": "public"})
    return {"group_id": group["id"], "project_id": project["id"], "user_id": api.get("user")["id"]}


def _member(api: Api, group_id: int) -> str:
    user = {"username": "alice", "name": "Alice", "email": "alice@example.org"}
    alice = api.post("users", user | {"force_random_password": True, "skip_confirmation": True})
    api.post(f"groups/{group_id}/members", {"user_id": alice["id"], "access_level": 30})
    token = api.post(f"users/{alice['id']}/personal_access_tokens", {"name": "bench", "scopes": ["api"]})
    return str(token["token"])


async def _fill_jobs(cluster: Cluster, ids: dict[str, int], jobs: int) -> None:
    async with (
        connect(cluster.url(), base_url="http://localhost", statement_timeout=120) as database,
        database.transaction() as transaction,
    ):
        runner_id = await transaction.value(CREATE_RUNNER)
        await many_jobs.fill(
            transaction, project_id=ids["project_id"], user_id=ids["user_id"], runner_id=runner_id, jobs=jobs
        )


def _furnish(cluster: Cluster, ids: dict[str, int], bench: Bench) -> dict[str, int]:
    events.fill(cluster, bench.size.events, project_id=ids["project_id"], group_id=ids["group_id"])
    text = resources.files("scripts.bench.scene").joinpath("furnishing.sql").read_text()
    with contextlib.closing(psycopg2.connect(cluster.url())) as connection, connection.cursor() as cursor:
        cursor.execute(text, {**ids, "projects": bench.size.projects})
        connection.commit()
        cursor.execute(IDS, ids)
        found = cursor.fetchone()
        assert found is not None
        assert cursor.description is not None
        names = [column.name for column in cursor.description]
        connection.commit()
        connection.autocommit = True
        cursor.execute("VACUUM (ANALYZE)")
    return dict(zip(names, found, strict=True))
