"""Clones and pushes over HTTP against `git http-backend` behind nginx, and mirror runs beside plain `git push`."""

import asyncio
import contextlib
import os
import secrets
import shutil
import signal
import statistics
import subprocess
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
from scripts.bench.filling import git, grow
from scripts.bench.measuring import listening, need
from scripts.bench.runs import OURS, Bench, Measure, NotMeasured, Row, Sample, Sides
from scripts.bench.service import TOKEN, plain
from tests.api_server.mirrors.repositories import BareRepository
from tests.api_server.mirrors.targets import PASSWORD, USER, HttpTarget, serve_http
from tests.support.ports import free_port

NGINX_CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log; {user}
events {{ worker_connections 1024; }}
http {{
  access_log {folder}/access.log; client_max_body_size 0;
  client_body_temp_path {folder}/b; fastcgi_temp_path {folder}/f; proxy_temp_path {folder}/p;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{
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
    }}
  }}
}}
"""
#: Requests at once, as many as fcgiwrap has processes.
AT_ONCE = 4


@attrs.frozen
class GitServer:
    """`{url}/{name}.git` is a repository."""

    url: str


@contextlib.contextmanager
def source(bench: Bench) -> Iterator[dict[str, Path]]:
    """What both servers have: repositories of 5 MB and of 200 MB."""
    folder = bench.new_folder()
    found = {"small": folder / "small.git", "large": folder / "large.git"}
    for path, size in ((found["small"], 5_000_000), (found["large"], bench.size.large_repository)):
        grow(path, "main", size)
    yield found


@contextlib.contextmanager
def our_server(bench: Bench) -> Iterator[GitServer]:
    """The API server, with public projects; pushes as the administrator."""
    running = bench.use(plain).running
    url = running.api.base_url.replace("://", f"://root:{TOKEN}@") + "/root"
    for name, path in bench.use(source).items():
        running.api.post("projects", {"name": name, "visibility": "public"})
        git(path, "push", "--quiet", f"{url}/{name}.git", "main")
    yield GitServer(url)


@contextlib.contextmanager
def http_backend(bench: Bench) -> Iterator[GitServer]:
    """`git http-backend`, run by fcgiwrap behind nginx; it asks nobody who he is."""
    need("nginx", "fcgiwrap")
    port, folder = free_port(), bench.new_folder()
    root, socket = folder / "root", folder / "socket"
    root.mkdir()
    for name, path in bench.use(source).items():
        subprocess.run(
            ["git", "clone", "--quiet", "--bare", "--no-local", path, root / f"{name}.git"], check=True
        )
        git(root / f"{name}.git", "config", "http.receivepack", "true")
    core = subprocess.run(["git", "--exec-path"], capture_output=True, text=True, check=True).stdout.strip()
    configuration = folder / "nginx.conf"
    user = "user root;" if os.geteuid() == 0 else ""
    backend = Path(core, "git-http-backend")
    text = NGINX_CONFIGURATION.format(
        folder=folder, port=port, socket=socket, root=root, backend=backend, user=user
    )
    configuration.write_text(text)
    command = ["nginx", "-p", str(folder), "-c", str(configuration)]
    with fcgiwrap(socket), listening(command, port, folder / "log"):
        yield GitServer(f"http://127.0.0.1:{port}")


@contextlib.contextmanager
def fcgiwrap(socket: Path) -> Iterator[None]:
    """Runs it behind `socket`, and ends it with the processes that it has made, which outlive it by themselves."""
    command = ["fcgiwrap", "-c", str(AT_ONCE), "-s", f"unix:{socket}"]
    nothing = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=nothing, stderr=nothing, start_new_session=True) as process:
        try:
            while not socket.exists():
                if process.poll() is not None:
                    raise RuntimeError("fcgiwrap does not start.")
                time.sleep(0.01)
            yield
        finally:
            os.killpg(process.pid, signal.SIGTERM)


BACKEND = "git http-backend behind nginx"
AIMS = {BACKEND: 0.9}


def _both(measure: Callable[[GitServer], Measure], bench: Bench) -> Sides:
    sides: dict[str, Measure | NotMeasured] = {OURS: measure(bench.use(our_server))}
    try:
        sides[BACKEND] = measure(bench.use(http_backend))
    except NotMeasured as reason:
        sides[BACKEND] = reason
    return sides


def _clones(name: str, bench: Bench) -> Sides:
    folder = bench.new_folder()
    return _both(lambda server: lambda _: _cloned(server, name, folder / "clone.git"), bench)


def _cloned(server: GitServer, name: str, into: Path) -> Sample:
    seconds = _seconds_of(
        lambda: git(into, "clone", "--quiet", "--bare", f"{server.url}/{name}.git", str(into))
    )
    shutil.rmtree(into)
    return Sample(seconds)


def _pushes(size: int, times: int, bench: Bench) -> Sides:
    folder = bench.new_folder()

    def measure(server: GitServer) -> Measure:
        work = folder / f"{secrets.token_hex(4)}.git"
        git(work, "clone", "--quiet", "--bare", str(bench.use(source)["small"]), str(work))
        return lambda _: Sample(statistics.median(_pushed(server, work, size) for _ in range(times)))

    return _both(measure, bench)


def _pushed(server: GitServer, work: Path, size: int) -> float:
    """Seconds for one commit with so many new bytes, on a branch that the server has."""
    if not git(work, "for-each-ref", "refs/heads/topic"):
        git(work, "branch", "topic", "main")
        git(work, "push", "--quiet", f"{server.url}/small.git", f"topic:{work.stem}")
    grow(work, "topic", size)
    return _seconds_of(lambda: git(work, "push", "--quiet", f"{server.url}/small.git", f"topic:{work.stem}"))


def _seconds_of(work: Callable[[], object]) -> float:
    """Seconds by the clock: fcgiwrap does not wait for its children, so nobody knows what they have used."""
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


def _git_row(name: str, what: str, sides: Callable[[Bench], Sides], *, warmed_up: bool = True) -> Row:
    return Row(name, what, sides, "s", aims=AIMS, less_is_better=True, warmed_up=warmed_up)


GIT_ROWS = (
    _git_row("git-clone-5m", "git clone of 5 MB", partial(_clones, "small")),
    _git_row("git-clone-200m", "git clone of 200 MB", partial(_clones, "large"), warmed_up=False),
    _git_row("git-push", "git push of one commit of 1 KB", partial(_pushes, 1_000, 5)),
    _git_row("git-push-5m", "git push of one commit of 5 MB", partial(_pushes, 5_000_000, 1)),
)


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
        sample = asyncio.run(_timed_run(target, work))
        if target.refs()["refs/heads/main"] != source.tip:
            raise RuntimeError("The target is not up to date.")
        return sample

    return {
        OURS: lambda _: timed(lambda url: _run_mirror(source.repository, url)),
        ONE: lambda _: timed(lambda url: _push(source, url, "refs/heads/main")),
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
        OURS: lambda _: timed(lambda url: _run_mirror(source.repository, url)),
        ALL: lambda _: timed(lambda url: _push(source, url, "refs/heads/*:refs/heads/*")),
    }


async def _timed_run(target: BareRepository, work: Callable[[str], Awaitable[None]]) -> Sample:
    """Seconds of work on the target's URL, behind Basic authentication."""
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


async def _push(source: Source, url: str, refspec: str) -> None:
    with_credentials = url.replace("://", f"://{USER}:{quote(PASSWORD, safe='')}@")
    process = await asyncio.create_subprocess_exec(
        *("git", f"--git-dir={source.repository.path}", "push", "--quiet", with_credentials, refspec),
        env={"PATH": os.environ["PATH"], "HOME": str(source.folder), "GIT_CONFIG_NOSYSTEM": "1"},
    )
    if await process.wait() != 0:
        raise RuntimeError("git push failed.")


MIRROR_ROWS = (
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
