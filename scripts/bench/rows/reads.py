"""Each list and each read of one resource in the API's contract, against FastAPI, PostgreSQL, Prism, a bare handler."""

import base64
import contextlib
import importlib.util
import os
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import attrs

from scripts.bench.measuring import http_requests, listening, need, small_server, statements
from scripts.bench.runs import OURS, Bench, Measure, NotMeasured, Row, Sides
from scripts.bench.service import DEEP, HEADERS, POOL, TOKEN, Service, connection, service
from tests.support.ports import free_port


@attrs.frozen
class Peer:
    """Where it listens, and the processes whose processor time counts."""

    url: str
    pids: list[int]


@contextlib.contextmanager
def fastapi_server(bench: Bench) -> Iterator[Peer]:
    """FastAPI on uvicorn with uvloop and httptools, over the service's database."""
    for module in ("fastapi", "sqlalchemy", "asyncpg", "pydantic", "uvicorn", "httptools"):
        if importlib.util.find_spec(module) is None:
            raise NotMeasured(f"{module} is not installed (the extra `bench` has it).")
    served, port = bench.use(service), free_port()
    environment = {
        **os.environ,
        "BENCH_DATABASE_URL": served.cluster.url(),
        "BENCH_POOL": str(POOL),
        "BENCH_TOKEN": TOKEN,
    }
    command = [sys.executable, "-m", "uvicorn", "scripts.bench.peer.fastapi_app:app", "--port", str(port)]
    command += ["--no-access-log", "--loop", "uvloop", "--http", "httptools"]
    with listening(command, port, bench.new_folder() / "log", environment) as pid:
        yield Peer(f"http://127.0.0.1:{port}", [pid, served.running.database])


@attrs.frozen
class BareServer:
    """The handler, and the folder whose files it answers with."""

    url: str
    pids: list[int]
    folder: Path


@contextlib.contextmanager
def bare_server(bench: Bench) -> Iterator[BareServer]:
    """An aiohttp handler that does nothing."""
    folder = bench.new_folder()
    with small_server("bare", str(folder)) as (port, pid):
        yield BareServer(f"http://127.0.0.1:{port}", [pid], folder)


@contextlib.contextmanager
def prism_server(bench: Bench) -> Iterator[Peer]:
    """Stoplight Prism with our description, answering with its examples."""
    need("prism")
    port, folder = free_port(), bench.new_folder()
    description = folder / "openapi.json"
    with urllib.request.urlopen(f"{bench.use(service).api.base_url}/api/v4/openapi.json") as answer:
        description.write_bytes(answer.read())
    command = ["prism", "mock", "--port", str(port), "--host", "127.0.0.1", "--verboseLevel", "error"]
    with listening([*command, str(description)], port, folder / "log") as pid:
        yield Peer(f"http://127.0.0.1:{port}", [pid])


FASTAPI, PGBENCH, PRISM, ADMINISTRATOR = "FastAPI", "pgbench", "Prism", "the administrator"
PER_PAGE = 20

#: Endpoint of the contract, name, what follows /api/v4/, and the least share of FastAPI's requests a second.
LISTS = (
    (1, "jobs-keyset", "projects/{project_id}/jobs?pagination=keyset", 8.0),
    (1, "jobs-counted", "projects/{project_id}/jobs", 6.0),
    (2, "pipeline-jobs", "projects/{project_id}/pipelines/{pipeline_id}/jobs", 5.0),
    (3, "bridges", "projects/{project_id}/pipelines/{bridged_id}/bridges", 5.0),
    (12, "status-check-services", "projects/{project_id}/external_status_checks", 5.0),
    (16, "status-checks", "projects/{project_id}/merge_requests/1/status_checks", 5.0),
    (19, "remote-mirrors", "projects/{project_id}/remote_mirrors", 5.0),
    (25, "events-keyset", "audit_events?pagination=keyset", 5.0),
    (25, "events-counted", "audit_events", 5.0),
    (27, "group-events", "groups/{group_id}/audit_events", 5.0),
    (29, "project-events", "projects/{project_id}/audit_events", 5.0),
    (32, "project-invitations", "projects/{project_id}/invitations", 5.0),
    (32, "group-invitations", "groups/{group_id}/invitations", 5.0),
    (None, "projects", "projects?simple=true", 5.0),
)
#: Of these, what the statement itself reaches without a server around it, and the least share of that.
AGAINST_POSTGRESQL = {"jobs-keyset": 0.6, "jobs-counted": 0.6, "projects": 0.6}
#: What authors of clients use today answers with examples; it is shown for one list.
LISTS_AGAINST_PRISM = ("jobs-keyset",)


def _list_sides(name: str, path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids)
    sides: dict[str, Measure | NotMeasured] = {OURS: ours(served, path)}
    sides[FASTAPI] = peer(bench, fastapi_server, path)
    if name in AGAINST_POSTGRESQL:
        sides[PGBENCH] = _postgresql(served, path)
    if name in LISTS_AGAINST_PRISM:
        sides[PRISM] = peer(bench, prism_server, path, below="")
    return sides


def ours(served: Service, path: str, headers: dict[str, str] | None = None) -> Measure:
    """Our server, with its database's processor time."""
    url = f"{served.api.base_url}/api/v4/{path}"
    return lambda seconds: http_requests(
        url, seconds, HEADERS if headers is None else headers, pids=served.running.pids
    )


