"""When collapsing meets a fault, a full origin or a body that is gone, it is still one request, and forbidden ones
are none.
"""

import asyncio
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from storage_edge.client.handlers import CACHE
from tests.storage_edge.conftest import Answer, Edge, Origin, StartEdge
from tests.support.folders import files_below
from tests.support.waiting import until

ARCHIVE = "/group/app/-/archive/main/app-main.zip"
SLOW = "/group/app/-/raw/main/slow"
LARGE = b"x" * 700_000


def _as(client: str) -> dict[str, str]:
    return {"X_Forwarded_For": client}


def _asked(origin: Origin, target: str = ARCHIVE) -> int:
    return len([request for request in origin.requests if request.raw_path == target])


@pytest.fixture
def release(origin: Origin) -> asyncio.Event:
    """Until it is set the origin does not answer for the slow file."""
    release = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if request.path == SLOW:
            await release.wait()
        return web.Response(body=LARGE, headers={"Cache-Control": "max-age=60", "Date": origin.date()})

    origin.handler = handler
    return release


async def _busy_edge(
    start_edge: StartEdge, origin: Origin, **settings: object
) -> tuple[Edge, asyncio.Task[Answer]]:
    """An edge at which all places of 10.0.0.1 are taken."""
    edge = await start_edge(trusted_proxies=["127.0.0.1"], origin_patience=0.3, **settings)
    slow = asyncio.create_task(edge.get(SLOW, **_as("10.0.0.1")))
    await until(lambda: _asked(origin, SLOW))
    return edge, slow


async def test_when_a_leader_finds_no_place_of_its_own_one_of_those_who_joined_leads_for_all(
    start_edge: StartEdge, origin: Origin, release: asyncio.Event
) -> None:
    edge, slow = await _busy_edge(start_edge, origin, origin_connections_per_address=1)
    refused = asyncio.create_task(edge.get(ARCHIVE, **_as("10.0.0.1")))
    await until(lambda: edge.app[CACHE]._flights.asking(origin.url + ARCHIVE))
    joined = [asyncio.create_task(edge.get(ARCHIVE, **_as(f"10.0.1.{n % 3}"))) for n in range(12)]
    answers = await asyncio.gather(*joined)
    assert {(answer.status, answer.body) for answer in answers} == {(200, LARGE)}
    assert _asked(origin) == 1
    assert (await refused).status in {200, 503}
    release.set()
    assert (await slow).status == 200


async def test_while_the_origin_is_full_nobody_is_passed_on_and_all_are_told_when_to_come_again(
    start_edge: StartEdge, origin: Origin, release: asyncio.Event
) -> None:
    edge, slow = await _busy_edge(start_edge, origin, origin_connections=1)
    answers = await asyncio.gather(*(edge.get(ARCHIVE, **_as(f"10.0.1.{n}")) for n in range(20)))
    assert {(answer.status, answer.headers["Retry-After"], answer.body) for answer in answers} == {
        (503, "5", b"Too many requests are being passed on; try again later.\n")
    }
    release.set()
    await slow
    answers = await asyncio.gather(*(edge.get(ARCHIVE, **_as(f"10.0.1.{n}")) for n in range(20)))
    assert {answer.status for answer in answers} == {200}
    assert _asked(origin) == 1


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_only_if_cached_asks_nobody_when_the_body_is_gone(
    edge: Edge, origin: Origin, method: str, tmp_path: Path
) -> None:
    origin.answers(LARGE)
    await edge.get(ARCHIVE)
    await edge.settled()
    for file in files_below(*tmp_path.glob("edge/*/objects")):
        file.unlink()
    answer = await edge.get(ARCHIVE, method, Cache_Control="only-if-cached")
    assert (answer.status, answer.body) == (504, b"")
    assert len(origin.requests) == 1
    assert (await edge.get(ARCHIVE)).body == LARGE


async def test_only_if_cached_asks_nobody_about_a_private_object(edge: Edge, origin: Origin) -> None:
    """It may not leave without the origin's word, for which the client forbids to ask (RFC 9111 section 5.2.1.7)."""
    origin.answers(b"plan", cache_control="private, max-age=60")
    target = f"{ARCHIVE}?token=alice"
    assert (await edge.get(target)).body == b"plan"
    await edge.settled()
    answer = await edge.get(target, Cache_Control="only-if-cached")
    assert (answer.status, answer.body) == (504, b"")
    assert len(origin.requests) == 1


async def test_many_who_find_a_body_gone_ask_once(
    edge: Edge, origin: Origin, joined: Counter[str], tmp_path: Path
) -> None:
    origin.answers(LARGE)
    await edge.get(ARCHIVE)
    await edge.settled()
    for file in files_below(*tmp_path.glob("edge/*/objects")):
        file.unlink()
    joined.clear()
    _, gate = origin.held_back()
    clients = [asyncio.create_task(edge.get(ARCHIVE)) for _ in range(20)]
    await until(lambda: joined.total() == 20)
    gate.set()
    answers = await asyncio.gather(*clients)
    assert {answer.body for answer in answers} == {LARGE}
    assert len(origin.requests) == 2


async def test_those_who_join_a_failure_are_told_when_to_come_again(
    edge: Edge, origin: Origin, joined: Counter[str]
) -> None:
    """The origin's own words go to whoever led; its Retry-After to all."""
    origin.answers(b"away", status=503, etag=None, cache_control=None, Retry_After="7")
    _, gate = origin.held_back()
    clients = [asyncio.create_task(edge.get(ARCHIVE)) for _ in range(5)]
    await until(lambda: joined.total() == 5)
    gate.set()
    answers = await asyncio.gather(*clients)
    assert {(answer.status, answer.headers.get("Retry-After")) for answer in answers} == {(503, "7")}
    assert Counter(answer.body for answer in answers) == {b"away": 1, b"The origin failed.\n": 4}


async def test_what_is_freshened_while_its_body_arrives_keeps_the_body_that_was_stored(
    edge: Edge, origin: Origin
) -> None:
    """The file in which a body arrives is closed with its last reader; the stored one stays."""
    begun, rest, verdict = asyncio.Event(), asyncio.Event(), asyncio.Event()
    headers = {"Cache-Control": "private", "ETag": '"v1"', "Content-Length": str(len(LARGE))}

    async def handler(request: web.Request) -> web.StreamResponse:
        if "If-None-Match" in request.headers:
            await verdict.wait()
            return web.Response(
                status=304, headers={"Cache-Control": "private", "ETag": '"v1"', "X-New": "1"}
            )
        response = web.StreamResponse(headers=headers)
        await response.prepare(request)
        await response.write(LARGE[:400_000])
        begun.set()
        await rest.wait()
        await response.write(LARGE[400_000:])
        return response

    origin.handler = handler
    first = asyncio.create_task(edge.get(f"{ARCHIVE}?token=alice"))
    await begun.wait()
    second = asyncio.create_task(edge.get(f"{ARCHIVE}?token=alice"))
    await until(lambda: len(origin.requests) == 2)
    rest.set()
    assert (await first).body == LARGE
    await edge.settled()
    verdict.set()
    assert (await second).body == LARGE
    third = await edge.get(f"{ARCHIVE}?token=alice")
    assert (third.body, third.headers["X-New"]) == (LARGE, "1")
    assert [r.headers.get("If-None-Match") for r in origin.requests] == [None, '"v1"', '"v1"']
