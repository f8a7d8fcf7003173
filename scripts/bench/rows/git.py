"""Clones and pushes over HTTP, against `git http-backend` behind nginx."""

import secrets
import shutil
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from scripts.bench.harness.runs import OURS, Bench, Measure, NotMeasured, Row, Sample, Sides
from scripts.bench.scene import git_servers
from scripts.bench.scene.git_servers import GitServer
from scripts.bench.scene.many_rows import git, grow

BACKEND = "git http-backend behind nginx"
AIMS = {BACKEND: 0.9}


def _both(measure: Callable[[GitServer], Measure], bench: Bench) -> Sides:
    sides: dict[str, Measure | NotMeasured] = {OURS: measure(bench.use(git_servers.ours))}
    try:
        sides[BACKEND] = measure(bench.use(git_servers.http_backend))
    except NotMeasured as reason:
        sides[BACKEND] = reason
    return sides


def _clones(name: str, bench: Bench) -> Sides:
    folder = bench.new_folder()
    return _both(lambda server: lambda _: _cloned(server, name, folder / "clone.git"), bench)


def _cloned(server: GitServer, name: str, into: Path) -> Sample:
    seconds = _timed(lambda: git(into, "clone", "--quiet", "--bare", f"{server.url}/{name}.git", str(into)))
    shutil.rmtree(into)
    return Sample(seconds)


def _pushes(size: int, times: int, bench: Bench) -> Sides:
    folder = bench.new_folder()

    def measure(server: GitServer) -> Measure:
        work = folder / f"{secrets.token_hex(4)}.git"
        git(work, "clone", "--quiet", "--bare", str(bench.use(git_servers.source)["small"]), str(work))
        return lambda _: Sample(statistics.median(_pushed(server, work, size) for _ in range(times)))

    return _both(measure, bench)


def _pushed(server: GitServer, work: Path, size: int) -> float:
    """Seconds for one commit with so many new bytes, on a branch that the server has."""
    if not git(work, "for-each-ref", "refs/heads/topic"):
        git(work, "branch", "topic", "main")
        git(work, "push", "--quiet", f"{server.url}/small.git", f"topic:{work.stem}")
    grow(work, "topic", size)
    return _timed(lambda: git(work, "push", "--quiet", f"{server.url}/small.git", f"topic:{work.stem}"))


def _timed(work: Callable[[], object]) -> float:
    """Seconds by the clock: fcgiwrap does not wait for its children, so nobody knows what they have used."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _row(name: str, what: str, sides: Callable[[Bench], Sides], *, warmed_up: bool = True) -> Row:
    return Row(name, what, sides, "s", aims=AIMS, less_is_better=True, warmed_up=warmed_up)


ROWS = (
    _row("git-clone-5m", "git clone of 5 MB", partial(_clones, "small")),
    _row("git-clone-200m", "git clone of 200 MB", partial(_clones, "large"), warmed_up=False),
    _row("git-push", "git push of one commit of 1 KB", partial(_pushes, 1_000, 5)),
    _row("git-push-5m", "git push of one commit of 5 MB", partial(_pushes, 5_000_000, 1)),
)
