"""The service under test."""

import asyncio
import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import psycopg2

from api_server.state.database import connect
from api_server.state.migrate import migrate
from common import logs
from forgelet.local.embedded_postgres import DATABASE, ROLE, Cluster, temporary_cluster
from forgelet.local.variables import API
from forgelet.testing.api import Api, Connections
from scripts.bench import filling
from scripts.bench.measuring import listening
from scripts.bench.runs import Bench
from scripts.harness.contents import commit_values, new_user
from scripts.harness.processes import server_variables
from tests.support.forge import Forge, running_forge
from tests.support.ports import free_port

POOL = 10
TOKEN = "flpat-benchmark-token"  # for a database that exists only during the measurement
HEADERS = {"PRIVATE-TOKEN": TOKEN}
#: Seconds, much longer than users wait: a slow answer has to be measured instead of refused.
TIMEOUT = 900


@attrs.frozen
class Running:
    """The server's process and its database's, whose processor times are added."""

    api: Api
    pid: int
    database: int

    @property
    def pids(self) -> list[int]:
        return [self.pid, self.database]


@contextlib.contextmanager
def running(cluster: Cluster, folder: Path, **settings: str) -> Iterator[Running]:
    """Run the API server with the cluster's database as users do, with an access log; yield a client for its
    administrator."""
    port = free_port()
    values = {
        "PORT": str(port),
        "DATABASE_URL": cluster.url(),
        "DATA_DIR": str(folder / "data"),
        "ROOT_TOKEN": TOKEN,
        "DATABASE_POOL": str(POOL),
        "JOBS_RATE_LIMIT": "0",
    } | settings
    environment = server_variables(API, values)
    command = [sys.executable, "-m", "api_server"]
    with (
        listening(command, port, folder / "log", environment, path="/-/readiness") as pid,
        contextlib.closing(Connections(f"http://127.0.0.1:{port}", timeout=TIMEOUT)) as connections,
    ):
        yield Running(Api(connections, TOKEN), pid, postmaster(cluster))


def postmaster(cluster: Cluster) -> int:
    """Return the process id of PostgreSQL."""
    return int((cluster.data / "postmaster.pid").read_text().split("\n", 1)[0])


def list_statements(cluster: Cluster, folder: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return, for the list at each path, a pgbench script with the statements that the server prepares and runs for
    it."""
    scripts = {}
    _set_logging(cluster, "all")
    try:
        with running(cluster, folder) as server:
            for path in paths:
                server.api.get(path)
                scripts[path] = prepared_script(cluster.log.read_text())
    finally:
        _set_logging(cluster, "none")
    return scripts


def prepared_script(log: str) -> str:
    """Create a pgbench script from PostgreSQL's log: it prepares the last list once, and then executes it."""
    logged = re.findall(r"LOG:  statement: (.*(?:\n\t.*)*)", log)
    prepared = {text.split()[1]: text for text in logged if text.startswith("PREPARE")}
    for text in reversed(logged):
        executed = re.match(r"(SET LOCAL [^;]*; )?EXECUTE (\w+)", text)
        if executed and "AS last_id" in prepared.get(executed[2], ""):
            # pgbench reads one backslash command per line and a statement to its semicolon; with a backslash before
            # the semicolon it sends two statements together.
            execute = text.replace("; EXECUTE", "\\; EXECUTE", 1)
            prepare = prepared[executed[2]]
            return f"\\if :prepared\n\\else\n{prepare};\n\\set prepared 1\n\\endif\n{execute};\n"
    raise RuntimeError("The API server has not prepared the statement of any list.")


def _set_logging(cluster: Cluster, statements: str) -> None:
    """Set which statements new connections write to PostgreSQL's log."""
    with filling.superuser(cluster) as cursor:
        cursor.execute(f"ALTER DATABASE {DATABASE} SET log_statement = '{statements}'")


def connection(cluster: Cluster) -> dict[str, str]:
    """Return the variables with which pgbench connects as the API server does."""
    parts = psycopg2.extensions.parse_dsn(cluster.url())
    return {
        "PGHOST": parts["host"],
        "PGUSER": ROLE,
        "PGPASSWORD": parts["password"],
        "PGDATABASE": DATABASE,
        "PGOPTIONS": "-c forgelet.base_url=http://127.0.0.1:8080 -c jit=off",
    }


@attrs.frozen
class Plain:
    """The API server in a process of its own, and its database."""

    cluster: Cluster
    running: Running


@contextlib.contextmanager
def plain(_: Bench) -> Iterator[Plain]:
    """Run the API server as a process of its own."""
    with (
        temporary_cluster() as cluster,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        running(cluster, Path(folder)) as server,
    ):
        yield Plain(cluster, server)


@attrs.frozen
class InProcess:
    """The API server in this process. `runner` runs coroutines on the loop of `forge`, which stops between them."""

    runner: asyncio.Runner
    forge: Forge


@contextlib.contextmanager
def in_process(_: Bench) -> Iterator[InProcess]:
    """Run the API server in this process, so that a part of it can be replaced. Its log is discarded."""
    with (
        temporary_cluster() as cluster,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        Path(os.devnull).open("w") as nowhere,
        asyncio.Runner() as runner,
    ):
        logs.configure("console", stream=nowhere)
        migrate(cluster.url())
        stack = contextlib.AsyncExitStack()
        server = running_forge(cluster.url(), Path(folder), work=False, allow_local_requests=True)
        forge = runner.run(stack.enter_async_context(server))
        try:
            yield InProcess(runner, forge)
        finally:
            runner.run(stack.aclose())


POLLING = 20
LINE = b"a line of a log, as long as it takes\n"


def project_with_jobs(api: Api, number: int, name: str) -> tuple[int, str]:
    """Create a project with this many pending jobs; return its id, and the token of a runner for it."""
    project = int(api.post("projects", {"name": name})["id"])
    text = "".join(f"job{index}: {{script: make}}\n" for index in range(number))
    commit = commit_values("main", {".gitlab-ci.yml": text}, message="Begin [ci skip]")
    api.post(f"projects/{project}/repository/commits", commit)
    api.post(f"projects/{project}/pipeline", {"ref": "main"})
    runner = {"runner_type": "project_type", "project_id": project}
    return project, str(api.post("user/runners", runner)["token"])


async def take_all(base_url: str, token: str, number: int) -> list[dict[str, Any]]:
    """Take all jobs with POLLING runners that ask at the same time."""
    jobs: list[dict[str, Any]] = []

    async def poll(session: aiohttp.ClientSession, system: int) -> None:
        body = {"token": token, "system_id": f"s_{system}"}
        while len(jobs) < number:
            async with session.post(f"{base_url}/api/v4/jobs/request", json=body) as answer:
                if answer.status != 201:
                    return
                jobs.append(await answer.json())

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(poll(session, system) for system in range(POLLING)))
    if len(jobs) != number:
        raise RuntimeError(f"{len(jobs)} of {number} jobs were handed out.")
    return jobs


