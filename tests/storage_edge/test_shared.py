"""The shared tier: a new edge starts warm from it, and neither a purge nor its failure can do harm."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from tests.storage_edge.bucket import Bucket, aws_environment
from tests.storage_edge.conftest import Edge, Origin, Serve, StartEdge
from tests.storage_edge.projects import Project
from tests.support.folders import files_below
from tests.support.waiting import until

RAW = "/group/app/-/raw/main/README.md"
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
