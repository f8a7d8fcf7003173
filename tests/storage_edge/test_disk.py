"""A disk tier that is damaged, full, or left by a crash."""

import asyncio
import contextlib
import hashlib
import os
import random
import resource
import shutil
import signal
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
import attrs
import pytest
from aiohttp import web

from storage_edge.client.handlers import STORE
from tests.storage_edge.conftest import PURGE_TOKEN, RAW, Edge, Origin, StartEdge
from tests.storage_edge.origins import head, talk
from tests.storage_edge.processes import EdgeProcess, edge_process
from tests.support.disks import Disk, small_disk
from tests.support.waiting import until

LARGE = 700_000


def _overwritten(path: Path, content: bytes) -> None:
    with path.open("r+b") as file:
        file.write(content)


def _replaced(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy(path, other)
    other.replace(path)


def _without_tables(path: Path) -> None:
    path.unlink()
    sqlite3.connect(path).close()


#: Damages of the tier's directory.
HARM: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _root: None,
    "all of it is deleted": shutil.rmtree,
    "all of it is moved away": lambda root: root.rename(root.with_name("moved")),
    "objects are deleted": lambda root: shutil.rmtree(root / "objects"),
    "what arrives is deleted": lambda root: shutil.rmtree(root / "incoming"),
    "the index is deleted": lambda root: [path.unlink() for path in root.glob("index*")],
    "the index is deleted, its journal is not": lambda root: (root / "index.sqlite3").unlink(),
    "the index's journal is deleted": lambda root: [path.unlink() for path in root.glob("index.sqlite3-*")],
    "the index is overwritten": lambda root: _overwritten(root / "index.sqlite3", b"no database" * 4000),
    "the index is empty": lambda root: os.truncate(root / "index.sqlite3", 0),
    "the index is cut short": lambda root: os.truncate(root / "index.sqlite3", 5000),
    "the index is replaced": lambda root: _replaced(root / "index.sqlite3"),
    "the index has no tables": lambda root: _without_tables(root / "index.sqlite3"),
    "the purge log is deleted": lambda root: (root / "purges").unlink(),
    "the purge log is empty": lambda root: os.truncate(root / "purges", 0),
    "the purge log is cut short": lambda root: os.truncate(root / "purges", 5000),
    "the purge log is zeroed": lambda root: _overwritten(root / "purges", b"\0" * 100_000),
    "the purge log is replaced": lambda root: _replaced(root / "purges"),
}


@pytest.mark.parametrize("harm", HARM.values(), ids=HARM)
async def test_whatever_becomes_of_the_tier_it_heals_and_purges_reach_every_process(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, harm: Callable[[Path], object]
) -> None:
    edges = [await start_edge(), await start_edge()]
    body = random.Random(1).randbytes(LARGE)
    origin.answers(body, cache_control="max-age=600", Surrogate_Key="project-1")
    for edge in edges:
        assert (await edge.get(RAW)).body == body
        await edge.settled()
    (root,) = tmp_path.glob("edge/v*")
    harm(root)
    for edge in edges * 2:
        assert (await edge.get(RAW)).body == body
        await edge.settled()
        await edge.app[STORE].tend()
    for edge in (*edges, await start_edge()):
        await _until_hit(edge)
    for number, edge in enumerate(edges):
        body = random.Random(2 + number).randbytes(LARGE)
        origin.answers(body, etag=f'"{number}"', cache_control="max-age=600", Surrogate_Key="project-1")
        await edge.purge(keys=["project-1"])
        for other in (*edges, await start_edge()):
            assert (await other.get(RAW)).body == body
            await other.settled()
    for edge in edges:
        await edge.app[STORE].tend()
        assert edge.app[STORE].disk.size == LARGE
        await edge.app[STORE].check()


async def _until_hit(edge: Edge) -> None:
    """Wait until the edge has noticed the damage, or the replacement by others, and serves a hit."""
    async with asyncio.timeout(20):
        while "; hit" not in (await edge.get(RAW)).cache_status:
            await edge.settled()


