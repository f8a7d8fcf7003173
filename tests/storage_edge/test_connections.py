"""However requests arrive, each gets its answer in order, whether it is answered at once or not."""

import asyncio
from pathlib import Path

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_edge.client import connections
from storage_edge.client.handlers import CONNECTIONS
from tests.storage_edge.conftest import Edge, Origin, StartEdge
from tests.storage_edge.talk import RAW, head, talk
from tests.support.waiting import until


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
    """A plain request that comes while another is being answered waits for its turn."""
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
@pytest.mark.parametrize("plain", [False, True])
async def test_a_client_that_has_said_all_still_gets_its_answers(
    edge: Edge, origin: Origin, requests: int, plain: bool
) -> None:
    """It may close its side after its requests; the edge closes when it has answered them."""

    async def handler(request: web.Request) -> web.Response:
        await asyncio.sleep(0.1)
        return web.Response(body=b"x" * 500_000, headers={"Cache-Control": "max-age=60"})

    origin.handler = handler
    if plain:
        async with talk(edge.port) as client:
            for _ in range(3):
                await client.ask(head())
                await edge.settled()
    async with talk(edge.port) as client:
        client.writer.write(head() * requests)
        client.writer.write_eof()
        for _ in range(requests):
            assert (await client.answer()).endswith(b"x" * 500_000)
        assert await asyncio.wait_for(client.reader.read(), 20) == b""


async def test_a_client_that_goes_away_is_forgotten_at_once(edge: Edge, origin: Origin) -> None:
    origin.answers()
    for data in (b"", b"GET /gro", head(), head("/-/liveness")):
        async with talk(edge.port) as client:
            client.writer.write(data)
            await asyncio.sleep(0.05)
    await until(lambda: len(edge.app[CONNECTIONS]) == 0)


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
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
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


@pytest.mark.parametrize("damage", ["none", "deleted", "cut off"])
async def test_a_body_that_is_also_in_a_file_arrives_whole_even_at_a_slow_reader(
    start_edge: StartEdge, origin: Origin, tmp_path: Path, damage: str
) -> None:
    edge = await start_edge(memory_object_bytes=8_000_000)
    body = bytes(range(256)) * 24_000
    assert len(body) > connections.LEAST
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
