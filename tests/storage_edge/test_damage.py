"""The disk tier damaged under running edges: nothing wrong is served, no purge is lost, and it is whole again without
a restart."""

import asyncio
import os
import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import aiohttp
import pytest

from storage_edge.client.handlers import STORE
from tests.storage_edge.conftest import Edge, Origin, StartEdge
from tests.storage_edge.processes import edge_process
from tests.storage_edge.talk import head, talk
from tests.support.waiting import until

RAW = "/group/app/-/raw/main/README.md"
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


#: What happens to the directory of the tier.
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
    """As soon as it has noticed what is damaged, or what others have put in its place."""
    async with asyncio.timeout(20):
        while "; hit" not in (await edge.get(RAW)).cache_status:
            await edge.settled()


async def test_who_has_not_noticed_another_purge_log_leaves_the_index_alone(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    """A process that nobody asks looks through its bodies all the same."""
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
    """Changes one bit in the middle; `unnoticed` puts the time of the last change back."""
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
    """Neither piece by piece, nor by sendfile, nor by a process that has not read the file before."""
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
