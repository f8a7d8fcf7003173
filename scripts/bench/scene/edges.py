"""The edge, nginx's proxy_cache and Varnish, all in front of one origin, with and without their access logs."""

import contextlib
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs

from scripts.bench.harness.measuring import listening, need
from scripts.bench.harness.runs import Bench
from tests.support.ports import free_port

NGINX = """
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
def origin(bench: Bench) -> Iterator[int]:
    """The port of the origin."""
    port = free_port()
    command = [sys.executable, "-m", "scripts.bench.scene.edge_origin", str(port)]
    with listening(command, port, bench.new_folder() / "log"):
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
    command = [sys.executable, "-m", "storage_edge", "--origin", f"http://127.0.0.1:{bench.use(origin)}"]
    command += ["--data-dir", str(data or bench.new_folder()), "--port", str(port), *options]
    with listening(command, port, bench.new_folder() / "log", asked="/-/readiness") as pid:
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
    text = NGINX.format(
        folder=folder,
        port=port,
        origin=bench.use(origin),
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
    command += ["-b", f"127.0.0.1:{bench.use(origin)}", "-s", "malloc,1g"]
    with listening(command, port, folder / "log") as pid:
        yield Cache(port, pid)


def asked(origin_port: int, size: str) -> int:
    """How often anybody has asked the origin for bodies of this size."""
    with urllib.request.urlopen(f"http://127.0.0.1:{origin_port}/count/{size}") as response:
        return int(response.read())
