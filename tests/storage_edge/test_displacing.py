"""Memory and its budget: which entries are displaced, and when."""

import asyncio
import contextlib
import random
import re
import stat
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from scripts.bench.measuring import read_by_crowd
from storage_edge.client.handlers import CACHE, STORE
from tests.storage_edge.conftest import RAW, Clock, Edge, Origin, StartEdge
from tests.storage_edge.processes import edge_process
from tests.support.deviations import Deviations
from tests.support.waiting import until

TOKEN = "X-Service-Static-Object-Token"
PUBLIC = {"Cache-Control": "public, max-age=60"}
PRIVATE = {"Cache-Control": "private, max-age=0"}
LASTING = {"Cache-Control": "public, max-age=3600", "ETag": '"refusal"'}


class Stored:
    """An origin with one object, whose answers to single requests a test replaces. Readers have the token `alice`."""

    def __init__(self, origin: Origin, *, private: bool) -> None:
        self.private = private
        self.otherwise: tuple[int, dict[str, str]] | None = None
        self.origin = origin
        origin.handler = self.handle

    async def handle(self, request: web.Request) -> web.StreamResponse:
        if self.otherwise is not None:
            status, fields = self.otherwise
            return web.Response(status=status, headers=fields, body=b"otherwise")
        if self.private and request.headers.get(TOKEN) != "alice":
            return web.Response(status=404, headers=LASTING)
        fields = (PRIVATE if self.private else PUBLIC) | {"ETag": '"v1"', "Date": self.origin.date()}
        if request.headers.get("If-None-Match") == '"v1"':
            return web.Response(status=304, headers=fields)
        return web.Response(headers=fields, body=b"content")

    async def is_kept(self, edge: Edge, clock: Clock) -> bool:
        """Return whether the stored object still exists: the next request validates it."""
        self.otherwise = None
        clock.advance(90)
        answer = await edge.get(f"{RAW}?token=alice" if self.private else RAW)
        assert (answer.status, answer.body) == (200, b"content")
        return self.origin.requests[-1].headers.get("If-None-Match") == '"v1"'


#: Whether the stored object is private; the later request for it, when it is stale; the origin's answer (None: the
#: right one); and whether the object stays stored.
ASKED: list[tuple[bool, str, dict[str, str], tuple[int, dict[str, str]] | None, bool]] = [
    # A refusal is about the caller, whatever lifetime it has.
    (True, "", {}, None, True),
    (True, "", {"Cache_Control": "no-cache"}, None, True),
    (True, "", {"Cache_Control": "no-store"}, None, True),
    (True, "?token=mallory", {}, None, True),
    (True, "", {}, (401, LASTING), True),
    (True, "", {}, (403, LASTING), True),
    (True, "", {}, (410, LASTING), True),
    (True, "", {}, (302, LASTING | {"Location": "/users/sign_in"}), True),
    (True, "", {}, (301, LASTING | {"Location": "/elsewhere"}), True),
    (True, "?token=alice", {}, (404, LASTING), True),
    (True, "?token=alice", {}, (401, LASTING), True),
    (False, "?token=mallory", {"Cache_Control": "no-cache"}, (404, LASTING), True),
    (False, "?token=mallory", {"Cache_Control": "no-cache"}, (401, LASTING), True),
    (False, "", {}, (401, LASTING), True),
    (False, "", {}, (403, LASTING), True),
    (False, "", {}, (429, LASTING), True),
    # An error is about no object.
    (True, "", {}, (503, LASTING), True),
    (True, "?token=alice", {}, (503, LASTING), True),
    (False, "", {}, (500, LASTING), True),
    (False, "", {}, (503, {}), True),
    (False, "", {}, (503, LASTING), True),
    (False, "?token=alice", {}, (503, LASTING), True),
    # A public object that no longer exists, has changed, or is private now.
    (False, "", {}, (404, LASTING), False),
    (False, "", {}, (410, LASTING), False),
    (False, "", {}, (301, LASTING | {"Location": "/elsewhere"}), False),
    (False, "", {}, (200, PUBLIC | {"ETag": '"v2"'}), False),
    (False, "?token=alice", {}, (200, PRIVATE | {"ETag": '"v2"'}), False),
    (True, "?token=alice", {}, (200, PRIVATE | {"ETag": '"v2"'}), False),
    (True, "", {}, (200, PUBLIC | {"ETag": '"v2"'}), False),
    # A response that may not be stored leaves the stored one.
    (False, "", {"Cache_Control": "no-store"}, (200, PUBLIC | {"ETag": '"v2"'}), True),
    (False, "", {}, (200, {"Cache-Control": "no-store", "ETag": '"v2"'}), True),
    (True, "", {}, (200, PRIVATE | {"ETag": '"v2"'}), True),
]  # fmt: skip