def peer(
    bench: Bench, make: Callable[[Bench], AbstractContextManager[Peer]], path: str, *, below: str = "/api/v4"
) -> Measure | NotMeasured:
    """The same request of a peer, or why there is none."""
    try:
        found = bench.use(make)
    except NotMeasured as reason:
        return reason
    return lambda seconds: http_requests(f"{found.url}{below}/{path}", seconds, HEADERS, pids=found.pids)


def _postgresql(served: Service, path: str) -> Measure:
    script = served.statements[path]
    return lambda seconds: statements(script, connection(served.cluster), seconds, POOL)


def _deep(bench: Bench) -> Sides:
    served = bench.use(service)
    path = f"projects/{served.ids['project_id']}/jobs?per_page={PER_PAGE}&pagination=keyset"
    after = max(served.ids["job_id"] - DEEP * PER_PAGE, PER_PAGE)
    cursor = base64.urlsafe_b64encode(b'{"id":"%d","_kd":"n"}' % after).decode()
    return {OURS: ours(served, f"{path}&cursor={cursor}"), "page 1": ours(served, path)}


def _as_member(path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids)
    return {OURS: ours(served, path, {"PRIVATE-TOKEN": served.member}), ADMINISTRATOR: ours(served, path)}


def _list_row(endpoint: int | None, name: str, path: str, aim: float) -> Row:
    number = f"endpoint {endpoint}: " if endpoint else ""
    aims = {FASTAPI: aim}
    if name in AGAINST_POSTGRESQL:
        aims[PGBENCH] = AGAINST_POSTGRESQL[name]
    shown = (
        path.replace("{project_id}", ":id")
        .replace("{group_id}", ":id")
        .format(pipeline_id=":pipeline_id", bridged_id=":pipeline_id")
    )
    return Row(name, f"{number}GET /{shown}", partial(_list_sides, name, path), aims=aims)


LIST_ROWS = (
    *(_list_row(*listed) for listed in LISTS),
    Row(
        "jobs-of-member",
        "endpoint 1, keyset, asked by a Developer of the group",
        partial(_as_member, "projects/{project_id}/jobs?pagination=keyset"),
        aims={ADMINISTRATOR: 0.9},
    ),
    Row(
        "projects-of-member",
        "GET /projects?simple=true, asked by a Developer of the group",
        partial(_as_member, "projects?simple=true"),
        aims={ADMINISTRATOR: 0.7},
    ),
    Row("jobs-deep", f"endpoint 1, keyset page {DEEP:,}", _deep, aims={"page 1": 1 / 1.2}),
)


BARE_HANDLER = "a bare aiohttp handler"

#: Endpoint of the contract, name, what follows /api/v4/, and the least share of the bare handler, where one is wanted.
READS = (
    (None, "user", "user", 0.3),
    (4, "job-of-token", "job", None),
    (5, "allowed-agents", "job/allowed_agents", None),
    (6, "one-job", "projects/{project_id}/jobs/{job_id}", 0.3),
    (7, "trace", "projects/{ci_project_id}/jobs/{traced_id}/trace", None),
    (20, "one-mirror", "projects/{project_id}/remote_mirrors/{mirror_id}", None),
    (26, "one-event", "audit_events/{project_event_id}", None),
    (28, "one-group-event", "groups/{group_id}/audit_events/{group_event_id}", None),
    (30, "one-project-event", "projects/{project_id}/audit_events/{project_event_id}", None),
)
WITH_JOB_TOKEN = ("job-of-token", "allowed-agents")
READS_AGAINST_FASTAPI = ("one-job",)
READS_AGAINST_PRISM = ("user", "one-job")


def _read_sides(name: str, path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids, traced_id=served.traced["id"])
    headers = {"JOB-TOKEN": served.traced["token"]} if name in WITH_JOB_TOKEN else HEADERS
    sides: dict[str, Measure | NotMeasured] = {
        OURS: ours(served, path, headers),
        BARE_HANDLER: _bare(bench, served, name, path, headers),
    }
    if name in READS_AGAINST_FASTAPI:
        sides[FASTAPI] = peer(bench, fastapi_server, path)
    if name in READS_AGAINST_PRISM:
        sides[PRISM] = peer(bench, prism_server, path, below="")
    return sides


def _bare(
    bench: Bench, served: Service, name: str, path: str, headers: dict[str, str]
) -> Measure | NotMeasured:
    try:
        handler = bench.use(bare_server)
    except NotMeasured as reason:
        return reason
    request = urllib.request.Request(f"{served.api.base_url}/api/v4/{path}", headers=headers)
    with urllib.request.urlopen(request) as answer:
        (handler.folder / name).write_bytes(answer.read())
    return lambda seconds: http_requests(f"{handler.url}/{name}", seconds, headers, pids=handler.pids)


def _read_row(endpoint: int | None, name: str, path: str, aim: float | None) -> Row:
    number = f"endpoint {endpoint}: " if endpoint else ""
    shown = path.replace("{", ":").replace("}", "").replace("ci_project_id", "id").replace("project_id", "id")
    aims = {} if aim is None else {BARE_HANDLER: aim}
    return Row(
        name, f"{number}GET /{shown.replace('group_id', 'id')}", partial(_read_sides, name, path), aims=aims
    )


SINGLE_READ_ROWS = tuple(_read_row(*read) for read in READS)
