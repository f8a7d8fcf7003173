"""The shared tier: new edges start warm from it; its failures, and others inside the edge, do no harm."""

import asyncio
import contextlib
import gc
import itertools
import os
import random
import shutil
import sqlite3
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from storage_edge import app
from storage_edge.client.handlers import CACHE, STORE
from storage_edge.storage.store import Store
from tests.storage_edge.conftest import RAW, Answer, Clock, Edge, Origin, Serve, StartEdge
from tests.storage_edge.origins import Project, head, talk
from tests.storage_edge.stores import Bucket, aws_environment
from tests.support.folders import files_below
from tests.support.logs import lines_of_edges
from tests.support.ports import free_port
from tests.support.waiting import until

#: A body that stays in memory, and one that does not.
SIZES = [1000, 700_000]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def start(start_edge: StartEdge, shared: Path, tmp_path: Path) -> StartEdge:
    """A function that starts edges that share only the shared tier."""
    numbers = iter(range(100))

    async def start(**settings: object) -> Edge:
        own = tmp_path / f"edge-{next(numbers)}"
        return await start_edge(**{"data_dir": own, "shared_store_url": shared.as_uri(), **settings})

    return start


async def _filled(start: StartEdge, origin: Origin, body: bytes) -> Edge:
    """Return an edge that has stored and shared the origin's content."""
    origin.answers(body, Surrogate_Key="project-1")
    edge = await start()
    assert (await edge.get(RAW)).body == body
    await edge.settled()
    return edge


@pytest.mark.parametrize("size", SIZES)
async def test_a_new_edge_gets_the_body_from_the_shared_tier_after_a_304(
    start: StartEdge, origin: Origin, size: int
) -> None:
    body = bytes(i % 251 for i in range(size))
    await _filled(start, origin, body)
    edge = await start()
    answer = await edge.get(RAW)
    assert (answer.status, answer.body, answer.headers["ETag"]) == (200, body, '"v1"')
    assert [r.headers.get("If-None-Match") for r in origin.requests] == [None, '"v1"']
    await edge.settled()
    assert "; hit; ttl" in (await edge.get(RAW)).cache_status
    assert len(origin.requests) == 2


async def test_many_clients_of_a_new_edge_share_one_validation(
    start: StartEdge, origin: Origin, joined: Counter[str]
) -> None:
    await _filled(start, origin, b"x" * 700_000)
    edge = await start()
    joined.clear()
    _, gate = origin.held_back()
    clients = [asyncio.create_task(edge.get(RAW)) for _ in range(50)]
    await until(lambda: joined.total() == 50)
    gate.set()
    answers = await asyncio.gather(*clients)
    assert {answer.body for answer in answers} == {b"x" * 700_000}
    assert len(origin.requests) == 2


@pytest.mark.parametrize("size", SIZES)
async def test_what_was_purged_elsewhere_is_never_served_by_an_edge_that_missed_the_purge(
    start: StartEdge, origin: Origin, size: int
) -> None:
    one = await _filled(start, origin, b"o" * size)
    origin.answers(b"n" * size, etag='"v2"', Surrogate_Key="project-1")
    await one.purge(keys=["project-1"])
    two = await start()
    assert (await two.get(RAW)).body == b"n" * size
    await two.settled()
    three = await start()
    assert (await three.get(RAW)).body == b"n" * size
    assert origin.requests[-1].headers["If-None-Match"] == '"v2"'


async def test_a_purge_while_the_shared_copy_is_being_validated_counts(
    start: StartEdge, origin: Origin
) -> None:
    await _filled(start, origin, b"old")
    edge = await start()
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(keys=["project-1"])
    origin.answers(b"new", etag='"v2"')
    assert (await edge.get(RAW)).body == b"new"
    gate.set()
    assert (await first).body == b"old"
    await edge.settled()
    assert (await edge.get(RAW)).body == b"new"


async def test_what_was_deleted_or_made_private_is_refused_by_a_new_edge(
    start: StartEdge, origin: Origin
) -> None:
    project = Project(origin, public=True, readers={"alice"})
    edge = await start()
    assert (await edge.get(RAW)).body == b"the plan"
    await edge.settled()
    project.public = False
    edge = await start()
    assert (await edge.get(RAW)).status == 404
    assert (await edge.get(f"{RAW}?token=mallory")).status == 404
    assert (await edge.get(f"{RAW}?token=alice")).body == b"the plan"
    await edge.settled()
    assert (await edge.get(RAW)).status == 404


