"""Requests that repeat byte for byte are answered at once, with the very answers that others get."""

import asyncio
import re
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from storage_edge.client import sendfile
from storage_edge.client.connections import AFTER_EOF
from storage_edge.client.handlers import CONNECTIONS
from storage_edge.client.memory_hits import MAX_HEAD, MAX_HEADS
from tests.storage_edge.conftest import Clock, Edge, Origin, StartEdge
from tests.storage_edge.projects import Project
from tests.storage_edge.talk import RAW, head, talk

#: No two answers have the same.
_REQUEST_ID = re.compile(rb"X-Request-Id: \S+\r\n")


def _known(edge: Edge) -> int:
    return len(edge.app[CONNECTIONS].repeated)


async def test_a_repeated_request_gets_the_same_answer_with_its_age(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"hello", Content_Disposition='attachment; filename="a"', Surrogate_Key="project-1")
    async with talk(edge.port) as client:
        assert b"fwd=uri-miss; stored" in await client.ask(head())
        await edge.settled()
        ordinary = await client.ask(head())
        assert _known(edge) == 1
        repeated = await client.ask(head())
        assert _REQUEST_ID.sub(b"", repeated) == _REQUEST_ID.sub(b"", ordinary)
        assert b"\r\nAge: 0\r\nCache-Status: forgelet-edge; hit; ttl=60\r\n\r\nhello" in repeated
        clock.advance(7)
        assert b"\r\nAge: 7\r\nCache-Status: forgelet-edge; hit; ttl=53\r\n" in await client.ask(head())
    assert len(origin.requests) == 1


