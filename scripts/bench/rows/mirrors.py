"""Mirror runs that find one changed ref among 5,000, and that push all of them, beside plain `git push`."""

import asyncio
import contextlib
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from urllib.parse import quote

import attrs
from aiohttp.resolver import ThreadedResolver

from api_server.mirrors.configuration import all_branches
from api_server.mirrors.pushing import Selection, Target, update_target
from api_server.outbound.policy import Policy
from scripts.bench.harness.runs import OURS, Bench, Row, Sample, Sides
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http

ONE, ALL = "git push of that ref", "git push of all branches"


@attrs.define
class Source:
    """A repository with many branches, the commit that they are at, and where its targets are."""

    repository: BareRepository
    tip: str
    folder: Path

    def next_commit(self, message: str) -> None:
        """On main."""
        self.tip = self.repository.commit(message, self.tip)
        self.repository.set_refs({"refs/heads/main": self.tip})

    def new_target(self) -> BareRepository:
        """An empty one."""
        served = self.folder / "served"
        shutil.rmtree(served, ignore_errors=True)
        served.mkdir()
        return BareRepository.create(served / "target.git")


@contextlib.contextmanager
def _source(bench: Bench) -> Iterator[Source]:
    folder = bench.new_folder()
    repository = BareRepository.create(folder / "source.git")
    tip = repository.commit("first")
    branches = {f"refs/heads/b{n:04}": tip for n in range(bench.size.refs)}
    repository.set_refs(branches | {"refs/heads/main": tip})
    repository.git("pack-refs", "--all")
    yield Source(repository, tip, folder)


def _one_changed(bench: Bench) -> Sides:
    source = bench.use(_source)
    target = source.new_target()
    source.repository.git("push", "--quiet", str(target.path), "refs/*:refs/*")
    target.git("pack-refs", "--all")

    def timed(work: Callable[[str], Awaitable[None]]) -> Sample:
        source.next_commit(f"at {time.perf_counter_ns()}")
        sample = asyncio.run(_timed(target, work))
        if target.refs()["refs/heads/main"] != source.tip:
            raise RuntimeError("The target is not up to date.")
        return sample

    return {
        OURS: lambda _: timed(lambda url: _run(source.repository, url)),
        ONE: lambda _: timed(lambda url: _push(source, url, "refs/heads/main")),
    }


def _all_new(bench: Bench) -> Sides:
    source = bench.use(_source)

    def timed(work: Callable[[str], Awaitable[None]]) -> Sample:
        target = source.new_target()
        sample = asyncio.run(_timed(target, work))
        if target.refs() != source.repository.refs():
            raise RuntimeError("The target is not up to date.")
        return sample

    return {
        OURS: lambda _: timed(lambda url: _run(source.repository, url)),
        ALL: lambda _: timed(lambda url: _push(source, url, "refs/heads/*:refs/heads/*")),
    }


async def _timed(target: BareRepository, work: Callable[[str], Awaitable[None]]) -> Sample:
    """Seconds of work on the target's URL, behind Basic authentication."""
    async with serve_http(HttpTarget(target.path.parent)) as server:
        url = str(server.make_url("/target.git"))
        started = time.perf_counter()
        await work(url)
        return Sample(time.perf_counter() - started)


async def _run(source: BareRepository, url: str) -> None:
    outcome = await update_target(
        source.path,
        Target(url, USER, PASSWORD),
        Selection(all_branches),
        policy=Policy(allow_local_requests=True),
        resolver=ThreadedResolver(),
        time_limit=600,
    )
    if outcome.last_error is not None:
        raise RuntimeError(outcome.last_error)


async def _push(source: Source, url: str, refspec: str) -> None:
    with_credentials = url.replace("://", f"://{USER}:{quote(PASSWORD, safe='')}@")
    process = await asyncio.create_subprocess_exec(
        *("git", f"--git-dir={source.repository.path}", "push", "--quiet", with_credentials, refspec),
        env={"PATH": os.environ["PATH"], "HOME": str(source.folder), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    if await process.wait() != 0:
        raise RuntimeError("git push failed.")


ROWS = (
    # A run has to list the target's refs before it pushes, and checks its address.
    Row(
        "mirror-one",
        "mirror run, one changed ref of 5,000",
        _one_changed,
        "s",
        aims={ONE: 1 / 1.5},
        less_is_better=True,
    ),
    Row(
        "mirror-all",
        "first mirror run, 5,000 refs",
        _all_new,
        "s",
        aims={ALL: 1 / 1.5},
        less_is_better=True,
        most_rounds=1,
        warmed_up=False,
    ),
)
