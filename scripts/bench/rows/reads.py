"""Each list and each read of one resource in the API's contract, against FastAPI, PostgreSQL, Prism and a bare
handler."""

import base64
import contextlib
import importlib.util
import os
import sys
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import attrs

from scripts.bench.measuring import http_requests, listening, need, small_server, statements
from scripts.bench.runs import OURS, Bench, Make, Measure, NotMeasured, Row, Sides, side
from scripts.bench.service import DEEP, HEADERS, POOL, TOKEN, Service, connection, service
from tests.support.ports import free_port

FASTAPI, PGBENCH, PRISM, ADMINISTRATOR = "FastAPI", "pgbench", "Prism", "the administrator"
BARE_HANDLER = "a bare aiohttp handler"
PER_PAGE = 20
#: Number of pages that are requested in turn when no two requests in a row are the same.
DISTINCT_PAGES = 1_000
PAGE_1 = "page 1"


@attrs.frozen
class Peer:
    """A server to compare with: its URL, and the processes whose processor time counts. The bare handler answers with
    the files of `folder`."""

    url: str
    pids: list[int]
    folder: Path | None = None


@contextlib.contextmanager
def fastapi_server(bench: Bench) -> Iterator[Peer]:
    """Run FastAPI on uvicorn with uvloop and httptools, with the service's database."""
    for module in ("fastapi", "sqlalchemy", "asyncpg", "pydantic", "uvicorn", "httptools"):
        if importlib.util.find_spec(module) is None:
            raise NotMeasured(f"{module} is not installed (the extra `bench` has it).")
    served, port = bench.use(service), free_port()
    variables = {"BENCH_DATABASE_URL": served.cluster.url(), "BENCH_POOL": str(POOL), "BENCH_TOKEN": TOKEN}
    command = [sys.executable, "-m", "uvicorn", "scripts.bench.fastapi_app:app", "--port", str(port)]
    command += ["--no-access-log", "--loop", "uvloop", "--http", "httptools"]
    with listening(command, port, bench.new_folder() / "log", os.environ | variables) as pid:
        yield Peer(f"http://127.0.0.1:{port}/api/v4", [pid, served.running.database])


@contextlib.contextmanager
def bare_server(bench: Bench) -> Iterator[Peer]:
    """Run an aiohttp handler that does nothing else."""
    folder = bench.new_folder()
    with small_server("bare", str(folder)) as (port, pid):
        yield Peer(f"http://127.0.0.1:{port}", [pid], folder)


@contextlib.contextmanager
def prism_server(bench: Bench) -> Iterator[Peer]:
    """Run Stoplight Prism with our description; it answers with the examples in it."""
    need("prism")
    port, folder = free_port(), bench.new_folder()
    description = folder / "openapi.json"
    with urllib.request.urlopen(f"{bench.use(service).api.base_url}/api/v4/openapi.json") as answer:
        description.write_bytes(answer.read())
    command = ["prism", "mock", "--port", str(port), "--host", "127.0.0.1", "--verboseLevel", "error"]
    with listening([*command, str(description)], port, folder / "log") as pid:
        yield Peer(f"http://127.0.0.1:{port}", [pid])


def _ours(served: Service, path: str, headers: dict[str, str]) -> Measure:
    """Measure our server, with its database's processor time."""
    url = f"{served.api.base_url}/api/v4/{path}"
    return lambda seconds: http_requests(url, seconds, headers, pids=served.running.pids)


def _peer(bench: Bench, make: Make[Peer], path: str) -> Measure:
    """Measure the same request to a peer."""
    peer = bench.use(make)
    return lambda seconds: http_requests(f"{peer.url}/{path}", seconds, HEADERS, pids=peer.pids)


# --- lists ----------------------------------------------------------------------------------------------------------

#: Number of the endpoint in the contract, name, path below /api/v4/, and the lowest acceptable share of FastAPI's
#: requests per second.
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
#: Lists that are compared with the rate at which PostgreSQL alone runs their statement, and the lowest acceptable
#: share of it.
AGAINST_POSTGRESQL = {"jobs-keyset": 0.6, "jobs-counted": 0.6, "projects": 0.6}
#: Prism, which authors of clients use today, answers with examples; a list and two single reads are compared with it.
AGAINST_PRISM = ("jobs-keyset", "user", "one-job")


def _list_sides(name: str, path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids)
    sides: dict[str, Measure | NotMeasured] = {
        OURS: _ours(served, path, HEADERS),
        FASTAPI: side(lambda: _peer(bench, fastapi_server, path)),
    }
    if name in AGAINST_POSTGRESQL:
        script, database = served.statements[path], connection(served.cluster)
        sides[PGBENCH] = lambda seconds: statements(script, database, seconds, POOL)
    if name in AGAINST_PRISM:
        sides[PRISM] = side(lambda: _peer(bench, prism_server, path))
    return sides


