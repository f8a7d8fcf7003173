"""The edge against nginx's proxy_cache and Varnish, all in front of one origin, in the same run."""

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import aiohttp

from scripts.bench import load
from scripts.bench.rows import Row, SkippedError, by_turns
from tests.support.ports import free_port

SECONDS = 3
#: Least share of the hits a second of nginx and Varnish that we want, by object size.
AIMS = {"4KiB": 0.45, "64KiB": 1.0, "1MiB": 1.0, "64MiB": 1.0}
CROWD = 1000
MAX_CROWD_BYTES = 150_000_000

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx.log; {user}
events {{ worker_connections 4096; }}
http {{
  access_log off; sendfile on; keepalive_requests 10000000;
  proxy_cache_path {folder}/nginx keys_zone=objects:10m max_size=2g; proxy_temp_path {folder}/temp;
  client_body_temp_path {folder}/b; fastcgi_temp_path {folder}/f;
  uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{
    listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{origin}; proxy_cache objects; proxy_cache_lock on; }}
  }}
}}
"""

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
DIFFERENT = """
local count = 0
request = function()
  count = count + 1
  return wrk.format("GET", "/g/app/-/raw/main/x/4KiB", {["X-Request-Id"] = tostring(count)})
end
"""


def measure() -> Iterator[Row | str]:
    """Hits, misses, a crowd on one cold archive, mixed load, and what a second process adds."""
    if shutil.which("nginx") is None or shutil.which("wrk") is None:
        raise SkippedError("nginx and wrk are not both installed")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        origin, edge = stack.enter_context(_origin()), free_port()
        stack.enter_context(_edge(origin, folder / "edge", edge))
        nginx = stack.enter_context(_nginx(origin, folder))
        rivals = {"nginx": nginx}
        with contextlib.suppress(SkippedError):
            rivals["varnish"] = stack.enter_context(_varnish(origin, folder))
        if "varnish" not in rivals:
            yield "edge: varnish is skipped, it is not installed or does not start"
        for size, aim in AIMS.items():
            for rival, port in rivals.items():
                yield _hits(size, edge, rival, port, aim)
        for rival, port in rivals.items():
            yield _first_bytes(edge, rival, port)
        yield _different(edge, nginx, folder)
        yield _mixed(edge, nginx, folder)
        with _edge(origin, folder / "crowd", crowded := free_port()) as fresh:
            yield asyncio.run(_crowd(crowded, fresh, origin))
        yield _two_processes(origin, nginx, folder)


def _hits(size: str, edge: int, rival: str, port: int, aim: float) -> Row:
    path = f"/g/app/-/raw/main/x/{size}"
    ours, theirs = by_turns(lambda: _requests(edge, path), lambda: _requests(port, path))
    return Row(f"edge, hits of {size}", ours, theirs, rival, aim)


def _requests(port: int, path: str) -> float:
    url = f"http://127.0.0.1:{port}{path}"
    urllib.request.urlopen(url).read()
    return load.http_requests(url, {}, SECONDS)


def _first_bytes(edge: int, rival: str, port: int) -> Row:
    def misses(port: int) -> float:
        began = time.perf_counter()
        for _ in range(200):
            path = f"/g/app/-/raw/main/{time.perf_counter_ns()}/64KiB"
            with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}") as response:
                response.read(1)
        return 200 / (time.perf_counter() - began)

    ours, theirs = by_turns(lambda: misses(edge), lambda: misses(port))
    return Row("edge, first bytes of cold 64KiB objects, one client", ours, theirs, rival, 0.5)


def _different(edge: int, nginx: int, folder: Path) -> Row:
    ours, theirs = _scripted(DIFFERENT, folder / "different.lua", edge, nginx)
    return Row("edge, hits of 4KiB, no two heads the same", ours, theirs, "nginx", 0.45)


def _mixed(edge: int, nginx: int, folder: Path) -> Row:
    ours, theirs = _scripted(MIXED, folder / "mixed.lua", edge, nginx)
    return Row("edge, mixed 4KiB, 1 % private and validated (nginx passes them)", ours, theirs, "nginx", 0.4)


def _scripted(text: str, script: Path, edge: int, nginx: int) -> tuple[float, float]:
    """Requests a second that a Lua script makes at both ports."""
    script.write_text(text)

    def requests(port: int) -> float:
        return load.http_requests(f"http://127.0.0.1:{port}/", {}, SECONDS, script=script)

    return by_turns(lambda: requests(edge), lambda: requests(nginx))


async def _crowd(port: int, process: int, origin: int) -> str:
    """Many clients on one cold archive: the origin is asked once, and memory stays bounded."""
    url = f"http://127.0.0.1:{port}/g/app/-/archive/main/x/50MB"
    began = time.perf_counter()
    async with aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=600)
    ) as session:

        async def length() -> int:
            async with session.get(url) as response:
                return sum([len(chunk) async for chunk in response.content.iter_any()])

        lengths = await asyncio.gather(*(length() for _ in range(CROWD)))
    peak = _peak_bytes(process)
    asked = _asked(origin, "50MB")
    right = set(lengths) == {50_000_000} and asked == 1 and peak < MAX_CROWD_BYTES
    return (
        f"edge, {CROWD} clients on one cold 50 MB archive: {asked} origin requests, "
        f"peak memory {peak / 1e6:,.0f} MB (aim below {MAX_CROWD_BYTES / 1e6:,.0f}), "
        f"{time.perf_counter() - began:.1f} s{'' if right else '  MISSED'}"
    )


def _two_processes(origin: int, nginx: int, folder: Path) -> Row:
    port = free_port()
    with (
        _edge(origin, folder / "two", port, "--reuse-port"),
        _edge(origin, folder / "two", port, "--reuse-port"),
    ):
        path = "/g/app/-/raw/main/x/4KiB"
        ours, theirs = by_turns(lambda: _requests(port, path), lambda: _requests(nginx, path))
    return Row("edge, two processes, hits of 4KiB", ours, theirs, "nginx, one worker", 0.6)


def _asked(origin: int, size: str) -> int:
    """How often anybody has asked the origin for bodies of this size."""
    with urllib.request.urlopen(f"http://127.0.0.1:{origin}/count/{size}") as response:
        return int(response.read())


def _peak_bytes(process: int) -> int:
    status = Path(f"/proc/{process}/status").read_text(encoding="ascii")
    return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))


@contextlib.contextmanager
def _edge(origin: int, directory: Path, port: int, *options: str) -> Iterator[int]:
    command = [sys.executable, "-m", "storage_edge", "--origin", f"http://127.0.0.1:{origin}"]
    command += ["--data-dir", str(directory), "--no-access-log", "--port", str(port), *options]
    with _program(command, port) as process:
        yield process


@contextlib.contextmanager
def _origin() -> Iterator[int]:
    port = free_port()
    with _program([sys.executable, "-m", "scripts.bench.edge_origin", str(port)], port):
        yield port


@contextlib.contextmanager
def _nginx(origin: int, folder: Path) -> Iterator[int]:
    port = free_port()
    user = "user root;" if os.geteuid() == 0 else ""
    configuration = folder / "nginx.conf"
    configuration.write_text(NGINX.format(folder=folder, port=port, origin=origin, user=user))
    with _program(["nginx", "-p", str(folder), "-c", str(configuration)], port):
        yield port


@contextlib.contextmanager
def _varnish(origin: int, folder: Path) -> Iterator[int]:
    if shutil.which("varnishd") is None:
        raise SkippedError("varnishd is not installed")
    port = free_port()
    command = ["varnishd", "-F", "-n", str(folder / "varnish"), "-a", f"127.0.0.1:{port}"]
    with _program([*command, "-b", f"127.0.0.1:{origin}", "-s", "malloc,1g"], port):
        yield port


@contextlib.contextmanager
def _program(command: list[str], port: int) -> Iterator[int]:
    """Runs a program that listens on `port`, and ends it."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 15
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            if process.poll() is not None or time.monotonic() > deadline:
                raise SkippedError(f"{command[0]} does not start")
            time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()
