"""The edge against nginx's proxy_cache and Varnish in front of one origin, with their access logs where nothing else is
said."""

import contextlib
import http.client
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

from scripts.bench.harness import measuring
from scripts.bench.harness.measuring import http_bytes, http_requests
from scripts.bench.harness.runs import OURS, Bench, Measure, NotMeasured, Row, Sample, Sides
from scripts.bench.scene import crowds, edges
from scripts.bench.scene.edges import Cache

NGINX, VARNISH, ONE_WORKER = "nginx", "Varnish", "nginx, one worker"
OBJECT = "/g/app/-/raw/main/x/{size}"
MOST_CROWD = 150.0  # MB
#: Large bodies that are read at a time.
DOWNLOADS = 4
ARCHIVE = 50_000_000

#: One request in a hundred is for a private object, with a token.
MIXED = """
local count = 0
request = function()
  count = count + 1
  if count % 100 == 0 then return wrk.format("GET", "/g/secret/-/raw/main/x/4KiB?token=alice") end
  return wrk.format("GET", "/g/app/-/raw/main/" .. (count % 50) .. "/4KiB")
end
"""

#: Every request head is one that was never sent before.
DISTINCT = """
local count = 0
request = function()
  count = count + 1
  return wrk.format("GET", "/g/app/-/raw/main/x/4KiB", {["X-Request-Id"] = tostring(count)})
end
"""

Make = Callable[[Bench], AbstractContextManager[Cache]]
QUIET: dict[str, Make] = {OURS: edges.quiet_edge, NGINX: edges.quiet_nginx, VARNISH: edges.varnish}
#: As users run them. Varnish logs into memory always.
LOGGED: dict[str, Make] = {OURS: edges.logged_edge, NGINX: edges.logged_nginx, VARNISH: edges.varnish}
TWO: dict[str, Make] = {OURS: edges.two_edges, ONE_WORKER: edges.logged_nginx}


def _each(programs: dict[str, Make], measure: Callable[[Cache], Measure], bench: Bench) -> Sides:
    """`measure` of each program that is there."""
    sides: dict[str, Measure | NotMeasured] = {}
    for name, make in programs.items():
        try:
            sides[name] = measure(bench.use(make))
        except NotMeasured as reason:
            sides[name] = reason
    return sides


def _hits(size: str, programs: dict[str, Make], bench: Bench) -> Sides:
    def measure(cache: Cache) -> Measure:
        url = f"http://127.0.0.1:{cache.port}{OBJECT.format(size=size)}"
        urllib.request.urlopen(url).read()
        return lambda seconds: http_requests(url, seconds, pids=[cache.pid])

    return _each(programs, measure, bench)


def _large_hits(programs: dict[str, Make], bench: Bench) -> Sides:
    """By bytes: of few large answers in a round too many would be counted as none."""
    size = "64MiB" if bench.size.large_object else "1MiB"

    def measure(cache: Cache) -> Measure:
        url = f"http://127.0.0.1:{cache.port}{OBJECT.format(size=size)}"
        urllib.request.urlopen(url).read()
        return lambda seconds: http_bytes(url, seconds, connections=DOWNLOADS, pids=[cache.pid])

    return _each(programs, measure, bench)


def _scripted(text: str, programs: dict[str, Make], bench: Bench) -> Sides:
    script = bench.new_folder() / "requests.lua"
    script.write_text(text)

    def measure(cache: Cache) -> Measure:
        url = f"http://127.0.0.1:{cache.port}/"
        return lambda seconds: http_requests(url, seconds, script=script, pids=[cache.pid])

    return _each(programs, measure, bench)


def _cold(bench: Bench) -> Sides:
    return _each(LOGGED, lambda cache: partial(_first_bytes, cache), bench)