async def test_private_objects_and_refusals_are_never_written(
    start: StartEdge, origin: Origin, shared: Path
) -> None:
    Project(origin, readers={"alice"})
    edge = await start()
    assert (await edge.get(f"{RAW}?token=alice")).body == b"the plan"
    origin.answers(status=404, cache_control="public, max-age=60")
    await edge.get(f"{RAW}2")
    origin.answers(b"weak", etag='W/"1"')
    await edge.get(f"{RAW}3")
    await edge.settled()
    assert [file.name for file in files_below(shared)] == ["trial"]


async def test_a_copy_that_the_origin_does_not_want_kept_any_more_is_not_used(
    start: StartEdge, origin: Origin
) -> None:
    await _filled(start, origin, b"content")
    origin.answers(b"content", cache_control="no-store")
    edge = await start()
    for _ in range(2):
        assert (await edge.get(RAW)).body == b"content"
    assert len([r for r in origin.requests if "If-None-Match" not in r.headers]) == 3


@pytest.mark.parametrize("part", ["bodies", "responses"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "gone", "nonsense"])
async def test_damage_in_the_shared_tier_costs_a_body_and_nothing_else(
    start: StartEdge, origin: Origin, shared: Path, part: str, damage: str
) -> None:
    await _filled(start, origin, b"content" * 100_000)
    (file,) = files_below(shared / "v1" / part)
    data = file.read_bytes()
    match damage:
        case "flipped":
            file.write_bytes(data[:50] + bytes([data[50] ^ 1]) + data[51:])
        case "cut":
            file.write_bytes(data[:-1])
        case "gone":
            file.unlink()
        case "nonsense":
            file.write_bytes(b"[1]")
    edge = await start()
    for _ in range(2):
        answer = await edge.get(RAW)
        assert (answer.status, answer.body) == (200, b"content" * 100_000)
        await edge.settled()


