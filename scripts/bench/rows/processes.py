"""How long servers take to start and to become clean again, and how much memory they have."""

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import psycopg2

from api_server.state.migrate import migrate
from forgelet.local import embedded_postgres
from forgelet.local.embedded_postgres import SUPERUSER, Cluster, temporary_cluster
from forgelet.local.supervisor import POSTGRESQL
from forgelet.testing import starting
from forgelet.testing.server import Forgelet
from scripts.bench.measuring import http_requests
from scripts.bench.rows import edge as edges
from scripts.bench.rows import reads
from scripts.bench.rows.reads import PRISM
from scripts.bench.runs import OURS, Bench, Measure, NotMeasured, Row, Sample, Sides
from scripts.bench.service import HEADERS, service

MEGABYTE = 1e6


@contextlib.contextmanager
def _warm(_: Bench) -> Iterator[dict[str, str]]:
    """Settings of a server for tests that has been started once."""
    with tempfile.TemporaryDirectory(dir="/tmp") as caches:
        settings = {"XDG_CACHE_HOME": caches}
        with starting.running(settings=settings):
            pass
        yield settings


def _starts(bench: Bench) -> Sides:
    sides: dict[str, Measure | NotMeasured] = {
        OURS: lambda _: _started(bench.use(_warm)),
        POSTGRESQL: lambda _: _postgres_started(bench.use(_stopped_postgres)),
    }
    try:
        bench.use(reads.prism_server)
        sides[PRISM] = lambda _: _prism_started(bench)
    except NotMeasured as reason:
        sides[PRISM] = reason
    return sides


def _started(settings: dict[str, str]) -> Sample:
    begun = time.perf_counter()
    with starting.running(settings=settings):
        return Sample(time.perf_counter() - begun)


@contextlib.contextmanager
def _stopped_postgres(_: Bench) -> Iterator[Cluster]:
    """A PostgreSQL that has been started once."""
    with embedded_postgres.temporary_cluster() as cluster:
        cluster.stop()
        yield cluster


def _postgres_started(cluster: Cluster) -> Sample:
    begun = time.perf_counter()
    cluster.start(cluster.log)
    sample = Sample(time.perf_counter() - begun)
    cluster.stop()
    return sample


def _prism_started(bench: Bench) -> Sample:
    bench.use(service)  # which has the description, and is there already
    begun = time.perf_counter()
    with reads.prism_server(bench):
        return Sample(time.perf_counter() - begun)


def _testing_memory(bench: Bench) -> Sides:
    def measure(_: float) -> Sample:
        with starting.running(settings=bench.use(_warm)) as forgelet:
            return Sample(sum(_memory(pid) for pid in _server_pids(forgelet.pid)) / MEGABYTE)

    return {OURS: measure}


def _api_memory(bench: Bench) -> Sides:
    """After lists have been read by all connections."""
    served = bench.use(service)
    url = f"{served.api.base_url}/api/v4/projects/{served.ids['project_id']}/jobs"

    def measure(seconds: float) -> Sample:
        http_requests(url, seconds, HEADERS)
        return Sample(_memory(served.running.pid) / MEGABYTE)

    return {OURS: measure}


def _edge_memory(bench: Bench) -> Sides:
    edge = bench.use(edges.logged_edge)
    url = f"http://127.0.0.1:{edge.port}/g/app/-/raw/main/x/4KiB"

    def measure(seconds: float) -> Sample:
        http_requests(url, seconds)
        return Sample(_memory(edge.pid) / MEGABYTE)

    return {OURS: measure}


