"""What large bodies cost the edge's process in memory: next to nothing, however many clients take them."""

import asyncio
import random
import re
from pathlib import Path

import aiohttp
import pytest

from scripts.bench.measuring import read_by_crowd
from tests.storage_edge.conftest import Origin
from tests.storage_edge.processes import edge_process

ARCHIVE = "/group/app/-/archive/main/app-main.zip"
RAW = "/group/app/-/raw/main/README.md"
LENGTH = 48_000_000
#: What a crowd of 100 may cost: what arrives before it has a file, and some KiB for each client.
ALLOWED = 24_000_000


def _peak(pid: int) -> int:
    """The most bytes that were ever resident, pages of files that are mapped included."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("clients", [1, 100])
async def test_a_body_that_comes_and_goes_is_not_in_memory(
    origin: Origin, tmp_path: Path, clients: int
) -> None:
    """Neither while it arrives, nor when it is on disk."""
    async with edge_process(origin, tmp_path / "edge") as edge, aiohttp.ClientSession() as session:
        origin.answers(b"small", cache_control="public, max-age=600")
        await (await session.get(edge.url + RAW)).read()
        before = _peak(edge.process.pid)
        origin.answers(random.Random(1).randbytes(LENGTH), cache_control="public, max-age=600")
        for _ in range(2):
            await asyncio.to_thread(read_by_crowd, edge.port, ARCHIVE, clients, LENGTH)
        assert len(origin.requests) == 2
        assert _peak(edge.process.pid) - before < ALLOWED
        await edge.stop()


async def test_a_part_of_a_file_is_sent_whole_to_who_takes_it_slowly(origin: Origin, tmp_path: Path) -> None:
    """What the system does not take at once follows by pieces, and nothing twice."""
    body = random.Random(2).randbytes(9_000_000)
    origin.answers(body, cache_control="public, max-age=600")
    async with edge_process(origin, tmp_path / "edge") as edge, aiohttp.ClientSession() as session:
        for fields, expected in (
            ({}, body),
            ({"Range": "bytes=1000-8000000"}, body[1000:8_000_001]),
        ):
            async with session.get(edge.url + ARCHIVE, headers=fields) as response:
                received = bytearray()
                while piece := await response.content.read(300_000):
                    received += piece
                    await asyncio.sleep(0.002)
            assert bytes(received) == expected
        fields = {"Range": "bytes=0-4999999,6000000-8999999"}
        async with session.get(edge.url + ARCHIVE, headers=fields) as response:
            received = bytearray(await response.read())
            assert len(received) == int(response.headers["Content-Length"])
        assert body[:5_000_000] in received
        assert received.endswith(b"\r\n--" + received.split(b"\r\n", 1)[0][2:] + b"--\r\n")
        assert body[6_000_000:] in received
        await edge.stop()
