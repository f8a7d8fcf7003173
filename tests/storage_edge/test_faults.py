"""What fails inside the edge is said in the log, holds nothing, and costs no client more than it must."""

import asyncio
import contextlib
import gc
import os
import random
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage_edge import app
from storage_edge.client.handlers import CACHE, STORE
from storage_edge.storage.store import Store
from tests.storage_edge.conftest import RAW, Answer, Clock, Edge, Origin, StartEdge
from tests.storage_edge.origins import head, talk
from tests.support.logs import lines_of_edges
from tests.support.waiting import until


def _open_below(directory: Path) -> list[str]:
    """Files of a directory that this process holds open."""
    links = (os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir())
    return [link for link in links if link.startswith(str(directory))]


def _deleted_and_open(directory: Path) -> list[str]:
    return [path for path in _open_below(directory) if path.endswith("(deleted)")]


async def test_an_edge_that_cannot_start_leaves_nothing_open(start_edge: StartEdge, tmp_path: Path) -> None:
    threads = set(threading.enumerate())
    with pytest.raises(ValueError, match="shared_store_url needs"):
        await start_edge(data_dir=tmp_path / "own", shared_store_url="s3://")
    assert _open_below(tmp_path / "own") == []
    assert list(tmp_path.glob("own/*/incoming/*")) == []
    assert set(threading.enumerate()) <= threads


def test_an_index_that_cannot_be_read_is_closed_before_it_is_thrown_away(tmp_path: Path) -> None:
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "index.sqlite3").write_bytes(b"no database" * 1000)
    store = Store(tmp_path, Clock(), memory_bytes=0, memory_object_bytes=0, disk_bytes=1000)
    try:
        assert _deleted_and_open(tmp_path) == []
        assert not store.disk.size
    finally:
        asyncio.run(store.aclose())


@pytest.fixture
def no_garbage_is_collected() -> Iterator[None]:
    """What is let go of is let go of by those who held it."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _five_together(edge: Edge, origin: Origin, joined: Counter[str]) -> list[Answer]:
    """Answers to five requests that share one of the origin's."""
    _, gate = origin.held_back()
    clients = [asyncio.create_task(edge.get(RAW)) for _ in range(5)]
    await until(lambda: joined.total() == 5)
    gate.set()
    return await asyncio.gather(*clients)


@pytest.mark.usefixtures("no_garbage_is_collected")
@pytest.mark.parametrize(("size", "again"), [(1000, "; hit"), (700_000, "fwd=uri-miss")])
async def test_a_body_that_cannot_be_kept_still_goes_to_its_clients(
    edge: Edge, origin: Origin, joined: Counter[str], tmp_path: Path, size: int, again: str
) -> None:
    origin.answers(b"x" * size)
    (objects,) = tmp_path.glob("edge/*/objects")
    shutil.rmtree(objects)
    objects.write_text("not a folder")
    with lines_of_edges() as logs:
        answers = await _five_together(edge, origin, joined)
        await edge.settled()
    assert {answer.body for answer in answers} == {b"x" * size}
    assert [(line["event"], "exc_info" in line) for line in logs] == [("the disk tier cannot be used", False)]
    await until(lambda: not _deleted_and_open(tmp_path))
    assert list(tmp_path.glob("edge/*/incoming/*/*")) == []
    answer = await edge.get(RAW)
    assert (answer.body, again in answer.cache_status) == (b"x" * size, True)