def _keyset_page(served: Service, number: int = 1) -> str:
    path = f"projects/{served.ids['project_id']}/jobs?per_page={PER_PAGE}&pagination=keyset"
    if number == 1:
        return path
    after = max(served.ids["job_id"] - number * PER_PAGE, PER_PAGE)
    return f"{path}&cursor=" + base64.urlsafe_b64encode(b'{"id":"%d","_kd":"n"}' % after).decode()


def _deep(bench: Bench) -> Sides:
    served = bench.use(service)
    return {
        OURS: _ours(served, _keyset_page(served, DEEP), HEADERS),
        PAGE_1: _ours(served, _keyset_page(served), HEADERS),
    }


def _pages(bench: Bench) -> Sides:
    """Request one page after another, as clients do, instead of the same one again and again."""
    served, script = bench.use(service), bench.new_folder() / "pages.lua"
    targets = (f'"/api/v4/{_keyset_page(served, number)}"' for number in range(2, DISTINCT_PAGES + 2))
    script.write_text(
        f"local targets, count = {{{', '.join(targets)}}}, 0\n"
        'request = function() count = count % #targets + 1; return wrk.format("GET", targets[count]) end\n'
    )
    url, pids = served.api.base_url, served.running.pids
    return {
        OURS: lambda seconds: http_requests(url, seconds, HEADERS, script=script, pids=pids),
        PAGE_1: _ours(served, _keyset_page(served), HEADERS),
    }


def _as_member(path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids)
    member = {"PRIVATE-TOKEN": served.member}
    return {OURS: _ours(served, path, member), ADMINISTRATOR: _ours(served, path, HEADERS)}


def _shown(endpoint: int | None, path: str) -> str:
    """Return a path as documentation writes it, with the number of its endpoint."""
    for name in ("ci_project_id", "project_id", "group_id"):
        path = path.replace(f"{{{name}}}", ":id")
    path = path.replace("{bridged_id}", ":pipeline_id").replace("{", ":").replace("}", "")
    return f"endpoint {endpoint}: GET /{path}" if endpoint else f"GET /{path}"


def _list_row(endpoint: int | None, name: str, path: str, aim: float) -> Row:
    aims = {FASTAPI: aim} | ({PGBENCH: AGAINST_POSTGRESQL[name]} if name in AGAINST_POSTGRESQL else {})
    return Row(name, _shown(endpoint, path), partial(_list_sides, name, path), aims=aims)


JOBS, PROJECTS = "projects/{project_id}/jobs?pagination=keyset", "projects?simple=true"
BY_MEMBER = "asked by a Developer of the group"
LIST_ROWS = (
    *(_list_row(*listed) for listed in LISTS),
    Row(
        "jobs-of-member",
        f"endpoint 1, keyset, {BY_MEMBER}",
        partial(_as_member, JOBS),
        aims={ADMINISTRATOR: 0.9},
    ),
    Row(
        "projects-of-member",
        f"GET /{PROJECTS}, {BY_MEMBER}",
        partial(_as_member, PROJECTS),
        aims={ADMINISTRATOR: 0.7},
    ),
    Row("jobs-deep", f"endpoint 1, keyset page {DEEP:,}", _deep, aims={PAGE_1: 1 / 1.2}),
    Row(
        "jobs-pages",
        f"endpoint 1, {DISTINCT_PAGES:,} keyset pages in turn",
        _pages,
        aims={PAGE_1: 1 / 1.2},
    ),
)

# --- single resources -----------------------------------------------------------------------------------------------

#: Number of the endpoint in the contract, name, path below /api/v4/, and the lowest acceptable share of the bare
#: handler's rate, if there is one.
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


def _read_sides(name: str, path: str, bench: Bench) -> Sides:
    served = bench.use(service)
    path = path.format(**served.ids, traced_id=served.traced["id"])
    headers = {"JOB-TOKEN": served.traced["token"]} if name in WITH_JOB_TOKEN else HEADERS

    def bare() -> Measure:
        """Measure the bare handler with the same bytes as our answer."""
        peer = bench.use(bare_server)
        assert peer.folder is not None
        request = urllib.request.Request(f"{served.api.base_url}/api/v4/{path}", headers=headers)
        with urllib.request.urlopen(request) as answer:
            (peer.folder / name).write_bytes(answer.read())
        return lambda seconds: http_requests(f"{peer.url}/{name}", seconds, headers, pids=peer.pids)

    sides: dict[str, Measure | NotMeasured] = {OURS: _ours(served, path, headers), BARE_HANDLER: side(bare)}
    if name == "one-job":
        sides[FASTAPI] = side(lambda: _peer(bench, fastapi_server, path))
    if name in AGAINST_PRISM:
        sides[PRISM] = side(lambda: _peer(bench, prism_server, path))
    return sides


def _read_row(endpoint: int | None, name: str, path: str, aim: float | None) -> Row:
    aims = {} if aim is None else {BARE_HANDLER: aim}
    return Row(name, _shown(endpoint, path), partial(_read_sides, name, path), aims=aims)


SINGLE_READ_ROWS = tuple(_read_row(*read) for read in READS)
