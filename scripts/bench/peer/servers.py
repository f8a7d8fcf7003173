"""Starts the peers of the API: FastAPI, the bare handler, Prism."""

import contextlib
import importlib.util
import os
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import attrs

from scripts.bench.harness.measuring import listening, need
from scripts.bench.harness.runs import Bench, NotMeasured
from scripts.bench.scene.service import POOL, TOKEN, service
from tests.support.ports import free_port


@attrs.frozen
class Peer:
    """Where it listens, and the processes whose processor time counts."""

    url: str
    pids: list[int]


@contextlib.contextmanager
def fastapi(bench: Bench) -> Iterator[Peer]:
    """FastAPI on uvicorn with uvloop and httptools, over the service's database."""
    for module in ("fastapi", "sqlalchemy", "asyncpg", "pydantic", "uvicorn", "httptools"):
        if importlib.util.find_spec(module) is None:
            raise NotMeasured(f"{module} is not installed (the extra `bench` has it).")
    served, port = bench.use(service), free_port()
    environment = {
        **os.environ,
        "BENCH_DATABASE_URL": served.cluster.url(),
        "BENCH_POOL": str(POOL),
        "BENCH_TOKEN": TOKEN,
    }
    command = [sys.executable, "-m", "uvicorn", "scripts.bench.peer.fastapi_app:app", "--port", str(port)]
    command += ["--no-access-log", "--loop", "uvloop", "--http", "httptools"]
    with listening(command, port, bench.new_folder() / "log", environment) as pid:
        yield Peer(f"http://127.0.0.1:{port}", [pid, served.running.database])


@attrs.frozen
class Bare:
    """The handler, and the folder whose files it answers with."""

    url: str
    pids: list[int]
    folder: Path


@contextlib.contextmanager
def bare(bench: Bench) -> Iterator[Bare]:
    """An aiohttp handler that does nothing."""
    port, folder = free_port(), bench.new_folder()
    command = [sys.executable, "-m", "scripts.bench.peer.bare", str(port), str(folder)]
    with listening(command, port, bench.new_folder() / "log") as pid:
        yield Bare(f"http://127.0.0.1:{port}", [pid], folder)


@contextlib.contextmanager
def prism(bench: Bench) -> Iterator[Peer]:
    """Stoplight Prism with our description, answering with its examples."""
    need("prism")
    port, folder = free_port(), bench.new_folder()
    description = folder / "openapi.json"
    with urllib.request.urlopen(f"{bench.use(service).api.base_url}/api/v4/openapi.json") as answer:
        description.write_bytes(answer.read())
    command = ["prism", "mock", "--port", str(port), "--host", "127.0.0.1", "--verboseLevel", "error"]
    with listening([*command, str(description)], port, folder / "log") as pid:
        yield Peer(f"http://127.0.0.1:{port}", [pid])
