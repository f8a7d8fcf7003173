"""How long servers take to start, and how much memory they have."""

import contextlib
import re
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from forgelet.local import embedded_postgres
from forgelet.local.embedded_postgres import Cluster
from forgelet.local.supervisor import POSTGRESQL
from forgelet.testing import starting
from scripts.bench.harness.measuring import http_requests
from scripts.bench.harness.runs import OURS, Bench, Measure, NotMeasured, Row, Sample, Sides
from scripts.bench.peer import servers
from scripts.bench.rows.lists import PRISM
from scripts.bench.scene import edges
from scripts.bench.scene.service import HEADERS, service

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
        bench.use(servers.prism)
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
    with embedded_postgres.temporary() as cluster:
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
    with servers.prism(bench):
        return Sample(time.perf_counter() - begun)


def _testing_memory(bench: Bench) -> Sides:
    def measure(_: float) -> Sample:
        with starting.running(settings=bench.use(_warm)) as forgelet:
            return Sample(sum(_memory(pid) for pid in _servers(forgelet.pid)) / MEGABYTE)

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


def _servers(pid: int | None) -> list[int]:
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


def _row(name: str, what: str, sides: object, unit: str, most: float | None) -> Row:
    assert callable(sides)
    return Row(name, what, sides, unit, most=most, less_is_better=True, warmed_up=False)


ROWS = (
    _row("start", "`forgelet up --testing`, a warm start until it is ready", _starts, "s", 1.6),
    _row("memory-testing", "its API server and edge in memory, together", _testing_memory, "MB", 170.0),
    _row("memory-api", "the API server in memory, after load", _api_memory, "MB", None),
    _row("memory-edge", "the edge in memory, with what the other rows have read", _edge_memory, "MB", None),
)
