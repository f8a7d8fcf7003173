"""The shared tier: a new edge starts warm from it, and neither a purge nor its failure can do harm."""

import asyncio
from pathlib import Path

import attrs
import pytest
from aiohttp import web

from tests.storage_edge.conftest import Edge, Origin, Serve, StartEdge
from tests.storage_edge.projects import Project
from tests.support.folders import files_below

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


async def test_many_clients_of_a_new_edge_share_one_validation(start: StartEdge, origin: Origin) -> None:
    await _filled(start, origin, b"x" * 700_000)
    edge = await start()
    answers = await asyncio.gather(*(edge.get(RAW) for _ in range(50)))
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
    assert files_below(shared) == []


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


@attrs.define
class Bucket:
    """As much of S3 as obstore needs for single objects."""

    hangs: bool = False
    objects: dict[str, bytes] = attrs.field(factory=dict)
    parts: dict[str, bytes] = attrs.field(factory=dict)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.hangs:
            await asyncio.sleep(60)
        assert "Authorization" in request.headers
        key = request.path
        match request.method:
            case "PUT":
                kept = self.parts if "partNumber" in request.query else self.objects
                kept[key + request.query.get("partNumber", "")] = await request.read()
                return web.Response(headers={"ETag": '"e"'})
            case "POST" if "uploads" in request.query:
                return web.Response(
                    text="<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>"
                )
            case "POST":
                self.objects[key] = b"".join(self.parts[k] for k in sorted(self.parts) if k.startswith(key))
                return web.Response(
                    text="<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
                )
        if key not in self.objects:
            return web.Response(status=404)
        headers = {"ETag": '"e"', "Last-Modified": "Fri, 01 Jan 2027 00:00:00 GMT"}
        return web.Response(body=self.objects[key], headers=headers)


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name, value in {
        "ACCESS_KEY_ID": "made-up", "SECRET_ACCESS_KEY": "made-up", "REGION": "example-1", "ALLOW_HTTP": "true",
    }.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    return monkeypatch


@pytest.mark.parametrize("size", [1000, 12_000_000])
async def test_it_works_with_s3(
    start: StartEdge, serve: Serve, origin: Origin, aws: pytest.MonkeyPatch, size: int
) -> None:
    bucket = Bucket()
    aws.setenv("AWS_ENDPOINT", await serve(bucket.handle))
    for _ in range(2):
        origin.answers(b"s" * size)
        edge = await start(shared_store_url="s3://bucket/edge")
        assert (await edge.get(RAW)).body == b"s" * size
        await edge.settled()
    assert {key.split("/")[1:5:3][0] for key in bucket.objects} == {"bucket"}
    assert len(bucket.objects) == 2
    assert [r.headers.get("If-None-Match") for r in origin.requests] == [None, '"v1"']


@pytest.mark.parametrize("hangs", [False, True])
async def test_a_store_that_is_away_or_hangs_fails_no_request(
    start: StartEdge, serve: Serve, origin: Origin, aws: pytest.MonkeyPatch, hangs: bool
) -> None:
    url = await serve(Bucket(hangs=True).handle)
    aws.setenv("AWS_ENDPOINT", url if hangs else "http://127.0.0.1:9")
    origin.answers()
    edge = await start(shared_store_url="s3://bucket/edge", shared_store_timeout=0.3)
    async with asyncio.timeout(5):
        for number in range(20):
            assert (await edge.get(f"{RAW}{number}")).body == b"content"


@pytest.mark.parametrize("url", ["ftp://example.org/x", "s3://", "file:relative", "shared"])
async def test_a_url_that_is_none_is_refused_with_a_sentence(start: StartEdge, url: str) -> None:
    with pytest.raises(ValueError, match="shared_store_url needs"):
        await start(shared_store_url=url)
