"""Clones and pushes over HTTP against `git http-backend` behind nginx, and mirror updates against plain `git push`."""

import asyncio
import contextlib
import os
import secrets
import shutil
import statistics
import time
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from pathlib import Path
from urllib.parse import quote

import attrs
from aiohttp.resolver import ThreadedResolver

from api_server.mirrors.configuration import all_branches
from api_server.mirrors.pushing import Selection, Target, update_target
from api_server.outbound.policy import Policy
from scripts.bench.filling import grow
from scripts.bench.measuring import need, nginx, started
from scripts.bench.runs import OURS, Bench, Measure, Row, Sample, Sides, seconds_of, side
from scripts.bench.service import TOKEN, plain
from scripts.harness.contents import git
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http

BACKEND = "git http-backend behind nginx"
AIMS = {BACKEND: 0.9}
LOCATION = """
      fastcgi_pass unix:{socket};
      fastcgi_param SCRIPT_FILENAME {backend};
      fastcgi_param GIT_PROJECT_ROOT {root};
      fastcgi_param GIT_HTTP_EXPORT_ALL "";
      fastcgi_param REMOTE_USER bench;
      fastcgi_param PATH_INFO $uri;
      fastcgi_param QUERY_STRING $query_string;
      fastcgi_param REQUEST_METHOD $request_method;
      fastcgi_param CONTENT_TYPE $content_type;
      fastcgi_param CONTENT_LENGTH $content_length;
"""
#: Number of parallel requests, which is fcgiwrap's number of processes.
AT_ONCE = 4


@contextlib.contextmanager
def _repositories(bench: Bench) -> Iterator[dict[str, Path]]:
    """Create the repositories of both servers, of 5 MB and of 200 MB."""
    sizes = {"small": 5_000_000, "large": bench.size.large_repository}
    paths = {name: bench.new_folder() / f"{name}.git" for name in sizes}
    for name, path in paths.items():
        grow(path, "main", sizes[name])
    yield paths


# A server is the URL below which its repositories are, as `{name}.git`.


@contextlib.contextmanager
def our_server(bench: Bench) -> Iterator[str]:
    """Run the API server with public projects; the administrator pushes."""
    api = bench.use(plain).running.api
    url = api.base_url.replace("://", f"://root:{TOKEN}@") + "/root"
    for name, path in bench.use(_repositories).items():
        api.post("projects", {"name": name, "visibility": "public"})
        git(path, "push", "--quiet", f"{url}/{name}.git", "main")
    yield url


@contextlib.contextmanager
def http_backend(bench: Bench) -> Iterator[str]:
    """Run `git http-backend` with fcgiwrap behind nginx, without authentication."""
    need("nginx", "fcgiwrap")
    folder = bench.new_folder()
    root, socket = folder / "root", folder / "socket"
    root.mkdir()
    for name, path in bench.use(_repositories).items():
        copy = root / f"{name}.git"
        git(copy, "clone", "--quiet", "--bare", "--no-local", str(path), str(copy))
        git(copy, "config", "http.receivepack", "true")
    backend = Path(git(root, "--exec-path").strip(), "git-http-backend")
    location = LOCATION.format(socket=socket, root=root, backend=backend)
    with fcgiwrap(socket), nginx(folder, "client_max_body_size 0;", location) as (port, _):
        yield f"http://127.0.0.1:{port}"


def fcgiwrap(socket: Path) -> contextlib.AbstractContextManager[int]:
    """Run fcgiwrap behind `socket`."""
    command = ["fcgiwrap", "-c", str(AT_ONCE), "-s", f"unix:{socket}"]
    return started(command, Path(os.devnull), socket.exists)


def _both(measure: Callable[[str], Measure], bench: Bench) -> Sides:
    return {OURS: measure(bench.use(our_server)), BACKEND: side(lambda: measure(bench.use(http_backend)))}


def _clones(name: str, bench: Bench) -> Sides:
    into = bench.new_folder() / "clone.git"

    def clone(url: str) -> Sample:
        shutil.rmtree(into, ignore_errors=True)
        command = ("clone", "--quiet", "--bare", f"{url}/{name}.git", str(into))
        return Sample(seconds_of(lambda: git(into, *command)))

    return _both(lambda url: lambda _: clone(url), bench)


