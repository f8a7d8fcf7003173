"""Purges that come while something is under way: what began before them is neither stored, nor joined, nor fresh."""

import asyncio

import pytest
from aiohttp import web

from storage_edge.client.handlers import STORE
from storage_edge.storage import purges
from tests.storage_edge.conftest import Clock, Edge, Origin, StartEdge

RAW = "/group/app/-/raw/main/README.md"


@pytest.mark.parametrize("size", [100, 800_000])
@pytest.mark.parametrize("seconds", [5, 600])
async def test_what_is_being_stored_when_a_purge_comes_does_not_survive_it(
    start_edge: StartEdge, origin: Origin, size: int, seconds: int
) -> None:
    """Neither in memory, where short-lived bodies stay, nor on disk, where another process looks."""
    edge = await start_edge()
    begun, gate = asyncio.Event(), asyncio.Event()
    body = b"o" * size

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={
                "Cache-Control": f"max-age={seconds}", "Date": origin.date(), "Surrogate-Key": "project-1"
            }
        )  # fmt: skip
        response.content_length = size
        await response.prepare(request)
        await response.write(body[: size // 2])
        begun.set()
        await gate.wait()
        await response.write(body[size // 2 :])
        return response

    origin.handler = handler
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(keys=["project-1"])
    origin.answers(b"new")
    assert (await edge.get(RAW)).body == b"new"
    async with asyncio.timeout(20):
        while edge.app[STORE].disk.size != len(b"new"):
            await asyncio.sleep(0.01)
    gate.set()
    assert (await first).body == body
    await edge.settled()
    for one in (edge, await start_edge()):
        assert (await one.get(RAW)).body == b"new"


async def test_what_is_purged_does_not_stand_in_for_a_failure_that_was_under_way(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"old", cache_control="max-age=10, stale-if-error=600", Surrogate_Key="project-1")
    await edge.get(RAW)
    await edge.settled()
    clock.advance(20)
    origin.answers(status=503, etag=None, cache_control=None)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(keys=["project-1"])
    gate.set()
    assert (await first).status == 503


async def test_a_soft_purge_counts_though_a_validation_was_under_way(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"old", cache_control="max-age=600", Surrogate_Key="project-1")
    await edge.get(RAW)
    await edge.settled()
    clock.advance(700)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(keys=["project-1"], soft=True)
    gate.set()
    assert (await first).body == b"old"
    await edge.settled()
    origin.answers(b"new", etag='"v2"')
    assert (await edge.get(RAW)).body == b"new"


async def test_what_was_asked_of_the_origin_before_a_purge_is_not_joined_after_it(
    edge: Edge, origin: Origin
) -> None:
    origin.answers(b"old", cache_control="max-age=600", etag=None)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    await edge.purge(prefixes=["/group/app/"])
    origin.answers(b"new", cache_control="max-age=600")
    assert (await edge.get(RAW)).body == b"new"
    gate.set()
    assert (await first).body == b"old"
    await edge.settled()
    assert (await edge.get(RAW)).body == b"new"


async def test_what_was_asked_for_more_purges_ago_than_are_kept_is_not_stored(
    start_edge: StartEdge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(purges, "SLOTS", 2)
    edge = await start_edge()
    origin.answers(b"old", cache_control="max-age=600", etag=None)
    begun, gate = origin.held_back()
    first = asyncio.create_task(edge.get(RAW))
    await begun.wait()
    for path in ("/group/app/", "/group/b/", "/group/c/", "/group/d/"):
        await edge.purge(prefixes=[path])
    gate.set()
    assert (await first).body == b"old"
    await edge.settled()
    assert edge.app[STORE].disk.size == 0
