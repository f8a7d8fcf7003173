"""Many clients, one origin request: who joins, what they get, and failures."""

import asyncio
import contextlib
import gc
from collections import Counter
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from storage_edge.client.handlers import CACHE
from tests.storage_edge.conftest import Answer, Clock, Edge, Origin, StartEdge
from tests.support.folders import files_below
from tests.support.waiting import until

ARCHIVE = "/group/app/-/archive/main/app-main.zip"


class Stream:
    """An origin answer that the test sends piece by piece, the head with the first one."""

    def __init__(self, origin: Origin, length: int | None, *, cut_off: bool = False, **headers: str) -> None:
        self.pieces: asyncio.Queue[bytes | None] = asyncio.Queue()
        self.headers = {"Cache-Control": "max-age=60", "ETag": '"v1"'} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        self.length = length
        self.cut_off = cut_off
        self.origin = origin
        origin.handler = self.handle

    async def handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={**self.headers, "Date": self.origin.date()})
        if self.length is not None:
            response.content_length = self.length
        piece = await self.pieces.get()
        await response.prepare(request)
        while piece is not None:
            await response.write(piece)
            piece = await self.pieces.get()
        if self.cut_off:
            assert request.transport is not None
            request.transport.close()
        return response

    def send(self, *pieces: bytes | None) -> None:
        for piece in pieces:
            self.pieces.put_nowait(piece)


async def _hang_up(request: web.Request) -> web.Response:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


@pytest.mark.parametrize("size", [30_000, 3_000_000])
async def test_200_cold_requests_are_one_origin_request_with_identical_bytes(
    edge: Edge, origin: Origin, joined: Counter[str], size: int
) -> None:
    body = bytes(i % 251 for i in range(size))
    origin.answers(body, cache_control="max-age=60")
    _, gate = origin.held_back()
    clients = [asyncio.create_task(edge.get(f"{ARCHIVE}?cb={n}")) for n in range(200)]
    await until(lambda: joined.total() == 200)
    gate.set()
    answers = await asyncio.gather(*clients)
    assert len(origin.requests) == 1
    assert all(answer.status == 200 and answer.body == body for answer in answers)
    assert sum("collapsed" in answer.cache_status for answer in answers) == 199


@pytest.mark.parametrize("length", [600_000, None])
async def test_joiners_get_bytes_before_the_end_has_arrived(
    edge: Edge, origin: Origin, length: int | None
) -> None:
    stream = Stream(origin, length)
    stream.send(b"a" * 300_000)
    async with OpenResponses(edge, 5) as responses:
        for response in responses:
            assert await response.content.readexactly(300_000) == b"a" * 300_000
        stream.send(b"b" * 300_000, None)
        for response in responses:
            assert await response.content.read() == b"b" * 300_000
    assert len(origin.requests) == 1


async def test_a_range_is_answered_as_soon_as_its_bytes_are_there(edge: Edge, origin: Origin) -> None:
    stream = Stream(origin, 600_000)
    stream.send(b"a" * 300_000)
    answer = await edge.get(ARCHIVE, Range="bytes=100-199")
    assert (answer.status, answer.body) == (206, b"a" * 100)
    stream.send(b"b" * 300_000, None)
    assert (await edge.get(ARCHIVE)).body == b"a" * 300_000 + b"b" * 300_000
    assert len(origin.requests) == 1


