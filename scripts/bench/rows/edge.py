"""The edge against nginx's proxy_cache and Varnish in front of one origin, with access logs unless a row says
otherwise."""

import contextlib
import http.client
import os
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import attrs

from scripts.bench import measuring
from scripts.bench.measuring import http_bytes, http_requests, listening, need, read_by_crowd, small_server
from scripts.bench.runs import OURS, Bench, Measure, NotMeasured, Row, Sample, Sides
from tests.support.ports import free_port

NGINX_CONFIGURATION = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log; {user}
events {{ worker_connections 4096; }}
http {{
  access_log {log}; sendfile on; keepalive_requests 10000000;
  proxy_cache_path {folder}/nginx keys_zone=objects:10m max_size=2g; proxy_temp_path {folder}/temp;
  client_body_temp_path {folder}/b; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_cache objects; proxy_cache_lock on; }}
  }}
}}
"""


@attrs.frozen
class Cache:
    """A program that answers at `port`, and the process whose processor time counts, with its children's."""

    port: int
    pid: int


@contextlib.contextmanager
def edge_origin(_: Bench) -> Iterator[int]:
    """Yield the port of the origin."""
    with small_server("origin") as (port, _pid):
        yield port


def quiet_edge(bench: Bench) -> contextlib.AbstractContextManager[Cache]:
    """Our edge without its access log."""
    return an_edge(bench, "--no-access-log")


def logged_edge(bench: Bench) -> contextlib.AbstractContextManager[Cache]:
    """Our edge as it is by default, with its log in a file."""
    return an_edge(bench)


@contextlib.contextmanager
def two_edges(bench: Bench) -> Iterator[Cache]:
    """Two processes at one port over one folder; the processor time is that of the first."""
    port, data = free_port(), bench.new_folder()
    with (
        an_edge(bench, "--reuse-port", port=port, data=data) as first,
        an_edge(bench, "--reuse-port", port=port, data=data),
    ):
        yield first


@contextlib.contextmanager
def an_edge(
    bench: Bench, *options: str, port: int | None = None, data: Path | None = None
) -> Iterator[Cache]:
    """A new one with nothing in it."""
    port = port or free_port()
    command = [sys.executable, "-m", "storage_edge", "--origin", f"http://127.0.0.1:{bench.use(edge_origin)}"]
    command += ["--data-dir", str(data or bench.new_folder()), "--port", str(port), *options]
    with listening(command, port, bench.new_folder() / "log", path="/-/readiness") as pid:
        yield Cache(port, pid)


def quiet_nginx(bench: Bench) -> contextlib.AbstractContextManager[Cache]:
    """nginx without its access log."""
    return _nginx(bench, logs=False)


def logged_nginx(bench: Bench) -> contextlib.AbstractContextManager[Cache]:
    """nginx with its access log in a file, in its own format and unbuffered, as by default."""
    return _nginx(bench, logs=True)


@contextlib.contextmanager
def _nginx(bench: Bench, *, logs: bool) -> Iterator[Cache]:
    need("nginx")
    port, folder = free_port(), bench.new_folder()
    configuration = folder / "nginx.conf"
    text = NGINX_CONFIGURATION.format(
        folder=folder,
        port=port,
        origin=bench.use(edge_origin),
        user="user root;" if os.geteuid() == 0 else "",
        log=folder / "access.log" if logs else "off",
    )
    configuration.write_text(text)
    with listening(["nginx", "-p", str(folder), "-c", str(configuration)], port, folder / "log") as pid:
        yield Cache(port, pid)


@contextlib.contextmanager
def varnish(bench: Bench) -> Iterator[Cache]:
    """Varnish, which logs into memory that nobody reads."""
    need("varnishd")
    port, folder = free_port(), bench.new_folder()
    command = ["varnishd", "-F", "-n", str(folder / "varnish"), "-a", f"127.0.0.1:{port}"]
    command += ["-b", f"127.0.0.1:{bench.use(edge_origin)}", "-s", "malloc,1g"]
    with listening(command, port, folder / "log") as pid:
        yield Cache(port, pid)


def origin_requests(origin_port: int, size: str) -> int:
    """How often anybody has asked the origin for bodies of this size."""
    with urllib.request.urlopen(f"http://127.0.0.1:{origin_port}/count/{size}") as response:
        return int(response.read())


NGINX_SIDE, VARNISH_SIDE, ONE_WORKER = "nginx", "Varnish", "nginx, one worker"
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
QUIET: dict[str, Make] = {OURS: quiet_edge, NGINX_SIDE: quiet_nginx, VARNISH_SIDE: varnish}
#: As users run them. Varnish logs into memory always.
LOGGED: dict[str, Make] = {OURS: logged_edge, NGINX_SIDE: logged_nginx, VARNISH_SIDE: varnish}
TWO: dict[str, Make] = {OURS: two_edges, ONE_WORKER: logged_nginx}


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
    port, name = bench.use(edge_origin), "50MB"
    with an_edge(bench) as edge:
        for number in range(1200 if bench.size.large_object else 3):
            url = f"http://127.0.0.1:{edge.port}/g/app/-/raw/main/full-{number}/64KiB"
            for _ in range(2):
                urllib.request.urlopen(url).read()
        before = origin_requests(port, name)
        path = f"/g/app/-/archive/main/{time.perf_counter_ns()}/{name}"
        read_by_crowd(edge.port, path, bench.size.crowd, ARCHIVE)
        yield origin_requests(port, name) - before, _peak(edge.pid)


def _peak(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 / 1e6 for line in status.splitlines() if line.startswith("VmHWM"))


def _of_crowd(which: int, bench: Bench) -> Sides:
    return {OURS: lambda _: Sample(bench.use(_crowd)[which])}


def _limit(name: str, what: str, sides: Callable[[Bench], Sides], unit: str, most: float) -> Row:
    return Row(name, what, sides, unit, most=most, less_is_better=True, most_rounds=1, warmed_up=False)


BOTH = {NGINX_SIDE: 1.0, VARNISH_SIDE: 1.0}
ROWS = (
    Row("edge-4k", "hits of 4 KiB, no access log", partial(_hits, "4KiB", QUIET), aims={NGINX_SIDE: 0.7}),
    Row(
        "edge-4k-distinct",
        "hits of 4 KiB, no two heads the same, no access log",
        partial(_scripted, DISTINCT, QUIET),
        aims={NGINX_SIDE: 0.45},
    ),
    Row("edge-4k-logged", "hits of 4 KiB", partial(_hits, "4KiB", LOGGED), aims={NGINX_SIDE: 0.5}),
    Row(
        "edge-4k-distinct-logged",
        "hits of 4 KiB, no two heads the same",
        partial(_scripted, DISTINCT, LOGGED),
        aims={NGINX_SIDE: 0.5},
    ),
    Row(
        "edge-4k-mixed",
        "4 KiB, 1 % of them private and validated (nginx and Varnish pass those)",
        partial(_scripted, MIXED, LOGGED),
        aims={NGINX_SIDE: 0.4},
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
    Row(
        "edge-cold",
        "first bytes of cold 64 KiB objects, one client",
        _cold,
        "a second",
        aims={NGINX_SIDE: 0.5},
    ),
    _limit(
        "edge-crowd-asks",
        "1,000 clients on a cold 50 MB archive, the memory tier being full: requests to the origin",
        partial(_of_crowd, 0),
        "requests",
        1,
    ),
    _limit("edge-crowd-memory", "the same: most memory", partial(_of_crowd, 1), "MB", MOST_CROWD),
)
