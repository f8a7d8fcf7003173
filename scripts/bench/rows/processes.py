"""How long servers take to start and to reset, and how much memory they use."""

import contextlib
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from api_server.state.migrate import migrate
from forgelet.local.embedded_postgres import SUPERUSER, Cluster, autocommitting, temporary_cluster
from forgelet.local.supervisor import POSTGRESQL
from forgelet.testing import starting
from forgelet.testing.server import Forgelet
from scripts.bench.measuring import http_requests
from scripts.bench.rows.edge import new_edge
from scripts.bench.rows.reads import PRISM, prism_server
from scripts.bench.runs import OURS, Bench, Measure, Row, Sample, Sides, seconds_of, side
from scripts.bench.service import HEADERS, service
from scripts.harness.contents import commit_values, user_values
from scripts.harness.processes import memory_bytes

MEGABYTE = 1e6

# --- start-up and memory --------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _warm(_: Bench) -> Iterator[dict[str, str]]:
    """Yield the settings of a server for tests that has been started once."""
    with tempfile.TemporaryDirectory(dir="/tmp") as caches:
        settings = {"XDG_CACHE_HOME": caches}
        with starting.running(settings=settings):
            pass
        yield settings


@contextlib.contextmanager
def _stopped_postgres(_: Bench) -> Iterator[Cluster]:
    """Yield a stopped PostgreSQL that has been started once."""
    with temporary_cluster() as cluster:
        cluster.stop()
        yield cluster


def _starts(bench: Bench) -> Sides:
    def started(context: contextlib.AbstractContextManager[object]) -> Sample:
        with contextlib.ExitStack() as stack:
            return Sample(seconds_of(lambda: stack.enter_context(context)))

    def postgres(_: float) -> Sample:
        cluster = bench.use(_stopped_postgres)
        seconds = seconds_of(lambda: cluster.start(cluster.log))
        cluster.stop()
        return Sample(seconds)

    def prism() -> Measure:
        bench.use(prism_server)  # this starts the service too, whose description Prism uses
        return lambda _: started(prism_server(bench))

    return {
        OURS: lambda _: started(starting.running(settings=bench.use(_warm))),
        POSTGRESQL: postgres,
        PRISM: side(prism),
    }


def _testing_memory(bench: Bench) -> Sides:
    def measure(_: float) -> Sample:
        with starting.running(settings=bench.use(_warm)) as forgelet:
            children = Path(f"/proc/{forgelet.pid}/task/{forgelet.pid}/children").read_text().split()
            # PostgreSQL is a child too
            command = {pid: Path(f"/proc/{pid}/cmdline").read_bytes() for pid in children}
            servers = [int(pid) for pid in children if b"forgelet.local.server" in command[pid]]
            return Sample(sum(map(_memory, servers)) / MEGABYTE)

    return {OURS: measure}


def _api_memory(bench: Bench) -> Sides:
    """Measure the memory after all connections have read lists."""
    served = bench.use(service)
    url = f"{served.api.base_url}/api/v4/projects/{served.ids['project_id']}/jobs"
    return {OURS: partial(_memory_after, url, HEADERS, served.running.pid)}


def _edge_memory(bench: Bench) -> Sides:
    edge = bench.use(new_edge)
    return {OURS: partial(_memory_after, edge.url("/g/app/-/raw/main/x/4KiB"), {}, edge.pid)}


def _memory_after(url: str, headers: dict[str, str], pid: int, seconds: float) -> Sample:
    http_requests(url, seconds, headers)
    return Sample(_memory(pid) / MEGABYTE)


def _memory(pid: int) -> int:
    """Return the process's share of memory in bytes (PSS: pages of several processes are divided among them)."""
    return memory_bytes(pid, "smaps_rollup", "Pss")


_start, _memory_row = (partial(Row, unit=unit, less_is_better=True, warmed_up=False) for unit in ("s", "MB"))
_warm_start = "`forgelet up --testing`, a warm start until it is ready"
PROCESS_ROWS = (
    _start("start", _warm_start, _starts, most=1.6),
    _memory_row("memory-testing", "its API server and edge in memory, together", _testing_memory, most=170.0),
    _memory_row("memory-api", "the API server in memory, after load", _api_memory),
    _memory_row("memory-edge", "the edge in memory, with what the other rows have read", _edge_memory),
)

# --- resets of a server for tests, beside the usual way to a clean database -----------------------------------------

COPY = "CREATE DATABASE ... TEMPLATE, and DROP"
MILLISECONDS = 20.0
_CONFIG = "\n".join(f"job{number}: {{script: 'true'}}" for number in range(5))


@contextlib.contextmanager
def _server(_: Bench) -> Iterator[Forgelet]:
    with (
        tempfile.TemporaryDirectory(dir="/tmp") as caches,
        starting.running(settings={"XDG_CACHE_HOME": caches}) as forgelet,
    ):
        yield forgelet


@contextlib.contextmanager
def _worn_server(bench: Bench) -> Iterator[Forgelet]:
    """Yield the server after many small resets, so that their remains would affect the measurement."""
    forgelet = bench.use(_server)
    for _ in range(bench.size.resets):
        forgelet.api.post("projects", {"path": "project", "initialize_with_readme": True})
        forgelet.reset()
    yield forgelet


@contextlib.contextmanager
def _database(_: Bench) -> Iterator[tuple[str, str]]:
    """Yield the URL of a cluster, and the name of a migrated database in it."""
    with temporary_cluster() as cluster:
        migrate(cluster.url())
        yield cluster.url("postgres", SUPERUSER), urlsplit(cluster.url()).path.removeprefix("/")


def _fresh(bench: Bench) -> Sides:
    forgelet, database = bench.use(_server), bench.use(_database)
    return {OURS: lambda _: _reset(forgelet), COPY: lambda _: _copied(*database)}


def _worn(bench: Bench) -> Sides:
    forgelet = bench.use(_worn_server)
    return {OURS: lambda _: _reset(forgelet)}


def _reset(forgelet: Forgelet) -> Sample:
    """Measure the milliseconds that the client waits for a reset, with the edge's part, after it has created 5 users,
    3 projects, 2 repositories and a pipeline with 5 jobs."""
    for number in range(5):
        forgelet.api.post("users", user_values(f"user-{number}"))
    for number in range(3):
        values = {"path": f"project-{number}", "initialize_with_readme": number < 2}
        project = forgelet.api.post("projects", values)
        if number == 0:
            commit = commit_values("main", {".gitlab-ci.yml": _CONFIG}, message="CI")
            forgelet.api.post(f"projects/{project['id']}/repository/commits", commit)
    return Sample(seconds_of(forgelet.reset) * 1000)


def _copied(url: str, template: str) -> Sample:
    """Measure the milliseconds that PostgreSQL needs to copy a migrated database and to drop the copy."""
    with autocommitting(url) as cursor:

        def copy() -> None:
            cursor.execute(f"CREATE DATABASE copy TEMPLATE {template}")
            cursor.execute("DROP DATABASE copy WITH (FORCE)")

        return Sample(seconds_of(copy) * 1000)


_reset_row = partial(Row, unit="ms", most=MILLISECONDS, less_is_better=True)
RESET_ROWS = (
    _reset_row("reset", "a reset of a server for tests", _fresh, aims={COPY: 1.0}),
    _reset_row("reset-worn", "the same after 400 others", _worn),
)
