"""The edge against nginx's proxy_cache and Varnish in front of the same origin, with access logs unless a row says
otherwise."""

import contextlib
import http.client
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import attrs

from scripts.bench.measuring import (
    http_bytes,
    http_requests,
    listening,
    need,
    nginx,
    processor_seconds,
    read_by_crowd,
    small_server,
)
from scripts.bench.runs import OURS, Bench, Make, Measure, Row, Sample, Sides, side
from scripts.harness.processes import memory_bytes
from tests.support.ports import free_port

NGINX, VARNISH, ONE_WORKER = "nginx", "Varnish", "nginx, one worker"
OBJECT = "/g/app/-/raw/main/x/{size}"
MAX_CROWD_MEMORY = 150.0  # MB
#: Number of large bodies that are read at a time.
DOWNLOADS = 4
ARCHIVE = 50_000_000


@attrs.frozen
class Cache:
    """A program that listens on `port`, and the process whose processor time counts, with its children's."""

    port: int
    pid: int

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


@contextlib.contextmanager
def origin(_: Bench) -> Iterator[int]:
    """Yield the port of the origin."""
    with small_server("origin") as (port, _pid):
        yield port


@contextlib.contextmanager
def new_edge(
    bench: Bench, options: Sequence[str] = (), port: int | None = None, data: Path | None = None
) -> Iterator[Cache]:
    """Run an empty edge, whose log is in a file, as by default."""
    port = port or free_port()
    command = [sys.executable, "-m", "storage_edge", "--origin", f"http://127.0.0.1:{bench.use(origin)}"]
    command += ["--data-dir", str(data or bench.new_folder()), "--port", str(port), *options]
    with listening(command, port, bench.new_folder() / "log", path="/-/readiness") as pid:
        yield Cache(port, pid)


@contextlib.contextmanager
def two_edges(bench: Bench) -> Iterator[Cache]:
    """Run two processes on one port over one folder; the processor time is that of the first."""
    new = partial(new_edge, bench, ["--reuse-port"], free_port(), bench.new_folder())
    with new() as first, new():
        yield first


@contextlib.contextmanager
def caching_nginx(bench: Bench, *, logs: bool = True) -> Iterator[Cache]:
    """Run nginx, with its access log in its own format and unbuffered, as by default."""
    folder = bench.new_folder()
    store = f"proxy_cache_path {folder}/nginx keys_zone=objects:10m max_size=2g;"
    cache = f"sendfile on; keepalive_requests 10000000; {store}"
    to_origin = f"proxy_pass http://127.0.0.1:{bench.use(origin)}; proxy_cache objects; proxy_cache_lock on;"
    with nginx(folder, cache, to_origin, logs=logs) as (port, pid):
        yield Cache(port, pid)


@contextlib.contextmanager
def varnish(bench: Bench) -> Iterator[Cache]:
    """Run Varnish, which logs into memory; no program reads this log."""
    need("varnishd")
    port, folder = free_port(), bench.new_folder()
    command = ["varnishd", "-F", "-n", str(folder / "varnish"), "-a", f"127.0.0.1:{port}"]
    command += ["-b", f"127.0.0.1:{bench.use(origin)}", "-s", "malloc,1g"]
    with listening(command, port, folder / "log") as pid:
        yield Cache(port, pid)


Caches = dict[str, Make[Cache]]
QUIET: Caches = {
    OURS: partial(new_edge, options=["--no-access-log"]),
    NGINX: partial(caching_nginx, logs=False),
    VARNISH: varnish,
}
#: The caches as users run them. Varnish always logs into memory.
LOGGED: Caches = {OURS: new_edge, NGINX: caching_nginx, VARNISH: varnish}
TWO: Caches = {OURS: two_edges, ONE_WORKER: caching_nginx}

#: One request in a hundred is for a private object, with a token.
MIXED = """
local count = 0
request = function()
  count = count + 1
  if count % 100 == 0 then return wrk.format("GET", "/g/secret/-/raw/main/x/4KiB?token=alice") end
  return wrk.format("GET", "/g/app/-/raw/main/" .. (count % 50) .. "/4KiB")
end
"""

#: No two request heads are the same.
DISTINCT = """
local count = 0
request = function()
  count = count + 1
  return wrk.format("GET", "/g/app/-/raw/main/x/4KiB", {["X-Request-Id"] = tostring(count)})
end
"""


def _each(caches: Caches, measure: Callable[[Cache], Measure], bench: Bench) -> Sides:
    """Return `measure` of each program, or the reason if it is not installed."""
    return {name: side(lambda make=make: measure(bench.use(make))) for name, make in caches.items()}  # type: ignore[misc]


def _hits(size: str, caches: Caches, bench: Bench) -> Sides:
    def measure(cache: Cache) -> Measure:
        url = cache.url(OBJECT.format(size=size))
        urllib.request.urlopen(url).read()
        return lambda seconds: http_requests(url, seconds, pids=[cache.pid])

    return _each(caches, measure, bench)


