"""Several workers of one edge, behind a supervisor: what one stores or purges holds for all."""

import asyncio
import os
import signal
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.storage_edge.conftest import PURGE_TOKEN, Origin
from tests.storage_edge.processes import EdgeProcess, edge_process
from tests.support.ports import free_port

RAW = "/group/app/-/raw/main/README.md"
WORKERS = 2
#: New connections until both workers have surely been met.
CONNECTIONS = 40


def workers_of(pid: int) -> set[int]:
    return {int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


async def _get(url: str) -> tuple[bytes, str]:
    """Body and Cache-Status, over a connection of its own."""
    async with (
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
        session.get(url) as response,
    ):
        assert response.status == 200
        return await response.read(), response.headers.get("Cache-Status", "")


async def _purge(url: str) -> None:
    async with (
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {PURGE_TOKEN}"}) as session,
        session.post(f"{url}/-/purge", json={"prefixes": ["/group/"]}) as response,
    ):
        assert response.status == 200


async def _until_there_are(edge: EdgeProcess, *, without: set[int]) -> None:
    while len(found := workers_of(edge.process.pid)) != WORKERS or found & without:
        await asyncio.sleep(0.05)


def _options() -> tuple[str, ...]:
    return "--workers", str(WORKERS), "--port", str(free_port()), "--no-access-log"


async def test_workers_share_what_is_stored_and_every_purge(origin: Origin, tmp_path: Path) -> None:
    origin.answers(b"0")
    async with edge_process(origin, tmp_path / "edge", *_options()) as edge, asyncio.timeout(90):
        await _until_there_are(edge, without=set())
        for version in range(4):
            for _ in range(CONNECTIONS):
                assert (await _get(edge.url + RAW))[0] == b"%d" % version
            origin.answers(b"%d" % (version + 1), etag=f'"{version + 1}"')
            await _purge(edge.url)
        assert len(origin.requests) <= 4 * WORKERS
        before = origin.requests[:]
        text = (await _get(f"{edge.url}/-/metrics"))[0].decode()
        assert sum(_samples(text, "edge_requests_total")) == 4 * CONNECTIONS
        assert len(origin.requests) == len(before)
        await edge.stop()


def _samples(text: str, name: str) -> list[float]:
    return [float(line.split()[-1]) for line in text.splitlines() if line.startswith(f"{name}{{")]


async def test_workers_are_replaced_and_killed_and_nobody_is_refused(origin: Origin, tmp_path: Path) -> None:
    origin.answers(b"0")
    async with edge_process(origin, tmp_path / "edge", *_options()) as edge, asyncio.timeout(90):
        await _until_there_are(edge, without=set())
        answered = 0

        async def ask() -> None:
            nonlocal answered
            while True:
                assert (await _get(edge.url + RAW))[0] == b"0"
                answered += 1

        asking = asyncio.create_task(ask())
        before = workers_of(edge.process.pid)
        edge.process.send_signal(signal.SIGHUP)
        await _until_there_are(edge, without=before)
        assert not asking.done()
        asking.cancel()
        assert answered
        assert len(origin.requests) == 1, "what is stored stays"

        killed = min(workers_of(edge.process.pid))
        os.kill(killed, signal.SIGKILL)
        await _until_there_are(edge, without={killed})
        for _ in range(CONNECTIONS):
            assert (await _get(edge.url + RAW))[0] == b"0"
        await edge.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "several workers share a data_dir, and there is none"),
        (("--data-dir", "DIRECTORY", "--reuse-port"), "reuse_port and workers contradict each other"),
        (("--data-dir", "DIRECTORY", "--testing"), "testing and workers contradict each other"),
    ],
)
async def test_what_workers_cannot_have_is_said(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    options = tuple(str(tmp_path) if one == "DIRECTORY" else one for one in options)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "storage_edge", *_options(), *options, stderr=asyncio.subprocess.PIPE
    )
    _, told = await asyncio.wait_for(process.communicate(), 30)
    assert (process.returncode, said in told.decode()) == (2, True), told