async def test_who_has_not_noticed_another_purge_log_leaves_the_index_alone(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    """A process without requests checks its bodies all the same."""
    asked, unasked = await start_edge(), await start_edge()
    origin.answers(random.Random(1).randbytes(LARGE), cache_control="max-age=600")
    for edge in (asked, unasked):
        await edge.get(RAW)
        await edge.settled()
    (log,) = tmp_path.glob("edge/v*/purges")
    log.unlink()
    async with asyncio.timeout(20):
        while not log.exists():
            await asked.get(RAW)
    await _until_hit(asked)
    before = len(origin.requests)
    await unasked.app[STORE].check_bodies(2**40, pause=0)
    await _until_hit(asked)
    assert len(origin.requests) == before
    await unasked.app[STORE].check()


def _flip(path: Path, *, unnoticed: bool = False) -> None:
    """Change one bit in the middle; `unnoticed` restores the time of the last change."""
    before = path.stat()
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    _overwritten(path, bytes(content))
    if unnoticed:
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize("unnoticed", [False, True])
@pytest.mark.parametrize("size", [100_000, 200_000, LARGE])
async def test_flipped_bits_are_not_served(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, size: int, unnoticed: bool
) -> None:
    """This holds for pieces, for sendfile, and for a process that has not read the file before."""
    edges = [await start_edge(), await start_edge()]
    body = random.Random(1).randbytes(size)
    origin.answers(body, cache_control="max-age=600")
    async with talk(edges[0].port) as client:
        for _ in range(4):
            assert (await client.ask(head())).endswith(body)
            await edges[0].settled()
        assert (await edges[1].get(RAW)).body == body
        (file,) = tmp_path.glob("edge/*/objects/*/*")
        _flip(file, unnoticed=unnoticed)
        for _ in range(8):
            assert (await client.ask(head())).endswith(body)
            await edges[0].settled()
            assert (await edges[1].get(RAW)).body == body
            await edges[1].settled()
    assert (await (await start_edge()).get(RAW)).body == body


async def test_damaged_bodies_are_found_without_being_asked_for(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    edge = await start_edge(disk_check_rate=0)
    for number in range(3):
        origin.answers(bytes([number]) * LARGE, etag=f'"{number}"')
        await edge.get(f"{RAW}/{number}")
    await edge.settled()
    files = sorted(tmp_path.glob("edge/*/objects/*/*"))
    _flip(files[0], unnoticed=True)
    files[1].unlink()
    nobodys = files[2].with_name("0" * 62)
    nobodys.write_bytes(b"left by a killed process")
    await edge.app[STORE].check_bodies(2**40, pause=0)
    assert list(tmp_path.glob("edge/*/objects/*/*")) == [files[2]]
    assert edge.app[STORE].disk.size == LARGE
    async with edge.session.get(f"{edge.url}/-/metrics") as response:
        assert "\nedge_disk_damaged_files_total 2.0\n" in await response.text()


async def test_a_row_with_flipped_bits_counts_as_not_stored(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    origin.answers(b"right", cache_control="max-age=600", X_Name="right")
    first = await start_edge()
    await first.get(RAW)
    await first.settled()
    (path,) = tmp_path.glob("edge/*/index.sqlite3")
    index = sqlite3.connect(path)
    with index:
        index.execute("UPDATE responses SET response = replace(response, 'right', 'wrong')")
    index.close()
    second = await start_edge()
    for expected in ("fwd=uri-miss", "; hit"):
        answer = await second.get(RAW)
        assert (answer.headers["X-Name"], expected in answer.cache_status) == ("right", True)
        await second.settled()


async def test_a_file_that_is_cut_short_while_it_is_sent_ends_the_answer_and_not_the_process(
    origin: Origin, tmp_path: Path
) -> None:
    body = random.Random(1).randbytes(30_000_000)
    origin.answers(body, cache_control="max-age=600")
    async with aiohttp.ClientSession() as session, edge_process(origin, tmp_path / "edge") as edge:

        async def status() -> str:
            async with session.get(edge.url + RAW) as response:
                assert await response.read() == body
                return response.headers["Cache-Status"]

        while "; hit" not in await status():
            pass
        async with talk(edge.port, takes_little=True) as client:
            client.writer.write(head())
            await client.reader.readuntil(b"\r\n\r\n")
            await until(lambda: [*tmp_path.glob("edge/*/objects/*/*")])  # hits are served before that
            (file,) = tmp_path.glob("edge/*/objects/*/*")
            os.truncate(file, 0)
            with pytest.raises((EOFError, ConnectionError)):
                await client.reader.readexactly(len(body))
        assert "fwd=uri-miss" in await status()
        await edge.stop()


async def test_a_copy_from_before_a_purge_is_not_believed(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    edge = await start_edge()
    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-1")
    await edge.get(RAW)
    await edge.settled()
    copy = tmp_path / "edge" / "copy"
    (root,) = tmp_path.glob("edge/v*")
    shutil.copytree(root, copy)
    await edge.purge(keys=["project-1"])
    shutil.rmtree(root)
    copy.rename(root)
    origin.answers(b"new", etag='"2"', cache_control="max-age=600")
    for one in (edge, await start_edge()):
        assert (await one.get(RAW)).body == b"new"


async def test_what_another_version_has_left_is_removed(start_edge: StartEdge, tmp_path: Path) -> None:
    old = tmp_path / "edge" / "v1"
    (old / "objects" / "ab").mkdir(parents=True)
    (old / "objects" / "ab" / "cd").write_bytes(b"has missed purges")
    await start_edge()
    await until(lambda: not old.exists())


BUDGET = 6_000_000
#: Number of kills of the process; operators may run more.
KILLS = int(os.environ.get("FORGELET_EDGE_KILLS", "2"))


def _body(path: str) -> bytes:
    """Return the origin's content at a path: always the same, up to a megabyte."""
    seed = hashlib.sha256(path.encode()).digest()
    return seed * (int.from_bytes(seed[:2]) // 2)


def _process(origin: Origin, directory: Path) -> contextlib.AbstractAsyncContextManager[EdgeProcess]:
    return edge_process(
        origin, directory, "--disk-bytes", str(BUDGET), "--memory-object-bytes", "65536", "--no-access-log"
    )


async def _ask(session: aiohttp.ClientSession, url: str, path: str) -> bool:
    """Return whether an answer came; a wrong byte in it fails the test."""
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
            async with asyncio.timeout(20):  # it is stored soon after it was fetched
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


SECRET = "/group/app/-/raw/main/secret.txt"
OTHER = "/group/other/-/raw/main/README.md"
LARGE_BODY = "/group/app/-/archive/main/app.zip"
OPTIONS = ("--memory-object-bytes", "65536")


@attrs.frozen
class Answer:
    status: int
    body: bytes
    cache_status: str


@attrs.frozen
class Client:
    """A client of an edge process, with a new connection for each request."""

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
    """Wait until all of these processes serve it from their stores, and it is on disk."""
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
            assert (await client.get(edge, LARGE_BODY)).body == b"anew" * 50_000
        status, shown = await client.readiness(edge)
        assert (status, shown["status"]) == (200, "degraded")
        assert await client.metric(edge, "edge_disk_usable") == 0.0
        assert (await client.purge(edge, keys=["project-1"]))[0] == 200
        disk.empty()
        await client.until_usable(edge)
        async with asyncio.timeout(20):
            while not await client.is_hit(edge, LARGE_BODY):
                pass


async def _serves_without_disk(client: Client, edge: EdgeProcess, origin: Origin) -> None:
    body = bytes(range(256)) * 20_000
    origin.answers(body, cache_control="max-age=600")
    answers = await asyncio.gather(*(client.get(edge, f"{LARGE_BODY}?n={n // 4}") for n in range(12)))
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
