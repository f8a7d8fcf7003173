"""A mirror run that finds one changed ref among 5,000, as a share of a plain `git push` of that ref."""

import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from aiohttp.resolver import ThreadedResolver

from api_server.areas.mirrors.plan import all_branches
from api_server.areas.mirrors.transport import Selection, Target, run_mirror
from api_server.platform.outbound.policy import Policy
from scripts.bench.rows import Row
from tests.mirrors.repositories import BareRepository
from tests.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http

REFS = 5000
ROUNDS = 9
#: A run has to list the target's refs before it pushes, and checks its address.
AIM = 1 / 1.5


def measure() -> Iterator[Row]:
    """Against `git http-backend` behind Basic authentication, on loopback."""
    with tempfile.TemporaryDirectory() as folder:
        run, push = asyncio.run(_measured(Path(folder)))
    yield Row(f"Mirror run, 1 of {REFS:,} refs", 60 / run, 60 / push, "git push of that ref", AIM, "a minute")


async def _measured(folder: Path) -> tuple[float, float]:
    """Seconds of a run and of a push, medians of rounds by turns."""
    source = BareRepository.create(folder / "source.git")
    (folder / "served").mkdir()
    target = BareRepository.create(folder / "served" / "target.git")
    tip = source.commit("first")
    source.set_refs({f"refs/heads/b{n:04}": tip for n in range(REFS)} | {"refs/heads/main": tip})
    source.git("push", "--quiet", str(target.path), "refs/*:refs/*")
    for repository in (source, target):
        repository.git("pack-refs", "--all")
    async with serve_http(HttpTarget(target.path.parent)) as server:
        url = str(server.make_url("/target.git"))
        runs, pushes = [], []
        for number in range(ROUNDS):
            tip = _next_commit(source, tip, f"run {number}")
            runs.append(await _timed(_run(source, url)))
            tip = _next_commit(source, tip, f"push {number}")
            pushes.append(await _timed(_push(source, url, folder)))
    assert target.refs()["refs/heads/main"] == tip, "the target is not up to date"
    return statistics.median(runs), statistics.median(pushes)


def _next_commit(source: BareRepository, tip: str, message: str) -> str:
    commit = source.commit(message, tip)
    source.set_refs({"refs/heads/main": commit})
    return commit


async def _run(source: BareRepository, url: str) -> None:
    outcome = await run_mirror(
        source.path,
        Target(url, USER, PASSWORD),
        Selection(all_branches),
        policy=Policy(allow_local_requests=True),
        resolver=ThreadedResolver(),
        time_limit=600,
    )
    assert outcome.last_error is None, outcome.last_error


async def _push(source: BareRepository, url: str, home: Path) -> None:
    with_credentials = url.replace("://", f"://{USER}:{quote(PASSWORD, safe='')}@")
    process = await asyncio.create_subprocess_exec(
        *("git", f"--git-dir={source.path}", "push", "--quiet", with_credentials, "refs/heads/main"),
        env={"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    assert await process.wait() == 0, "git push failed"


async def _timed(work: object) -> float:
    started = time.perf_counter()
    await work  # type: ignore[misc]
    return time.perf_counter() - started