def _server_pids(pid: int | None) -> list[int]:
    """Children that are Python's; PostgreSQL is one too."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"forgelet.local.server" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def _memory(pid: int) -> int:
    """Its share of what is in memory (PSS: pages that several processes share are divided among them), in bytes."""
    found = re.search(r"^Pss: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def _process_row(name: str, what: str, sides: object, unit: str, most: float | None) -> Row:
    assert callable(sides)
    return Row(name, what, sides, unit, most=most, less_is_better=True, warmed_up=False)


PROCESS_ROWS = (
    _process_row("start", "`forgelet up --testing`, a warm start until it is ready", _starts, "s", 1.6),
    _process_row(
        "memory-testing", "its API server and edge in memory, together", _testing_memory, "MB", 170.0
    ),
    _process_row("memory-api", "the API server in memory, after load", _api_memory, "MB", None),
    _process_row(
        "memory-edge", "the edge in memory, with what the other rows have read", _edge_memory, "MB", None
    ),
)


COPY = "CREATE DATABASE ... TEMPLATE, and DROP"
MILLISECONDS = 20.0
_CONFIG = "\n".join(f"job{number}: {{script: 'true'}}" for number in range(5))


@contextlib.contextmanager
def _testing_server(_: Bench) -> Iterator[Forgelet]:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as caches,
        starting.running(settings={"XDG_CACHE_HOME": caches}) as forgelet,
    ):
        yield forgelet


@contextlib.contextmanager
def _worn_server(bench: Bench) -> Iterator[Forgelet]:
    """After many small resets, so that what is left of them would show."""
    forgelet = bench.use(_testing_server)
    for _ in range(bench.size.resets):
        forgelet.api.post("projects", {"path": "project", "initialize_with_readme": True})
        forgelet.reset()
    yield forgelet


@contextlib.contextmanager
def _database(_: Bench) -> Iterator[tuple[str, str]]:
    """The URL of a cluster, and a migrated database in it."""
    with temporary_cluster() as cluster:
        migrate(cluster.url())
        yield cluster.url("postgres", SUPERUSER), urlsplit(cluster.url()).path.removeprefix("/")


def _fresh(bench: Bench) -> Sides:
    forgelet, database = bench.use(_testing_server), bench.use(_database)
    return {OURS: lambda _: _reset(forgelet), COPY: lambda _: _copied(*database)}


def _worn(bench: Bench) -> Sides:
    forgelet = bench.use(_worn_server)
    return {OURS: lambda _: _reset(forgelet)}


def _reset(forgelet: Forgelet) -> Sample:
    """Milliseconds that the client waits, the edge's share included, after 5 users, 3 projects, 2 repositories and a
    pipeline with 5 jobs were made."""
    for number in range(5):
        name = f"user-{number}"
        user = {"username": name, "name": name, "email": f"{name}@example.org"}
        forgelet.api.post("users", user | {"force_random_password": True, "skip_confirmation": True})
    for number in range(3):
        project = {"path": f"project-{number}", "initialize_with_readme": number < 2}
        made = forgelet.api.post("projects", project)
        if number == 0:
            action = {"action": "create", "file_path": ".gitlab-ci.yml", "content": _CONFIG}
            commit = {"branch": "main", "commit_message": "CI", "actions": [action]}
            forgelet.api.post(f"projects/{made['id']}/repository/commits", commit)
    return _timed(forgelet.reset)


def _copied(url: str, template: str) -> Sample:
    """Milliseconds that it takes to replace a migrated database by a copy of another one, as quick as PostgreSQL is."""
    with contextlib.closing(psycopg2.connect(url)) as connection:
        connection.autocommit = True
        with connection.cursor() as cursor:

            def copy() -> None:
                cursor.execute(f"CREATE DATABASE copy TEMPLATE {template}")
                cursor.execute("DROP DATABASE copy WITH (FORCE)")

            return _timed(copy)


def _timed(work: object) -> Sample:
    assert callable(work)
    begun = time.perf_counter()
    work()
    return Sample((time.perf_counter() - begun) * 1000)


_reset_row = partial(Row, unit="ms", most=MILLISECONDS, less_is_better=True)
RESET_ROWS = (
    _reset_row("reset", "a reset of a server for tests", _fresh, aims={COPY: 1.0}),
    _reset_row("reset-worn", "the same after 400 others", _worn),
)
