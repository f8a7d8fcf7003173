"""A shared store that cannot be used: it is said, it slows nobody down, and it comes back by itself."""

import asyncio
import itertools
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage_edge.bucket import Bucket, aws_environment
from tests.storage_edge.conftest import Edge, Origin, Serve, StartEdge
from tests.support.logs import lines_of_edges
from tests.support.ports import free_port
from tests.support.waiting import until

RAW = "/group/app/-/raw/main/README.md"
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
def start(start_edge: StartEdge, tmp_path: Path) -> Callable[..., "asyncio.Future[Edge]"]:
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
    async with edge.session.get(f"{edge.url}/-/readiness") as response:
        whole = await response.json()
        return response.status, whole["status"], whole["shared_store"]


async def _is_usable(edge: Edge) -> bool:
    async with edge.session.get(f"{edge.url}/-/metrics") as response:
        return "edge_shared_usable 1.0" in await response.text()


async def _until(edge: Edge, *, usable: bool) -> None:
    async with asyncio.timeout(20):
        while await _is_usable(edge) is not usable:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("fault", "read", "written"), FAULTS, ids=[row[0] for row in FAULTS])
async def test_what_is_wrong_with_the_store_is_said_everywhere_and_mends_itself(
    start: StartEdge, origin: Origin, bucket: Bucket, fault: str, read: str | None, written: str | None
) -> None:
    origin.answers(LARGE)
    bucket.fault = fault
    with lines_of_edges() as logs:
        edge = await start(shared_store_timeout=0.3 if fault == "hangs" else 5.0)
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
    start: StartEdge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    aws_environment(monkeypatch, f"http://127.0.0.1:{free_port()}")
    origin.answers()
    edge = await start(shared_store_timeout=5.0)
    await _until(edge, usable=False)
    assert (await edge.get(RAW)).body == b"content"
    assert (await _readiness(edge))[1] == "degraded"


async def test_while_the_store_is_away_no_miss_waits_for_it(
    start: StartEdge, origin: Origin, bucket: Bucket
) -> None:
    """Those that ask in the moment in which it goes wait for the timeout, nobody after them does."""
    origin.answers()
    edge = await start(shared_store_pause=3600.0)
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
    start: StartEdge, origin: Origin, bucket: Bucket
) -> None:
    bodies = [LARGE, LARGE[1:]]
    first = await start(shared_store_timeout=5.0)
    for number, body in enumerate(bodies):
        origin.answers(body)
        assert (await first.get(f"{RAW}{number}")).body == body
        await first.settled()
    bucket.fault = "dribbles"
    second = await start(shared_store_pause=3600.0)
    with lines_of_edges() as logs:
        for number, body in enumerate(bodies):
            origin.answers(body)
            assert (await second.get(f"{RAW}{number}")).body == body
    assert [line["event"] for line in logs] == ["the shared store is too slow"]
    assert await _is_usable(second)
    assert len([path for path in bucket.asked if "GET" in path and "/bodies/" in path]) == 1
