"""Mirror runs that find one changed ref among 5,000, and that push all of them, beside plain `git push`."""

import asyncio
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from aiohttp.resolver import ThreadedResolver

from api_server.mirrors.plan import Selection, all_branches
from api_server.mirrors.transport import Target, update_target
from api_server.outbound.policy import Policy
from scripts.bench.rows import Row
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http

REFS = 5000
ROUNDS = 9
FIRST_ROUNDS = 3
#: A run has to list the target's refs before it pushes, and checks its address.
AIM = 1 / 1.5


def measure() -> Iterator[Row]:
    """Against `git http-backend` behind Basic authentication, on loopback."""
    with tempfile.TemporaryDirectory() as folder:
        run, push = asyncio.run(_one_changed(Path(folder)))
    yield Row(f"Mirror run, 1 of {REFS:,} refs", 60 / run, 60 / push, "git push of that ref", AIM, "a minute")
    with tempfile.TemporaryDirectory() as folder:
        run, push = asyncio.run(_all_new(Path(folder)))
    rates = REFS / run, REFS / push
    yield Row(f"First mirror run, {REFS:,} refs", *rates, "git push of all branches", AIM, "refs/s")


async def _one_changed(folder: Path) -> tuple[float, float]:
    """Seconds of a run and of a push, medians of rounds by turns."""
    source, tip = _source(folder)
    target = _target(folder)
    source.git("push", "--quiet", str(target.path), "refs/*:refs/*")
    target.git("pack-refs", "--all")
    async with serve_http(HttpTarget(target.path.parent)) as server:
        url = str(server.make_url("/target.git"))
        runs, pushes = [], []
        for number in range(ROUNDS):
            tip = _next_commit(source, tip, f"run {number}")
            runs.append(await _timed(_run(source, url)))
            tip = _next_commit(source, tip, f"push {number}")
            pushes.append(await _timed(_push(source, url, folder, "refs/heads/main")))
    assert target.refs()["refs/heads/main"] == tip, "the target is not up to date"
    return statistics.median(runs), statistics.median(pushes)


async def _all_new(folder: Path) -> tuple[float, float]:
    """Seconds of a run and of a push to an empty target, medians of rounds by turns."""
    source, _ = _source(folder)
    async with serve_http(HttpTarget(folder / "served")) as server:
        url = str(server.make_url("/target.git"))
        runs: list[float] = []
        pushes: list[float] = []
        for _ in range(FIRST_ROUNDS):
            for times, work in (
                (runs, _run(source, url)),
                (pushes, _push(source, url, folder, "refs/heads/*:refs/heads/*")),
            ):
                target = _target(folder)
                times.append(await _timed(work))
                assert target.refs() == source.refs(), "the target is not up to date"
                shutil.rmtree(target.path)
    return statistics.median(runs), statistics.median(pushes)


def _source(folder: Path) -> tuple[BareRepository, str]:
    """A repository with many branches, and the commit that they are at."""
    source = BareRepository.create(folder / "source.git")
    tip = source.commit("first")
    source.set_refs({f"refs/heads/b{n:04}": tip for n in range(REFS)} | {"refs/heads/main": tip})
    source.git("pack-refs", "--all")
    return source, tip


def _target(folder: Path) -> BareRepository:
    (folder / "served").mkdir(exist_ok=True)
    return BareRepository.create(folder / "served" / "target.git")


def _next_commit(source: BareRepository, tip: str, message: str) -> str:
    commit = source.commit(message, tip)
    source.set_refs({"refs/heads/main": commit})
    return commit


async def _run(source: BareRepository, url: str) -> None:
    outcome = await update_target(
        source.path,
        Target(url, USER, PASSWORD),
        Selection(all_branches),
        policy=Policy(allow_local_requests=True),
        resolver=ThreadedResolver(),
        time_limit=600,
    )
    assert outcome.last_error is None, outcome.last_error


async def _push(source: BareRepository, url: str, home: Path, refspec: str) -> None:
    with_credentials = url.replace("://", f"://{USER}:{quote(PASSWORD, safe='')}@")
    process = await asyncio.create_subprocess_exec(
        *("git", f"--git-dir={source.path}", "push", "--quiet", with_credentials, refspec),
        env={"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    assert await process.wait() == 0, "git push failed"


async def _timed(work: object) -> float:
    started = time.perf_counter()
    await work  # type: ignore[misc]
    return time.perf_counter() - started
