"""The shared tier: a new edge starts warm from it, and neither a purge nor its failure can do harm."""

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage_edge.conftest import RAW, Edge, Origin, Serve, StartEdge
from tests.storage_edge.origins import Project
from tests.storage_edge.stores import Bucket, aws_environment
from tests.support.folders import files_below
from tests.support.logs import lines_of_edges
from tests.support.ports import free_port
from tests.support.waiting import until

#: One body that stays in memory, and one that does not.
SIZES = [1000, 700_000]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    return tmp_path / "shared"


@pytest.fixture
def start(start_edge: StartEdge, shared: Path, tmp_path: Path) -> StartEdge:
    """Starts edges of their own that have nothing in common but the shared tier."""
    numbers = iter(range(100))

    async def start(**settings: object) -> Edge:
        own = tmp_path / f"edge-{next(numbers)}"
        return await start_edge(**{"data_dir": own, "shared_store_url": shared.as_uri(), **settings})

    return start


async def _filled(start: StartEdge, origin: Origin, body: bytes) -> Edge:
    """An edge that has stored and shared what the origin has."""
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
#: A fault, and for reading and writing what it is called.
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
    """Starts edges that have nothing in common but the bucket."""
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
    """Those that ask in the moment in which it goes wait for the timeout, nobody after them does."""
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
