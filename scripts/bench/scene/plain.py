"""An API server with an empty database: as a process of its own, and in this one."""

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import attrs

from api_server.state.migrate import migrate
from common import logs
from forgelet.local.embedded_postgres import Cluster, temporary
from scripts.bench.harness.bench import Bench
from scripts.bench.scene.api_process import Running, running
from tests.support.forge import Forge, running_forge


@attrs.frozen
class Plain:
    """The process, and its database."""

    cluster: Cluster
    running: Running


@contextlib.contextmanager
def plain(_: Bench) -> Iterator[Plain]:
    """As a process of its own."""
    with (
        temporary() as cluster,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        running(cluster, Path(folder)) as server,
    ):
        yield Plain(cluster, server)


@attrs.frozen
class InProcess:
    """`runner` runs coroutines on the loop of `forge`, which rests between them."""

    runner: asyncio.Runner
    forge: Forge


@contextlib.contextmanager
def in_process(_: Bench) -> Iterator[InProcess]:
    """In this process, so that a part of it can be left out; its log is written as ever, and read by nobody."""
    with (
        temporary() as cluster,
        tempfile.TemporaryDirectory(dir="/tmp") as folder,
        Path(os.devnull).open("w") as nowhere,
        asyncio.Runner() as runner,
    ):
        logs.configure("console", stream=nowhere)
        migrate(cluster.url())
        stack = contextlib.AsyncExitStack()
        server = running_forge(cluster.url(), Path(folder), work=False, allow_local_requests=True)
        forge = runner.run(stack.enter_async_context(server))
        try:
            yield InProcess(runner, forge)
        finally:
            runner.run(stack.aclose())