@pytest.mark.parametrize("size", [20_000, 900_000])
async def test_a_truncated_body_never_ends_cleanly_and_is_never_stored(
    edge: Edge, origin: Origin, joined: Counter[str], size: int
) -> None:
    stream = Stream(origin, size + 1, cut_off=True)
    clients = [asyncio.create_task(edge.get(ARCHIVE)) for _ in range(5)]
    await until(lambda: joined.total() == 5)
    stream.send(b"x" * (size // 2), b"x" * (size // 2), None)
    for outcome in await asyncio.gather(*clients, return_exceptions=True):
        assert isinstance(outcome, aiohttp.ClientError) or outcome.status == 502  # type: ignore[union-attr]
    origin.answers(b"whole")
    assert (await edge.get(ARCHIVE)).body == b"whole"


async def test_a_truncated_chunked_body_never_ends_cleanly(edge: Edge, origin: Origin) -> None:
    stream = Stream(origin, None, cut_off=True)
    stream.send(b"x" * 1000)
    async with OpenResponses(edge, 1) as [response]:
        assert await response.content.readexactly(1000) == b"x" * 1000
        stream.send(None)
        with pytest.raises(aiohttp.ClientError):
            await response.content.read()
    origin.answers(b"whole")
    assert (await edge.get(ARCHIVE)).body == b"whole"


async def test_a_client_that_leaves_cancels_nothing_that_others_need(
    edge: Edge, origin: Origin, joined: Counter[str]
) -> None:
    stream = Stream(origin, 600_000)
    leader = asyncio.create_task(edge.get(ARCHIVE))
    await until(lambda: len(origin.requests) == 1)
    joiner = asyncio.create_task(edge.get(ARCHIVE))
    await until(lambda: joined.total() == 2)
    stream.send(b"a" * 300_000)
    await until(lambda: edge.app[CACHE]._fetches.unanswered(origin.url + ARCHIVE) is None)
    leader.cancel()
    stream.send(b"b" * 300_000, None)
    assert len((await joiner).body) == 600_000
    assert (await edge.get(ARCHIVE)).cache_status.startswith("forgelet-edge; hit")
    assert len(origin.requests) == 1


async def test_what_concerns_only_the_leader_is_not_given_to_joiners(
    edge: Edge, origin: Origin, joined: Counter[str]
) -> None:
    async def handler(request: web.Request) -> web.Response:
        number = len(origin.requests)
        return web.Response(body=b"%d" % number, headers={"Cache-Control": "no-store", "Date": origin.date()})

    origin.handler = handler
    _, gate = origin.held_back()
    clients = [asyncio.create_task(edge.get(ARCHIVE)) for _ in range(5)]
    await until(lambda: joined.total() == 5)
    gate.set()
    answers = await asyncio.gather(*clients)
    assert len(origin.requests) == 5
    assert all("collapsed" not in answer.cache_status for answer in answers)


async def test_a_failed_leader_does_not_fail_the_next_try(edge: Edge, origin: Origin) -> None:
    origin.handler = _hang_up
    answers = await asyncio.gather(*(edge.get(ARCHIVE) for _ in range(5)))
    assert {answer.status for answer in answers} == {502}
    origin.answers(b"back")
    assert (await edge.get(ARCHIVE)).body == b"back"


async def test_stale_objects_are_validated_once_for_all(
    edge: Edge, origin: Origin, clock: Clock, joined: Counter[str]
) -> None:
    origin.answers(b"same")
    await edge.get(ARCHIVE)
    await edge.settled()
    clock.advance(120)
    joined.clear()
    _, gate = origin.held_back()
    clients = [asyncio.create_task(edge.get(ARCHIVE)) for _ in range(20)]
    await until(lambda: joined.total() == 20)
    gate.set()
    answers = await asyncio.gather(*clients)
    assert {answer.body for answer in answers} == {b"same"}
    assert len(origin.requests) == 2
    assert origin.requests[1].headers["If-None-Match"] == '"v1"'


async def test_stale_while_revalidate_answers_at_once_and_asks_behind(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"old", cache_control="max-age=10, stale-while-revalidate=60")
    await edge.get(ARCHIVE)
    clock.advance(20)
    origin.answers(b"new", etag='"v2"', cache_control="max-age=10, stale-while-revalidate=60")
    stale = await edge.get(ARCHIVE)
    assert (stale.body, "stale" in stale.cache_status) == (b"old", True)
    await until(lambda: len(origin.requests) == 2)
    await edge.settled()
    assert (await edge.get(ARCHIVE)).body == b"new"


async def test_stale_if_error_covers_failures_only_where_it_is_given(
    start_edge: StartEdge, origin: Origin, clock: Clock
) -> None:
    edge = await start_edge()
    covered, strict = "/g/app/-/raw/main/covered", "/g/app/-/raw/main/strict"
    origin.answers(b"covered", cache_control="max-age=10, stale-if-error=60")
    await edge.get(covered)
    origin.answers(b"strict", cache_control="max-age=10, stale-if-error=60, must-revalidate")
    await edge.get(strict)
    clock.advance(20)
    origin.answers(status=503, etag=None, cache_control=None)
    assert (await edge.get(covered)).body == b"covered"
    assert (await edge.get(strict)).status == 503
    clock.advance(60)
    assert (await edge.get(covered)).status == 503


class OpenResponses:
    """`count` open responses for the archive."""

    def __init__(self, edge: Edge, count: int) -> None:
        self._edge, self._count = edge, count
        self._responses: list[aiohttp.ClientResponse] = []

    async def __aenter__(self) -> list[aiohttp.ClientResponse]:
        self._responses = list(
            await asyncio.gather(
                *(self._edge.session.get(self._edge.url + ARCHIVE) for _ in range(self._count))
            )
        )
        return self._responses

    async def __aexit__(self, *_: object) -> None:
        for response in self._responses:
            response.close()


def _opened(directory: Path) -> list[str]:
    """Return the bodies in an edge's directory that this process has open."""
    found = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            path = descriptor.readlink()
            if path.is_relative_to(directory) and {"objects", "incoming"} & {*path.parent.parent.parts}:
                found.append(str(path))
    return found


async def test_clients_that_go_away_leave_no_body_behind(edge: Edge, origin: Origin, tmp_path: Path) -> None:
    """Nothing that a broken connection leaves keeps a file open until garbage is collected."""
    origin.answers(b"x" * 20_000_000)
    gc.disable()
    try:
        for _ in range(4):
            reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
            writer.write(f"GET {ARCHIVE} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            await reader.read(100_000)
            writer.transport.abort()
            await edge.settled()
        await until(lambda: not _opened(tmp_path))
    finally:
        gc.enable()


SLOW = "/group/app/-/raw/main/slow"
LARGE = b"x" * 700_000


def _as(client: str) -> dict[str, str]:
    return {"X_Forwarded_For": client}


def _asked(origin: Origin, target: str = ARCHIVE) -> int:
    return len([request for request in origin.requests if request.raw_path == target])


@pytest.fixture
def release(origin: Origin) -> asyncio.Event:
    """The origin does not answer for the slow file before this event is set."""
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
    """Yield an edge at which all slots of 10.0.0.1 are taken."""
    edge = await start_edge(trusted_proxies=["127.0.0.1"], origin_queue_timeout=0.3, **settings)
    slow = asyncio.create_task(edge.get(SLOW, **_as("10.0.0.1")))
    await until(lambda: _asked(origin, SLOW))
    return edge, slow


async def test_when_a_leader_finds_no_place_of_its_own_one_of_those_who_joined_leads_for_all(
    start_edge: StartEdge, origin: Origin, release: asyncio.Event
) -> None:
    edge, slow = await _busy_edge(start_edge, origin, origin_connections_per_address=1)
    refused = asyncio.create_task(edge.get(ARCHIVE, **_as("10.0.0.1")))
    await until(lambda: edge.app[CACHE]._fetches.unanswered(origin.url + ARCHIVE))
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
    """The edge needs the origin's permission to serve it, and the client forbids to ask (RFC 9111 section 5.2.1.7)."""
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
    """The first client gets the origin's own answer; all get its Retry-After."""
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
    """The file of an arriving body is closed with its last reader; the stored one stays."""
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
