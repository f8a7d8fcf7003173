"""`forgelet up --testing`: how long a start takes once there has been one, and how much memory both servers have."""

import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from forgelet.testing import starting
from scripts.bench.rows import Limit

ROUNDS = 5
SECONDS, MEGABYTES = 2.0, 170.0


def measure() -> Iterator[Limit]:
    """From the start of the command to its ready file; then each server's share of what is in memory (PSS: pages that
    several processes share are divided among them)."""
    with tempfile.TemporaryDirectory(dir="/tmp") as caches:
        warm = {"XDG_CACHE_HOME": caches}
        with starting.running(settings=warm):
            pass
        rounds = [_start(warm) for _ in range(ROUNDS)]
    times, sizes = (statistics.median(values) for values in zip(*rounds, strict=True))
    yield Limit("forgelet up --testing, a warm start until it is ready", times, SECONDS, "s")
    yield Limit("its API server and edge in memory, together", sizes / 1e6, MEGABYTES, "MB")


def _start(settings: dict[str, str]) -> tuple[float, float]:
    """Seconds and bytes."""
    begun = time.perf_counter()
    with starting.running(settings=settings) as forgelet:
        took = time.perf_counter() - begun
        return took, sum(_memory(pid) for pid in _servers(forgelet.pid))


def _servers(pid: int | None) -> list[int]:
    """Children that are Python's; PostgreSQL is one too."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [
        int(child)
        for child in children
        if b"forgelet.local.server" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]


def _memory(pid: int) -> int:
    found = re.search(r"^Pss: +(\d+) kB$", Path(f"/proc/{pid}/smaps_rollup").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
