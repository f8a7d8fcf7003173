"""A full disk: purges hold, every client gets the whole of what it asked for, and all of it heals without hands."""

import asyncio
import contextlib
import resource
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import attrs
import pytest

from tests.storage_edge.conftest import PURGE_TOKEN, Origin
from tests.storage_edge.disks import Disk, small_disk
from tests.storage_edge.processes import EdgeProcess, edge_process

SECRET = "/group/app/-/raw/main/secret.txt"
OTHER = "/group/other/-/raw/main/README.md"
LARGE = "/group/app/-/archive/main/app.zip"
OPTIONS = ("--memory-object-bytes", "65536")


@attrs.frozen
class Answer:
    status: int
    body: bytes
    cache_status: str


@attrs.frozen
class Client:
    """Asks an edge process, each time over a connection of its own."""

    session: aiohttp.ClientSession

    async def get(self, edge: EdgeProcess, target: str) -> Answer:
        async with self.session.get(edge.url + target) as response:
            status = response.headers.get("Cache-Status", "")
            return Answer(response.status, await response.read(), status)

    async def is_hit(self, edge: EdgeProcess, target: str) -> bool:
        return "; hit" in (await self.get(edge, target)).cache_status

    async def purge(self, edge: EdgeProcess, **document: object) -> tuple[int, object]:
        headers = {"Authorization": f"Bearer {PURGE_TOKEN}"}
        async with self.session.post(f"{edge.url}/-/purge", json=document, headers=headers) as response:
            return response.status, await response.json()

    async def readiness(self, edge: EdgeProcess) -> tuple[int, object]:
        async with self.session.get(f"{edge.url}/-/readiness") as response:
            return response.status, (await response.json())["disk"]

    async def metric(self, edge: EdgeProcess, name: str) -> float:
        async with self.session.get(f"{edge.url}/-/metrics") as response:
            lines = (await response.text()).splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f"{name} ")))

    async def until_usable(self, edge: EdgeProcess) -> None:
        async with asyncio.timeout(20):
            while (await self.readiness(edge))[1] != {"status": "ok"}:
                await asyncio.sleep(0.05)


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session:
        yield Client(session)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    with small_disk(tmp_path / "disk") as disk:
        yield disk


@contextlib.asynccontextmanager
async def _edge(origin: Origin, directory: Path, *options: str) -> AsyncIterator[EdgeProcess]:
    async with edge_process(origin, directory, *OPTIONS, *options) as edge:
        yield edge


async def _secret_is_kept(client: Client, origin: Origin, directory: Path, *edges: EdgeProcess) -> None:
    """By all of these processes, and on disk, a moment after it has been answered with."""
    origin.answers(b"secret", cache_control="max-age=600", Surrogate_Key="project-1")
    async with asyncio.timeout(20):
        for edge in edges:
            while not (await client.is_hit(edge, SECRET) and [*directory.glob("*/objects/*/*")]):
                pass


async def test_a_purge_holds_on_a_full_disk_for_all_processes_and_after_kill_9(
    origin: Origin, client: Client, disk: Disk
) -> None:
    async with _edge(origin, disk.path) as one, _edge(origin, disk.path) as two:
        await _secret_is_kept(client, origin, disk.path, one, two)
        origin.answers(status=404, etag=None, cache_control="no-store")
        disk.fill()
        assert await client.purge(one, keys=["project-1"]) == (200, {"purged": 1})
        for edge in (one, two):
            assert (await client.get(edge, SECRET)).status == 404
            edge.process.send_signal(signal.SIGKILL)
    async with _edge(origin, disk.path) as again:
        assert (await client.get(again, SECRET)).status == 404
        disk.empty()
        await client.until_usable(again)
        assert (await client.get(again, SECRET)).status == 404


async def test_a_purge_that_nothing_can_be_written_of_is_one_of_everything(
    origin: Origin, client: Client, tmp_path: Path
) -> None:
    async with _edge(origin, tmp_path / "edge") as edge, _edge(origin, tmp_path / "edge") as other:
        await _secret_is_kept(client, origin, tmp_path / "edge", edge, other)
        resource.prlimit(edge.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
        origin.answers(status=404, etag=None, cache_control="no-store")
        assert await client.purge(edge, keys=["project-1"]) == (200, {"purged": 1})
        assert (await client.get(edge, SECRET)).status == 404
        assert (await client.get(other, SECRET)).status == 404
        edge.process.send_signal(signal.SIGKILL)
    async with _edge(origin, tmp_path / "edge") as again:
        assert (await client.get(again, SECRET)).status == 404


async def test_a_full_disk_costs_no_client_a_byte_and_heals_by_itself(
    origin: Origin, client: Client, disk: Disk
) -> None:
    async with _edge(origin, disk.path) as edge:
        disk.fill()
        await _serves_without_disk(client, edge, origin)
        disk.empty()
        await client.until_usable(edge)
        assert await client.metric(edge, "edge_disk_usable") == 1.0
        origin.answers(b"kept again" * 10_000, cache_control="max-age=600")
        async with asyncio.timeout(20):
            while not await client.is_hit(edge, "/group/app/-/raw/main/large"):
                pass
        log = await edge.stop()
    said = [line for line in log if line["event"] == "the disk tier cannot be used"]
    assert said
    assert all("exception" not in line for line in log)
    assert len(said) < 30, said


@pytest.mark.parametrize("was_there", [True, False])
async def test_the_edge_starts_on_a_full_disk_and_serves(
    origin: Origin, client: Client, disk: Disk, was_there: bool
) -> None:
    if was_there:
        async with _edge(origin, disk.path) as edge:
            await _secret_is_kept(client, origin, disk.path, edge)
            edge.process.send_signal(signal.SIGKILL)
    disk.fill()
    async with _edge(origin, disk.path) as edge:
        origin.answers(b"anew" * 50_000, cache_control="max-age=600")
        for _ in range(2):
            assert (await client.get(edge, LARGE)).body == b"anew" * 50_000
        status, shown = await client.readiness(edge)
        assert (status, shown["status"]) == (200, "degraded")
        assert await client.metric(edge, "edge_disk_usable") == 0.0
        assert (await client.purge(edge, keys=["project-1"]))[0] == 200
        disk.empty()
        await client.until_usable(edge)
        async with asyncio.timeout(20):
            while not await client.is_hit(edge, LARGE):
                pass


async def _serves_without_disk(client: Client, edge: EdgeProcess, origin: Origin) -> None:
    body = bytes(range(256)) * 20_000
    origin.answers(body, cache_control="max-age=600")
    answers = await asyncio.gather(*(client.get(edge, f"{LARGE}?n={n // 4}") for n in range(12)))
    assert {(answer.status, answer.body) for answer in answers} == {(200, body)}
    origin.answers(b"small", cache_control="max-age=600")
    for number in range(20):
        assert not await client.is_hit(edge, f"{OTHER}/{number}")
    async with asyncio.timeout(20):
        for number in range(20):
            while not await client.is_hit(edge, f"{OTHER}/{number}"):
                pass
    status, shown = await client.readiness(edge)
    assert (status, shown["status"]) == (200, "degraded")
    assert await client.metric(edge, "edge_disk_usable") == 0.0