@pytest.mark.usefixtures("no_garbage_is_collected")
async def test_a_body_whose_storing_fails_for_an_unknown_reason_is_let_go_of(
    edge: Edge, origin: Origin, joined: Counter[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def save(*_: object, **__: object) -> None:
        raise AssertionError("a mistake")

    origin.answers(b"x" * 700_000)
    monkeypatch.setattr(edge.app[STORE].disk, "save", save)
    with lines_of_edges() as logs:
        answers = await _five_together(edge, origin, joined)
        await edge.settled()
    assert {answer.body for answer in answers} == {b"x" * 700_000}
    assert [line["event"] for line in logs if line["log_level"] == "error"] == [
        "a fetch from the origin failed"
    ]
    await until(lambda: not _deleted_and_open(tmp_path))
    assert list(tmp_path.glob("edge/*/incoming/*/*")) == []


async def test_a_body_that_cannot_be_written_is_passed_on_at_the_pace_of_its_readers(
    edge: Edge, origin: Origin, tmp_path: Path
) -> None:
    body = random.Random(1).randbytes(8_000_000)
    origin.answers(body)
    (incoming,) = tmp_path.glob("edge/*/incoming")
    shutil.rmtree(incoming)
    incoming.write_text("not a folder")
    async with talk(edge.port, takes_little=True) as slow:
        slow.writer.write(head())
        await slow.reader.readuntil(b"\r\n\r\n")
        quick = asyncio.create_task(edge.get(RAW))  # it comes too late for what is passed on already
        assert await slow.reader.readexactly(len(body)) == body
    assert (await quick).body == body
    incoming.unlink()
    await edge.app[STORE].tend()
    for expected in ("fwd=uri-miss", "; hit"):
        answer = await edge.get(RAW)
        assert (answer.body, expected in answer.cache_status) == (body, True)
        await edge.settled()


async def test_a_body_that_can_neither_be_kept_nor_is_read_is_given_up(
    edge: Edge, origin: Origin, tmp_path: Path
) -> None:
    origin.answers(b"x" * 20_000_000)
    (incoming,) = tmp_path.glob("edge/*/incoming")
    shutil.rmtree(incoming)
    incoming.write_text("not a folder")
    async with talk(edge.port, takes_little=True) as client:
        client.writer.write(head())
        await client.reader.readuntil(b"\r\n\r\n")
        client.writer.transport.abort()
    await asyncio.wait_for(edge.settled(), 20)


async def test_a_response_that_another_version_has_written_counts_as_not_stored(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    origin.answers(b"whole")
    first = await start_edge()
    await first.get(RAW)
    await first.settled()
    with contextlib.closing(sqlite3.connect(*tmp_path.glob("edge/*/index.sqlite3"))) as index, index:
        index.execute("UPDATE responses SET response = json_set(response, '$.policy.of_tomorrow', 1)")
    second = await start_edge()
    for expected in ("fwd=uri-miss", "; hit"):
        answer = await second.get(RAW)
        assert (answer.status, answer.body, expected in answer.cache_status) == (200, b"whole", True)
        await second.settled()


@pytest.mark.parametrize("size", [1000, 700_000])
async def test_what_is_being_kept_when_the_edge_ends_is_kept(
    edge: Edge, origin: Origin, tmp_path: Path, size: int
) -> None:
    origin.answers(b"x" * size)
    with contextlib.closing(sqlite3.connect(*tmp_path.glob("edge/*/index.sqlite3"))) as index:
        index.execute("BEGIN IMMEDIATE")
        assert (await edge.get(RAW)).status == 200
        ending = asyncio.create_task(edge.app[CACHE].aclose())
        saving = asyncio.create_task(edge.app[STORE].unsaved.aclose())
        await asyncio.sleep(0.1)
        index.rollback()
        await ending
        await saving
        assert index.execute("SELECT size FROM bodies JOIN responses USING (digest)").fetchall() == [(size,)]
    (file,) = (path for path in tmp_path.glob("edge/*/objects/*/*") if path.is_file())
    assert file.stat().st_size == size


async def test_the_disk_tier_is_tended_again_after_a_failure(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = asyncio.Event()
    calls = iter([RuntimeError("a mistake")])

    async def tend(_store: Store) -> None:
        if error := next(calls, None):
            raise error
        again.set()

    monkeypatch.setattr(app, "TEND_INTERVAL", 0.01)
    monkeypatch.setattr(Store, "tend", tend)
    await start_edge()
    await asyncio.wait_for(again.wait(), 20)