@pytest.mark.parametrize("size", [1000, 12_000_000])
async def test_it_works_with_s3(
    start: StartEdge, serve: Serve, origin: Origin, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    bucket = Bucket()
    aws_environment(monkeypatch, await serve(bucket.handle))
    for _ in range(2):
        origin.answers(b"s" * size)
        edge = await start(shared_store_url="s3://bucket/edge")
        assert (await edge.get(RAW)).body == b"s" * size
        await edge.settled()
    assert {key.split("/")[1:5:3][0] for key in bucket.objects} == {"bucket"}
    assert len(bucket.objects) == 2 + len(["trial"])
    assert [r.headers.get("If-None-Match") for r in origin.requests] == [None, '"v1"']


@pytest.mark.parametrize("url", ["ftp://example.org/x", "s3://", "file:relative", "shared"])
async def test_a_url_that_is_none_is_refused_with_a_sentence(start: StartEdge, url: str) -> None:
    with pytest.raises(ValueError, match="shared_store_url needs"):
        await start(shared_store_url=url)


LARGE = b"s" * 700_000
READ, WRITTEN = "the shared store cannot be read", "the shared store cannot be written"
#: A fault, and its name for reading and for writing.
FAULTS: list[tuple[str, str | None, str | None]] = [
    ("hangs", "TimeoutError", "TimeoutError"),
    ("no bucket", "NoSuchBucket", "NoSuchBucket"),
    ("forbidden", "AccessDenied", "AccessDenied"),
    ("wrong key", "InvalidAccessKeyId", "InvalidAccessKeyId"),
    ("no such page", None, "FileNotFoundError"),
    ("a web page", "ValueError", None),
]


@pytest.fixture
async def bucket(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    bucket = Bucket()
    aws_environment(monkeypatch, await serve(bucket.handle))
    return bucket


@pytest.fixture
def start_with_faults(start_edge: StartEdge, tmp_path: Path) -> Callable[..., "asyncio.Future[Edge]"]:
    """A function that starts edges that share only the bucket."""
    numbers = iter(range(100))

    async def start(**settings: object) -> Edge:
        given = {
            "shared_store_url": "s3://bucket/edge",
            "shared_store_timeout": 1.0,
            "shared_store_pause": 0.1,
        }
        return await start_edge(data_dir=tmp_path / f"edge-{next(numbers)}", **{**given, **settings})

    return start  # type: ignore[return-value]


async def _readiness(edge: Edge) -> tuple[int, str, dict[str, str]]:
    status, whole = await edge.readiness()
    return status, whole["status"], whole["shared_store"]


async def _is_usable(edge: Edge) -> bool:
    async with edge.session.get(f"{edge.url}/-/metrics") as response:
        return "edge_shared_usable 1.0" in await response.text()


async def _until(edge: Edge, *, usable: bool) -> None:
    async with asyncio.timeout(20):
        while await _is_usable(edge) is not usable:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("fault", "read", "written"), FAULTS, ids=[row[0] for row in FAULTS])
async def test_what_is_wrong_with_the_store_is_said_everywhere_and_mends_itself(
    start_with_faults: StartEdge,
    origin: Origin,
    bucket: Bucket,
    fault: str,
    read: str | None,
    written: str | None,
) -> None:
    origin.answers(LARGE)
    bucket.fault = fault
    with lines_of_edges() as logs:
        edge = await start_with_faults(shared_store_timeout=0.3 if fault == "hangs" else 5.0)
        await _until(edge, usable=False)
        assert (await edge.get(RAW)).body == LARGE
        await edge.settled()
        if read and written:
            await until(lambda: {READ, WRITTEN} <= {line["event"] for line in logs})
    said = {READ: read, WRITTEN: written}
    assert {(line["event"], line["reason"]) for line in logs if line["log_level"] != "info"} <= {
        (event, why) for event, why in said.items() if why
    }
    assert not any(line.get("exc_info") for line in logs)
    status, whole, part = await _readiness(edge)
    assert (status, whole, part["status"]) == (200, "degraded", "degraded")
    assert (read or written or "") in part["message"]
    assert "made-up" not in f"{logs}{part}"
    bucket.fault = None
    with lines_of_edges() as logs:
        await _until(edge, usable=True)
    assert {line["event"] for line in logs} <= {
        f"the shared store can be {what} again" for what in ("read", "written")
    }
    assert (await _readiness(edge))[2] == {"status": "ok"}
    async with asyncio.timeout(20):
        for number in itertools.count():
            assert (await edge.get(f"{RAW}{number}")).body == LARGE
            await edge.settled()
            if [key for key in bucket.objects if "/bodies/" in key]:
                break


async def test_a_store_whose_endpoint_is_nobodys(
    start_with_faults: StartEdge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_environment(monkeypatch, f"http://127.0.0.1:{free_port()}")
    origin.answers()
    edge = await start_with_faults(shared_store_timeout=5.0)
    await _until(edge, usable=False)
    assert (await edge.get(RAW)).body == b"content"
    assert (await _readiness(edge))[1] == "degraded"


async def test_while_the_store_is_away_no_miss_waits_for_it(
    start_with_faults: StartEdge, origin: Origin, bucket: Bucket
) -> None:
    """Requests at the moment of the failure wait for the timeout, later ones do not."""
    origin.answers()
    edge = await start_with_faults(shared_store_pause=3600.0)
    await until(lambda: len(bucket.asked) == len(["PUT", "GET"]))
    bucket.fault, asked = "hangs", len(bucket.asked)
    await asyncio.gather(*(edge.get(f"{RAW}{number}") for number in range(10)))
    assert not await _is_usable(edge)
    first = len(bucket.asked) - asked
    assert 1 <= first <= 10
    for number in range(10, 60):
        assert (await edge.get(f"{RAW}{number}")).status == 200
    assert len(bucket.asked) - asked == first


async def test_a_body_that_comes_too_slowly_is_given_up_and_the_next_one_is_not_tried(
    start_with_faults: StartEdge, origin: Origin, bucket: Bucket
) -> None:
    bodies = [LARGE, LARGE[1:]]
    first = await start_with_faults(shared_store_timeout=5.0)
    for number, body in enumerate(bodies):
        origin.answers(body)
        assert (await first.get(f"{RAW}{number}")).body == body
        await first.settled()
    bucket.fault = "dribbles"
    second = await start_with_faults(shared_store_pause=3600.0)
    with lines_of_edges() as logs:
        for number, body in enumerate(bodies):
            origin.answers(body)
            assert (await second.get(f"{RAW}{number}")).body == body
    assert [line["event"] for line in logs] == ["the shared store is too slow"]
    assert await _is_usable(second)
    assert len([path for path in bucket.asked if "GET" in path and "/bodies/" in path]) == 1


def _open_below(directory: Path) -> list[str]:
    """Return the files of a directory that this process has open."""
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
    """Garbage collection is off, so that references have to be released explicitly."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


async def _five_together(edge: Edge, origin: Origin, joined: Counter[str]) -> list[Answer]:
    """Return the answers to five requests that share one of the origin's."""
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
        quick = asyncio.create_task(edge.get(RAW))  # too late for an answer that is passed on already
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
