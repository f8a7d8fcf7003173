"""`kill -9` while bodies are being stored: afterwards every byte served is right, and the budget holds."""

import asyncio
import contextlib
import hashlib
import os
import random
import signal
import sqlite3
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from tests.storage_edge.conftest import Origin
from tests.storage_edge.processes import EdgeProcess, edge_process

BUDGET = 6_000_000
#: How often the process is killed; an operator's run takes more.
KILLS = int(os.environ.get("FORGELET_EDGE_KILLS", "2"))


def _body(path: str) -> bytes:
    """What the origin has at a path: the same at every time, up to a megabyte."""
    seed = hashlib.sha256(path.encode()).digest()
    return seed * (int.from_bytes(seed[:2]) // 2)


def _process(origin: Origin, directory: Path) -> contextlib.AbstractAsyncContextManager[EdgeProcess]:
    return edge_process(
        origin, directory, "--disk-bytes", str(BUDGET), "--memory-object-bytes", "65536", "--no-access-log"
    )


async def _ask(session: aiohttp.ClientSession, url: str, path: str) -> bool:
    """Whether an answer came; a wrong byte in it fails the test."""
    try:
        async with session.get(url + path) as response:
            body = await response.read()
    except (aiohttp.ClientError, ConnectionError):
        return False
    if response.status == 502:
        return False
    assert body == _body(path), path
    return True


@pytest.fixture
def served(origin: Origin) -> Origin:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(body=_body(request.path), headers={"Cache-Control": "max-age=86400"})

    origin.handler = handler
    return origin


@pytest.mark.timeout(60 + 5 * KILLS)
async def test_after_kill_9_every_byte_is_right_and_the_budget_holds(served: Origin, tmp_path: Path) -> None:
    dice = random.Random(7)
    paths = [f"/group/app/-/raw/main/{number}" for number in range(40)]
    async with aiohttp.ClientSession() as session:
        for _ in range(KILLS):
            async with _process(served, tmp_path) as edge:
                asked = [
                    asyncio.create_task(_ask(session, edge.url, path)) for path in dice.sample(paths, 12)
                ]
                await asyncio.sleep(dice.uniform(0, 0.25))
                edge.process.send_signal(signal.SIGKILL)
                await asyncio.gather(*asked)
        async with _process(served, tmp_path) as edge:
            assert all([await _ask(session, edge.url, path) for path in paths])
            async with asyncio.timeout(20):  # it is kept soon after it was fetched
                before = -1
                while len(served.requests) != before:
                    before = len(served.requests)
                    assert await _ask(session, edge.url, paths[0])
            await edge.stop()
    files = [path for path in tmp_path.glob("*/objects/*/*") if path.is_file()]
    with contextlib.closing(sqlite3.connect(*tmp_path.glob("*/index.sqlite3"))) as index:
        digests = {digest for (digest,) in index.execute("SELECT digest FROM bodies")}
    assert {path.parent.name + path.name for path in files} == digests != set()
    assert sum(path.stat().st_size for path in files) <= BUDGET
    assert list(tmp_path.glob("*/incoming/*")) == []


async def test_a_damaged_file_is_not_served_after_a_restart(served: Origin, tmp_path: Path) -> None:
    path = "/group/app/-/raw/main/damaged"
    async with aiohttp.ClientSession() as session:
        async with _process(served, tmp_path) as edge:
            assert await _ask(session, edge.url, path)
            await edge.stop()
        (stored,) = (file for file in tmp_path.glob("*/objects/*/*") if file.is_file())
        damaged = bytearray(stored.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        stored.write_bytes(damaged)
        async with _process(served, tmp_path) as edge:
            assert await _ask(session, edge.url, path)
    assert len(served.requests) == 2


async def test_an_index_that_cannot_be_read_is_started_anew(served: Origin, tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        async with _process(served, tmp_path) as edge:
            assert await _ask(session, edge.url, "/group/app/-/raw/main/1")
        for index in tmp_path.glob("*/index.sqlite3*"):
            index.write_bytes(b"no database" * 1000)
        async with _process(served, tmp_path) as edge:
            assert await _ask(session, edge.url, "/group/app/-/raw/main/1")