@pytest.mark.parametrize("memory_bytes", [64 * 2**20, 0], ids=["in memory", "on disk"])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_may_displace_what(
    start_edge: StartEdge, origin: Origin, clock: Clock, method: str, memory_bytes: int
) -> None:
    edge = await start_edge(memory_bytes=memory_bytes)
    deviations = Deviations()
    for case in ASKED:
        private, query, fields, answered, stays = case
        stored = Stored(origin, private=private)
        await edge.purge(prefixes=["/"])
        await edge.get(f"{RAW}?token=alice" if private else RAW)
        await edge.settled()
        clock.advance(90)
        stored.otherwise = answered
        await edge.get(RAW + query, method, **fields)
        await edge.settled()
        with deviations.of(str(case)):
            assert await stored.is_kept(edge, clock) == (stays or method == "HEAD")
    assert not deviations, deviations.report


async def test_a_refusal_that_is_late_does_not_displace_what_came_meanwhile(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    """Nothing was stored at the time of the anonymous request."""
    stored = Stored(origin, private=True)
    gate = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        if TOKEN in request.headers:
            return await stored.handle(request)
        response = web.StreamResponse(status=404, headers=LASTING | {"Content-Length": "4"})
        await response.prepare(request)
        await gate.wait()
        await response.write(b"gone")
        return response

    origin.handler = slow
    stranger = asyncio.create_task(edge.get(RAW))
    await until(lambda: origin.requests)
    assert (await edge.get(f"{RAW}?token=alice")).status == 200
    await until(lambda: origin.url + RAW in edge.app[STORE].memory)
    gate.set()
    assert (await stranger).status == 404
    await edge.settled()
    assert await stored.is_kept(edge, clock)


@pytest.mark.parametrize("head_first", [True, False], ids=["while the body comes", "before the head"])
async def test_what_is_not_stored_takes_no_part_in_collapsing_and_does_not_end_it(
    edge: Edge, origin: Origin, *, head_first: bool
) -> None:
    """One request with `no-store`, between others for the same object."""
    head, body = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        is_first = len(origin.requests) == 1
        fields = PUBLIC | {"ETag": '"v1"', "Content-Length": "7", "Date": origin.date()}
        response = web.StreamResponse(headers=fields)
        if is_first:
            await head.wait()
        await response.prepare(request)
        if is_first:
            await body.wait()
        await response.write(b"content")
        return response

    origin.handler = slow
    clients = [asyncio.create_task(edge.get(RAW))]
    await until(lambda: origin.requests)
    if head_first:
        head.set()
        await until(lambda: origin.url + RAW in edge.app[CACHE]._fetches._joinable)
        fetch = edge.app[CACHE]._fetches._joinable[origin.url + RAW]
        await until(fetch.answered.done)
    alone = await edge.get(RAW, Cache_Control="no-store")
    assert (alone.body, alone.cache_status) == (b"content", "forgelet-edge; fwd=bypass")
    clients += [asyncio.create_task(edge.get(RAW)) for _ in range(5)]
    await asyncio.sleep(0.05)
    head.set()
    body.set()
    answers = await asyncio.gather(*clients)
    assert {answer.body for answer in answers} == {b"content"}
    assert len(origin.requests) == 2


async def test_a_refusal_does_not_end_the_collapsing_of_readers(edge: Edge, origin: Origin) -> None:
    """An anonymous request arrives while a private object is fetched for its first reader."""
    stored = Stored(origin, private=True)
    body = asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        if len(origin.requests) > 1:
            return await stored.handle(request)
        response = web.StreamResponse(headers=PRIVATE | {"ETag": '"v1"', "Content-Length": "7"})
        await response.prepare(request)
        await body.wait()
        await response.write(b"content")
        return response

    origin.handler = slow
    first = asyncio.create_task(edge.get(f"{RAW}?token=alice"))
    await until(lambda: origin.requests)
    assert (await edge.get(RAW)).status == 404
    second = asyncio.create_task(edge.get(f"{RAW}?token=alice"))
    await until(lambda: len(origin.requests) == 3)
    body.set()
    assert [(await client).body for client in (first, second)] == [b"content"] * 2
    assert origin.requests[2].headers["If-None-Match"] == '"v1"'


BUDGET = 2_000_000
SIZE = 700_000


def _on_disk(directory: Path) -> int:
    """Return the bytes of all files, each once: files may be renamed or deleted at any moment."""
    sizes = {}
    for path in directory.glob("v*/*/*/*"):
        with contextlib.suppress(FileNotFoundError):
            found = path.stat()
            sizes[found.st_ino] = found.st_size if stat.S_ISREG(found.st_mode) else 0
    return sum(sizes.values())


def _fields(origin: Origin) -> dict[str, str]:
    return {"Cache-Control": "max-age=600", "ETag": '"1"', "Date": origin.date()}


def _body(target: str) -> bytes:
    return target.encode().ljust(100, b".") * (SIZE // 100)


@pytest.mark.parametrize("length_is_known", [True, False])
async def test_bodies_that_arrive_count(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, length_is_known: bool
) -> None:
    edges = [await start_edge(disk_bytes=BUDGET, memory_object_bytes=10_000) for _ in range(2)]
    waiting, gate = [], asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_fields(origin))
        if length_is_known:
            response.content_length = SIZE
        await response.prepare(request)
        body = _body(request.path)
        await response.write(body[:-1000])
        waiting.append(request)
        await gate.wait()
        await response.write(body[-1000:])
        return response

    origin.handler = handler
    targets = [f"/group/app/-/raw/main/{number}" for number in range(6)]
    asked = [
        asyncio.create_task(edge.get(target))
        for number, target in enumerate(targets)
        for edge in edges[number % 2 :][:1]
    ]
    await until(lambda: len(waiting) == len(targets) and _on_disk(tmp_path / "edge") > SIZE)
    gate.set()
    while not all(task.done() for task in asked):
        assert _on_disk(tmp_path / "edge") <= BUDGET
        await asyncio.sleep(0)
    for target, answer in zip(targets, await asyncio.gather(*asked), strict=True):
        assert answer.body == _body(target)
    for edge in edges:
        await edge.settled()
    assert SIZE <= _on_disk(tmp_path / "edge") <= BUDGET
    kept = [target for target in targets if await _is_kept(edges[0], target)]
    assert kept
    # An object that is requested again displaces others.
    for target in targets:
        for _ in range(2):
            assert (await edges[0].get(target)).body == _body(target)
            await edges[0].settled()
        assert await _is_kept(edges[0], target)
        assert _on_disk(tmp_path / "edge") <= BUDGET


async def _is_kept(edge: Edge, target: str) -> bool:
    return (await edge.get(target, Cache_Control="only-if-cached")).status == 200


async def test_a_body_that_outgrows_the_budget_is_passed_on_to_all_who_read_it(
    start_edge: StartEdge, origin: Origin, tmp_path: Path
) -> None:
    edge = await start_edge(disk_bytes=BUDGET, memory_object_bytes=10_000)
    body = b"0123456789" * (3 * BUDGET // 10)

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers=_fields(origin))
        await response.prepare(request)
        await response.write(body)
        return response

    origin.handler = handler
    for answer in await asyncio.gather(*(edge.get("/group/app/-/raw/main/large") for _ in range(4))):
        assert answer.body == body
    await edge.settled()
    assert _on_disk(tmp_path / "edge") == 0
    assert not await _is_kept(edge, "/group/app/-/raw/main/large")


ARCHIVE = "/group/app/-/archive/main/app-main.zip"
LENGTH = 48_000_000
#: Maximum growth by a crowd of 100 in bytes: data that arrives before it has a file, and some KiB for each client.
ALLOWED = 24_000_000


def _peak(pid: int) -> int:
    """Return the maximum of resident bytes so far, including pages of mapped files."""
    found = re.search(r"VmHWM:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


@pytest.mark.parametrize("clients", [1, 100])
async def test_a_body_that_comes_and_goes_is_not_in_memory(
    origin: Origin, tmp_path: Path, clients: int
) -> None:
    """This holds while it arrives, and when it is on disk."""
    async with edge_process(origin, tmp_path / "edge") as edge, aiohttp.ClientSession() as session:
        origin.answers(b"small", cache_control="public, max-age=600")
        await (await session.get(edge.url + RAW)).read()
        before = _peak(edge.process.pid)
        origin.answers(random.Random(1).randbytes(LENGTH), cache_control="public, max-age=600")
        for _ in range(2):
            await asyncio.to_thread(read_by_crowd, edge.port, ARCHIVE, clients, LENGTH)
        assert len(origin.requests) == 2
        assert _peak(edge.process.pid) - before < ALLOWED
        await edge.stop()


async def test_a_part_of_a_file_is_sent_whole_to_who_takes_it_slowly(origin: Origin, tmp_path: Path) -> None:
    """Bytes that the system does not accept at once are sent later, and none twice."""
    body = random.Random(2).randbytes(9_000_000)
    origin.answers(body, cache_control="public, max-age=600")
    async with edge_process(origin, tmp_path / "edge") as edge, aiohttp.ClientSession() as session:
        for fields, expected in (
            ({}, body),
            ({"Range": "bytes=1000-8000000"}, body[1000:8_000_001]),
        ):
            async with session.get(edge.url + ARCHIVE, headers=fields) as response:
                received = bytearray()
                while piece := await response.content.read(300_000):
                    received += piece
                    await asyncio.sleep(0.002)
            assert bytes(received) == expected
        fields = {"Range": "bytes=0-4999999,6000000-8999999"}
        async with session.get(edge.url + ARCHIVE, headers=fields) as response:
            received = bytearray(await response.read())
            assert len(received) == int(response.headers["Content-Length"])
        assert body[:5_000_000] in received
        assert received.endswith(b"\r\n--" + received.split(b"\r\n", 1)[0][2:] + b"--\r\n")
        assert body[6_000_000:] in received
        await edge.stop()