def _pushes(size: int, times: int, bench: Bench) -> Sides:
    folder = bench.new_folder()

    def measure(url: str) -> Measure:
        work = folder / f"{secrets.token_hex(4)}.git"
        git(work, "clone", "--quiet", "--bare", str(bench.use(_repositories)["small"]), str(work))
        return lambda _: Sample(statistics.median(_pushed(url, work, size) for _ in range(times)))

    return _both(measure, bench)


def _pushed(url: str, work: Path, size: int) -> float:
    """Push one commit with `size` new bytes to a branch that the server has; return the seconds by the clock. The
    processor time is unknown, because fcgiwrap does not wait for its children."""
    push = ("push", "--quiet", f"{url}/small.git", f"topic:{work.stem}")
    if not git(work, "for-each-ref", "refs/heads/topic"):
        git(work, "branch", "topic", "main")
        git(work, *push)
    grow(work, "topic", size)
    return seconds_of(lambda: git(work, *push))


_git_row = partial(Row, unit="s", aims=AIMS, less_is_better=True)
GIT_ROWS = (
    _git_row("git-clone-5m", "git clone of 5 MB", partial(_clones, "small")),
    _git_row("git-clone-200m", "git clone of 200 MB", partial(_clones, "large"), warmed_up=False),
    _git_row("git-push", "git push of one commit of 1 KB", partial(_pushes, 1_000, 5)),
    _git_row("git-push-5m", "git push of one commit of 5 MB", partial(_pushes, 5_000_000, 1)),
)

# --- push mirrors ---------------------------------------------------------------------------------------------------

ONE, ALL = "git push of that ref", "git push of all branches"


@attrs.define
class Source:
    """A repository with many branches, the commit at which they are, and the folder of its targets."""

    repository: BareRepository
    tip: str
    folder: Path

    def next_commit(self, message: str) -> None:
        """Create a commit on main."""
        self.tip = self.repository.commit(message, self.tip)
        self.repository.set_refs({"refs/heads/main": self.tip})

    def new_target(self) -> BareRepository:
        """Create an empty target; delete the one before."""
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
        sample = asyncio.run(_timed_run(target, work))
        if target.refs()["refs/heads/main"] != source.tip:
            raise RuntimeError("The target is not up to date.")
        return sample

    return {
        OURS: lambda _: timed(partial(_run_mirror, source.repository)),
        ONE: lambda _: timed(partial(_push, source, "refs/heads/main")),
    }


def _all_new(bench: Bench) -> Sides:
    source = bench.use(_source)

    def timed(work: Callable[[str], Awaitable[None]]) -> Sample:
        target = source.new_target()
        sample = asyncio.run(_timed_run(target, work))
        if target.refs() != source.repository.refs():
            raise RuntimeError("The target is not up to date.")
        return sample

    return {
        OURS: lambda _: timed(partial(_run_mirror, source.repository)),
        ALL: lambda _: timed(partial(_push, source, "refs/heads/*:refs/heads/*")),
    }


async def _timed_run(target: BareRepository, work: Callable[[str], Awaitable[None]]) -> Sample:
    """Measure the seconds of work on the target's URL, behind Basic authentication."""
    async with serve_http(HttpTarget(target.path.parent)) as server:
        url = str(server.make_url("/target.git"))
        started = time.perf_counter()
        await work(url)
        return Sample(time.perf_counter() - started)


async def _run_mirror(source: BareRepository, url: str) -> None:
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


async def _push(source: Source, refspec: str, url: str) -> None:
    with_credentials = url.replace("://", f"://{USER}:{quote(PASSWORD, safe='')}@")
    await asyncio.to_thread(git, source.repository.path, "push", "--quiet", with_credentials, refspec)


_mirror_row = partial(Row, unit="s", less_is_better=True)
_first_run = partial(_mirror_row, most_rounds=1, warmed_up=False)
MIRROR_ROWS = (
    # An update has to list the target's refs before it pushes, and checks the target's address.
    _mirror_row("mirror-one", "mirror run, one changed ref of 5,000", _one_changed, aims={ONE: 1 / 1.5}),
    _first_run("mirror-all", "first mirror run, 5,000 refs", _all_new, aims={ALL: 1 / 1.5}),
)