def _large_hits(bench: Bench) -> Sides:
    """Measure bytes instead of requests: a round has so few large answers that too many would not count because they
    are incomplete."""

    def measure(cache: Cache) -> Measure:
        url = cache.url(OBJECT.format(size="64MiB" if bench.size.large_object else "1MiB"))
        urllib.request.urlopen(url).read()
        return lambda seconds: http_bytes(url, seconds, connections=DOWNLOADS, pids=[cache.pid])

    return _each(LOGGED, measure, bench)


def _scripted(text: str, caches: Caches, bench: Bench) -> Sides:
    script = bench.new_folder() / "requests.lua"
    script.write_text(text)

    def measure(cache: Cache) -> Measure:
        return lambda seconds: http_requests(cache.url("/"), seconds, script=script, pids=[cache.pid])

    return _each(caches, measure, bench)


def _cold(bench: Bench) -> Sides:
    return _each(LOGGED, lambda cache: partial(_first_bytes, cache), bench)


def _first_bytes(cache: Cache, seconds: float) -> Sample:
    """Measure the first bytes per second of objects that are not cached, by one client that keeps its connection."""
    with contextlib.closing(http.client.HTTPConnection("127.0.0.1", cache.port)) as client:
        client.connect()
        waited, count, before = 0.0, 0, processor_seconds([cache.pid])
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends or not count:
            start = time.perf_counter()
            client.request("GET", f"/g/app/-/raw/main/{time.perf_counter_ns()}/64KiB")
            answer = client.getresponse()
            answer.read(1)
            waited += time.perf_counter() - start
            answer.read()
            count += 1
        cpu_seconds = processor_seconds([cache.pid]) - before
    return Sample(count / waited, cpu_seconds / count * 1e6)


@contextlib.contextmanager
def _crowd(bench: Bench) -> Iterator[tuple[int, float]]:
    """Let a crowd of clients ask a fresh edge for an archive that is not cached, while its memory tier is full of
    objects of 64 KiB. Yield the number of requests to the origin, and the peak memory of the edge (MB)."""
    count = f"http://127.0.0.1:{bench.use(origin)}/count/50MB"
    with new_edge(bench) as edge:
        for number in range(1200 if bench.size.large_object else 3):
            for _ in range(2):
                urllib.request.urlopen(edge.url(f"/g/app/-/raw/main/full-{number}/64KiB")).read()
        before = int(urllib.request.urlopen(count).read())
        path = f"/g/app/-/archive/main/{time.perf_counter_ns()}/50MB"
        read_by_crowd(edge.port, path, bench.size.crowd, ARCHIVE)
        peak = memory_bytes(edge.pid, "status", "VmHWM") / 1e6
        yield int(urllib.request.urlopen(count).read()) - before, peak


def _of_crowd(index: int, bench: Bench) -> Sides:
    return {OURS: lambda _: Sample(bench.use(_crowd)[index])}


_limit = partial(Row, less_is_better=True, most_rounds=1, warmed_up=False)
_quiet_4k, _distinct_4k = "hits of 4 KiB, no access log", "hits of 4 KiB, no two heads the same"
_mixed_4k = "4 KiB, 1 % of them private and validated (nginx and Varnish pass those)"
_asks = "1,000 clients on a cold 50 MB archive, the memory tier being full: requests to the origin"
_cold_64k = "first bytes of cold 64 KiB objects, one client"
BOTH = {NGINX: 1.0, VARNISH: 1.0}
ROWS = (
    Row("edge-4k", _quiet_4k, partial(_hits, "4KiB", QUIET), aims={NGINX: 0.7}),
    Row(
        "edge-4k-distinct",
        f"{_distinct_4k}, no access log",
        partial(_scripted, DISTINCT, QUIET),
        aims={NGINX: 0.45},
    ),
    Row("edge-4k-logged", "hits of 4 KiB", partial(_hits, "4KiB", LOGGED), aims={NGINX: 0.5}),
    Row("edge-4k-distinct-logged", _distinct_4k, partial(_scripted, DISTINCT, LOGGED), aims={NGINX: 0.5}),
    Row("edge-4k-mixed", _mixed_4k, partial(_scripted, MIXED, LOGGED), aims={NGINX: 0.4}),
    Row(
        "edge-4k-two",
        "hits of 4 KiB, two processes against one worker",
        partial(_hits, "4KiB", TWO),
        aims={ONE_WORKER: 0.6},
    ),
    Row("edge-64k", "hits of 64 KiB", partial(_hits, "64KiB", LOGGED), aims=BOTH),
    Row("edge-1m", "hits of 1 MiB", partial(_hits, "1MiB", LOGGED), aims=BOTH),
    Row("edge-64m", "hits of 64 MiB, 4 clients", _large_hits, "MB/s", aims=BOTH),
    Row("edge-cold", _cold_64k, _cold, "a second", aims={NGINX: 0.5}),
    _limit("edge-crowd-asks", _asks, partial(_of_crowd, 0), "requests", most=1),
    _limit("edge-crowd-memory", "the same: most memory", partial(_of_crowd, 1), "MB", most=MAX_CROWD_MEMORY),
)