async def test_a_repeated_request_counts_like_others(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello")
    async with talk(edge.port) as client:
        received = 0
        for _ in range(5):
            received += len(await client.ask(head()))
            await edge.settled()
    metrics = (await edge.get("/-/metrics")).body.decode()
    assert 'edge_requests_total{kind="raw",outcome="hit"} 4.0' in metrics
    assert f"edge_sent_bytes_total {received}.0" in metrics


@pytest.mark.parametrize("soft", [False, True])
async def test_a_repeated_request_obeys_purges_and_lifetimes(
    edge: Edge, origin: Origin, clock: Clock, soft: bool
) -> None:
    origin.answers(b"old", etag='"1"')
    async with talk(edge.port) as client:
        for _ in range(3):
            await client.ask(head())
            await edge.settled()
        origin.answers(b"new", etag='"2"')
        await edge.purge(urls=[RAW], soft=soft)
        assert (await client.ask(head())).endswith(b"new")
        await edge.settled()
        assert b"; hit" in await client.ask(head())
        origin.answers(b"newer", etag='"3"')
        clock.advance(61)
        assert (await client.ask(head())).endswith(b"newer")
    assert len(origin.requests) == 3


@pytest.mark.parametrize(
    "fields",
    [
        ("Range: bytes=1-2",),
        ('If-None-Match: "v1"',),
        ("Content-Length: 5",),
        ("Transfer-Encoding: chunked",),
        ("Connection: close",),
        ("Expect: 100-continue",),
        ("Connection: Upgrade", "Upgrade: websocket"),
        ("X: " + "y" * MAX_HEAD,),
    ],
)
async def test_what_asks_for_more_than_the_whole_object_is_read_anew_each_time(
    edge: Edge, origin: Origin, fields: tuple[str, ...]
) -> None:
    origin.answers(b"hello")
    await edge.get(RAW)
    await edge.settled()
    before = _known(edge)
    for _ in range(2):
        async with talk(edge.port) as client:
            await client.ask(head(RAW, *fields))
    assert _known(edge) == before


async def test_a_reload_asks_the_origin_each_time(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello")
    async with talk(edge.port) as client:
        for _ in range(4):
            assert (await client.ask(head(RAW, "Cache-Control: no-cache"))).endswith(b"hello")
            await edge.settled()
    assert len(origin.requests) == 4


async def test_a_private_object_is_asked_for_each_time(edge: Edge, origin: Origin) -> None:
    origin.answers(b"secret", cache_control="private, max-age=60")
    async with talk(edge.port) as client:
        for _ in range(4):
            assert (await client.ask(head(RAW + "?token=flso-alice"))).endswith(b"secret")
            await edge.settled()
    assert len(origin.requests) == 4
    assert _known(edge) == 0


async def test_a_request_that_was_answered_while_a_project_was_public_is_not_once_it_is_private(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    project = Project(origin, public=True, readers={"alice"})
    async with talk(edge.port) as client:
        for _ in range(3):
            assert (await client.ask(head())).endswith(project.body)
            await edge.settled()
        assert _known(edge) == 1
        project.public, project.body, project.version = False, b"for alice", 2
        clock.advance(120)
        assert (await edge.get(f"{RAW}?token=alice")).body == b"for alice"
        await edge.settled()
        answer = await client.ask(head())
    assert answer.startswith(b"HTTP/1.1 404")
    assert b"alice" not in answer


async def test_a_body_is_never_taken_for_a_request(edge: Edge, origin: Origin) -> None:
    """A head that announces a body is the same to the byte whatever the body holds."""
    origin.answers(b"hello")
    await edge.get(RAW)
    await edge.settled()
    smuggled = head("/group/app/-/raw/main/other")
    announced = head(RAW, f"Content-Length: {len(smuggled)}")
    for _ in range(3):
        async with talk(edge.port) as client:
            client.writer.write(announced)
            await asyncio.sleep(0.02)
            client.writer.write(smuggled)
            assert (await client.answer()).endswith(b"hello")
            assert (await client.ask(head())).endswith(b"hello")
    assert {request.raw_path for request in origin.requests} == {RAW}


async def test_answers_keep_the_order_of_their_requests(edge: Edge, origin: Origin) -> None:
    """A known request that comes while another is being answered waits for its turn."""
    gate = asyncio.Event()

    async def handler(request: web.Request) -> web.Response:
        if request.path.endswith("slow"):
            await gate.wait()
        return web.Response(text=request.path[-4:], headers={"Cache-Control": "max-age=60"})

    origin.handler = handler
    async with talk(edge.port) as client:
        for _ in range(3):
            await client.ask(head())
            await edge.settled()
        client.writer.write(head("/group/app/-/raw/main/slow"))
        await asyncio.sleep(0.05)
        client.writer.write(head())
        await asyncio.sleep(0.05)
        gate.set()
        assert (await client.answer()).endswith(b"slow")
        assert (await client.answer()).endswith(b"E.md")


@pytest.mark.parametrize("requests", [1, 3])
@pytest.mark.parametrize("known", [False, True])
async def test_a_client_that_has_said_all_still_gets_its_answers(
    edge: Edge, origin: Origin, requests: int, known: bool
) -> None:
    """It may close its side after its requests; the edge closes when it has answered them."""

    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return web.Response(body=b"x" * 500_000, headers={"Cache-Control": "max-age=60"})

    origin.handler = handler
    if known:
        async with talk(edge.port) as client:
            for _ in range(3):
                await client.ask(head())
                await edge.settled()
    async with talk(edge.port) as client:
        client.writer.write(head() * requests)
        client.writer.write_eof()
        for _ in range(requests):
            assert (await client.answer()).endswith(b"x" * 500_000)
        assert await asyncio.wait_for(client.reader.read(), 2) == b""


async def test_a_client_that_goes_away_is_forgotten_at_once(edge: Edge, origin: Origin) -> None:
    origin.answers()
    for data in (b"", b"GET /gro", head(), head("/-/liveness")):
        async with talk(edge.port) as client:
            client.writer.write(data)
            await asyncio.sleep(0.05)
    await asyncio.sleep(2 * AFTER_EOF)
    assert len(edge.app[CONNECTIONS]) == 0


WANTED = st.lists(
    st.sampled_from(
        [
            (head(), b"hello"),
            (head(RAW, "User-Agent: one"), b"hello"),
            (head(RAW, "Range: bytes=0-1"), b"he"),
            (head(RAW, 'If-None-Match: "v1"'), b""),
            (head("/nothing"), b""),
            (head(RAW, method="OPTIONS"), b""),
            (head(RAW, "Content-Length: 4") + b"\r\n\r\n", b"hello"),
            (b"\r\n" + head(), b"hello"),
        ]
    ),
    min_size=1,
    max_size=8,
)


@given(WANTED, st.lists(st.integers(1, 120), max_size=12), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_however_requests_arrive_each_gets_its_answer_in_order(
    edge: Edge, origin: Origin, wanted: list[tuple[bytes, bytes]], cuts: list[int], one_by_one: bool
) -> None:
    origin.answers(b"hello")
    stream = b"".join(request for request, _ in wanted)
    async with talk(edge.port) as client:
        await client.ask(head())
        await edge.settled()
        if one_by_one:
            bodies = [(await client.ask(request)).partition(b"\r\n\r\n")[2] for request, _ in wanted]
        else:
            for cut in [*cuts, len(stream)]:
                client.writer.write(stream[:cut])
                stream = stream[cut:]
                await asyncio.sleep(0)
            bodies = [(await client.answer()).partition(b"\r\n\r\n")[2] for _ in wanted]
        assert bodies == [body for _, body in wanted]
        assert (await client.ask(head())).endswith(b"hello")


async def test_remembered_heads_are_bounded(edge: Edge, origin: Origin) -> None:
    origin.answers(b"x")
    await edge.get(RAW)
    await edge.settled()
    async with talk(edge.port) as client:
        for number in range(40):
            await client.ask(head(RAW, f"X: {number}"))
    repeated = edge.app[CONNECTIONS].repeated
    assert _known(edge) == 40
    request = next(iter(repeated._known.values())).request
    for number in range(MAX_HEADS):
        repeated.learn(b"%d" % number, request, CIMultiDictProxy(CIMultiDict()))
    assert _known(edge) == MAX_HEADS


@pytest.mark.parametrize("damage", ["none", "deleted", "cut off"])
async def test_a_body_that_is_also_in_a_file_arrives_whole_even_at_a_slow_reader(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, damage: str
) -> None:
    edge = await start_edge(memory_object_bytes=8_000_000)
    body = bytes(range(256)) * 24_000
    assert len(body) > sendfile.LEAST
    origin.answers(body)
    async with talk(edge.port) as client:
        for _ in range(3):
            assert (await client.ask(head())).endswith(b"\r\n\r\n" + body)
            await edge.settled()
    (file,) = (path for path in tmp_path.glob("edge/*/objects/*/*") if path.is_file())
    if damage == "deleted":
        file.unlink()
        edge.app[CONNECTIONS].files.let_deleted_go()
    if damage == "cut off":
        with file.open("r+b") as cut:
            cut.truncate(100_000)
    async with talk(edge.port, takes_little=True) as client:
        client.writer.write(head())
        await asyncio.sleep(0.2)
        client.writer.write(head())
        for _ in range(2):
            assert (await client.answer()).endswith(b"\r\n\r\n" + body)
    assert len(origin.requests) == 1
