"""The origin belongs to the key of what is stored: edges of several origins may share a directory and a store."""

from pathlib import Path

import pytest

from tests.storage_edge.conftest import Clock, Edge, Origin, Serve, StartEdge

RAW = "/group/app/-/raw/main/README.md"
#: One body that stays in memory, and one that does not.
SIZES = [1000, 700_000]


@pytest.fixture
async def other(serve: Serve, clock: Clock) -> Origin:
    """Another service with the same paths."""
    other = Origin(clock)
    other.url = await serve(other.handle)
    return other


async def _stored(edge: Edge, expected: bytes) -> str:
    """What Cache-Status says of an object whose bytes must be these."""
    answer = await edge.get(RAW)
    assert (answer.status, answer.body) == (200, expected)
    await edge.settled()
    return answer.cache_status


@pytest.mark.parametrize("size", SIZES)
async def test_edges_of_two_origins_share_a_directory_side_by_side(
    start_edge: StartEdge, origin: Origin, other: Origin, size: int
) -> None:
    """The entity tag is the same as well: neither origin could tell the other's bytes from its own."""
    origin.answers(b"a" * size)
    other.answers(b"b" * size)
    one, two = await start_edge(), await start_edge(origin=other.url)
    for edge, expected in ((one, b"a"), (two, b"b")):
        assert await _stored(edge, expected * size) == "forgelet-edge; fwd=uri-miss; stored"
    for edge, expected in ((one, b"a"), (two, b"b"), (await start_edge(), b"a")):
        assert "; hit; ttl=" in await _stored(edge, expected * size)
    assert (len(origin.requests), len(other.requests)) == (1, 1)


async def test_the_spelling_of_an_origin_does_not_matter(start_edge: StartEdge, origin: Origin) -> None:
    origin.answers(b"a")
    await _stored(await start_edge(), b"a")
    edge = await start_edge(origin=f"{origin.url.replace('http', 'HTTP')}/")
    assert "; hit; ttl=" in await _stored(edge, b"a")
    assert len(origin.requests) == 1


async def test_a_purge_of_urls_concerns_one_origin_and_one_of_keys_all(
    start_edge: StartEdge, origin: Origin, other: Origin
) -> None:
    """A key may name something in either, so that too much is dropped rather than too little."""
    origin.answers(b"a", Surrogate_Key="project-1")
    other.answers(b"b", Surrogate_Key="project-1")
    one, two = await start_edge(), await start_edge(origin=other.url)
    await _stored(one, b"a")
    await _stored(two, b"b")
    assert await one.purge(urls=[RAW]) == 1
    assert "fwd=uri-miss" in await _stored(one, b"a")
    assert "; hit; ttl=" in await _stored(two, b"b")
    assert await one.purge(prefixes=["/group/"]) == 1
    assert "fwd=uri-miss" in await _stored(one, b"a")
    assert "; hit; ttl=" in await _stored(two, b"b")
    assert await one.purge(keys=["project-1"]) == 2
    assert "fwd=uri-miss" in await _stored(one, b"a")
    assert "fwd=uri-miss" in await _stored(two, b"b")


async def test_the_shared_tier_keeps_origins_apart(
    start_edge: StartEdge, origin: Origin, other: Origin, tmp_path: Path
) -> None:
    origin.answers(b"a")
    other.answers(b"b")
    shared = (tmp_path / "shared").as_uri()
    for number, (url, expected) in enumerate([(origin.url, b"a"), (other.url, b"b"), (origin.url, b"a")]):
        edge = await start_edge(origin=url, data_dir=tmp_path / f"edge-{number}", shared_store_url=shared)
        await _stored(edge, expected)
    assert [request.headers.get("If-None-Match") for request in origin.requests] == [None, '"v1"']
    assert [request.headers.get("If-None-Match") for request in other.requests] == [None]