def _first_bytes(cache: Cache, seconds: float) -> Sample:
    """First bytes a second of objects that nobody has asked for, by one client that keeps its connection."""
    client = http.client.HTTPConnection("127.0.0.1", cache.port)
    with contextlib.closing(client):
        client.connect()
        waited, count, before = 0.0, 0, measuring.processor_seconds([cache.pid])
        ends = time.perf_counter() + seconds
        while time.perf_counter() < ends or not count:
            begun = time.perf_counter()
            client.request("GET", f"/g/app/-/raw/main/{time.perf_counter_ns()}/64KiB")
            answer = client.getresponse()
            answer.read(1)
            waited += time.perf_counter() - begun
            answer.read()
            count += 1
        used = measuring.processor_seconds([cache.pid]) - before
    return Sample(count / waited, used / count * 1e6)


# --- a crowd --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _crowd(bench: Bench) -> Iterator[tuple[int, float]]:
    """How often the origin was asked, and the most memory of a fresh edge (MB) that holds more objects of 64 KiB than
    its memory tier does, when clients ask for an archive that it does not have."""
    port, name = bench.use(edges.origin), "50MB"
    with edges.an_edge(bench) as edge:
        for number in range(1200 if bench.size.large_object else 3):
            url = f"http://127.0.0.1:{edge.port}/g/app/-/raw/main/full-{number}/64KiB"
            for _ in range(2):
                urllib.request.urlopen(url).read()
        before = edges.asked(port, name)
        path = f"/g/app/-/archive/main/{time.perf_counter_ns()}/{name}"
        crowds.read(edge.port, path, bench.size.crowd, ARCHIVE)
        yield edges.asked(port, name) - before, _peak(edge.pid)


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM"))


def _of_crowd(which: int, bench: Bench) -> Sides:
    return {OURS: lambda _: Sample(bench.use(_crowd)[which])}


def _limit(name: str, what: str, sides: Callable[[Bench], Sides], unit: str, most: float) -> Row:
    return Row(name, what, sides, unit, most=most, less_is_better=True, most_rounds=1, warmed_up=False)


BOTH = {NGINX: 1.0, VARNISH: 1.0}
ROWS = (
    Row("edge-4k", "hits of 4 KiB, no access log", partial(_hits, "4KiB", QUIET), aims={NGINX: 0.7}),
    Row(
        "edge-4k-distinct",
        "hits of 4 KiB, no two heads the same, no access log",
        partial(_scripted, DISTINCT, QUIET),
        aims={NGINX: 0.45},
    ),
    Row("edge-4k-logged", "hits of 4 KiB", partial(_hits, "4KiB", LOGGED), aims={NGINX: 0.5}),
    Row(
        "edge-4k-distinct-logged",
        "hits of 4 KiB, no two heads the same",
        partial(_scripted, DISTINCT, LOGGED),
        aims={NGINX: 0.5},
    ),
    Row(
        "edge-4k-mixed",
        "4 KiB, 1 % of them private and validated (nginx and Varnish pass those)",
        partial(_scripted, MIXED, LOGGED),
        aims={NGINX: 0.4},
    ),
    Row(
        "edge-4k-two",
        "hits of 4 KiB, two processes against one worker",
        partial(_hits, "4KiB", TWO),
        aims={ONE_WORKER: 0.6},
    ),
    Row("edge-64k", "hits of 64 KiB", partial(_hits, "64KiB", LOGGED), aims=BOTH),
    Row("edge-1m", "hits of 1 MiB", partial(_hits, "1MiB", LOGGED), aims=BOTH),
    Row("edge-64m", "hits of 64 MiB, 4 clients", partial(_large_hits, LOGGED), "MB/s", aims=BOTH),
    Row("edge-cold", "first bytes of cold 64 KiB objects, one client", _cold, "a second", aims={NGINX: 0.5}),
    _limit(
        "edge-crowd-asks",
        "1,000 clients on a cold 50 MB archive, the memory tier being full: requests to the origin",
        partial(_of_crowd, 0),
        "requests",
        1,
    ),
    _limit("edge-crowd-memory", "the same: most memory", partial(_of_crowd, 1), "MB", MOST_CROWD),
)