async def append(base_url: str, job: dict[str, Any], size: int) -> None:
    """Send this many bytes at the beginning of a job's log."""
    headers = {"JOB-TOKEN": job["token"], "Content-Range": f"0-{size - 1}"}
    data = (LINE * (size // len(LINE) + 1))[:size]
    url = f"{base_url}/api/v4/jobs/{job['id']}/trace"
    async with aiohttp.ClientSession() as session, session.patch(url, data=data, headers=headers) as answer:
        if answer.status != 202:
            raise RuntimeError(f"An append was answered {answer.status}.")


def job_with_log(api: Api, size: int = 4096) -> dict[str, Any]:
    """Start a job of a project with an agent; return its `id`, `token` and `project_id`."""
    project, token = project_with_jobs(api, 1, "ci")
    api.post(f"projects/{project}/cluster_agents", {"name": "agent"})
    [job] = asyncio.run(take_all(api.base_url, token, 1))
    asyncio.run(append(api.base_url, job, size))
    return {"id": job["id"], "token": job["token"], "project_id": project}


#: The keyset page of the job list that is measured as "deep", in pages of 20.
DEEP = 5_000
#: Lists whose statements are also run without a server.
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
    """A running server with much data. `ids` are the ids in paths; `traced` is a running job with a log, and its
    token; `member` is the token of a Developer of the group; `statements` are pgbench scripts of the lists STATED, by
    their paths."""

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
    """Run the API server with as many rows as the size of the bench says."""
    with temporary_cluster() as cluster, tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        with running(cluster, folder) as first:  # this start migrates the database
            ids = _places(first.api)
            traced = job_with_log(first.api)
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
    alice = new_user(api, "alice")
    api.post(f"groups/{group_id}/members", {"user_id": alice.id, "access_level": 30})
    return alice.token


async def _fill_jobs(cluster: Cluster, ids: dict[str, int], jobs: int) -> None:
    async with (
        connect(cluster.url(), base_url="http://localhost", statement_timeout=120) as database,
        database.transaction() as transaction,
    ):
        runner_id = await transaction.value(CREATE_RUNNER)
        await filling.fill_jobs(
            transaction, project_id=ids["project_id"], user_id=ids["user_id"], runner_id=runner_id, jobs=jobs
        )


def _furnish(cluster: Cluster, ids: dict[str, int], bench: Bench) -> dict[str, int]:
    filling.fill_events(cluster, bench.size.events, project_id=ids["project_id"], group_id=ids["group_id"])
    text = resources.files("scripts.bench").joinpath("service_data.sql").read_text()
    with filling.superuser(cluster) as cursor:
        cursor.execute(text, {**ids, "projects": bench.size.projects})
        cursor.execute("VACUUM (ANALYZE)")
    return filling.row_of(cluster, IDS, ids)
