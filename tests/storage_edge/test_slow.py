"""Clients that are slow on purpose do not hold the edge."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from common.lifecycle import BACKGROUND
from storage_edge.client.handlers import CONNECTIONS
from tests.storage_edge.conftest import Edge, Origin, StartEdge
from tests.storage_edge.talk import head, talk
from tests.support.waiting import until


@pytest.fixture
async def port(start_edge: StartEdge) -> int:
    """An edge that allows 0.4 s for a request's head and 0.4 s between requests."""
    return (await start_edge(header_timeout=0.4, keepalive_timeout=0.4)).port


@pytest.fixture
async def unwatched(start_edge: StartEdge) -> Edge:
    """An edge that looks at its connections only when the test says so, and at a time that the test says. It allows
    70 s between requests and 70 s for a piece of a body."""
    edge = await start_edge(keepalive_timeout=70.0, send_timeout=70.0, memory_object_bytes=4 * 2**20)
    await edge.app[BACKGROUND].finish("client connections", 0)
    return edge


async def _is_closed_while_trickling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    for _ in range(60):
        try:
            writer.write(b"X: y\r\n")
            await writer.drain()
            if await asyncio.wait_for(reader.read(1000), 0.05) == b"":
                return True
        except TimeoutError:
            continue
        except ConnectionError:
            return True
    return False


@pytest.mark.parametrize("served_before", [False, True])
async def test_a_head_that_trickles_in_ends_the_connection(
    port: int, origin: Origin, served_before: bool
) -> None:
    origin.answers()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    begun = head().removesuffix(b"\r\n")
    if served_before:
        writer.write(head())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(len(b"content"))
    writer.write(begun)
    assert await _is_closed_while_trickling(reader, writer)
    writer.close()


async def _look_until_it_is_closed(edge: Edge) -> None:
    """Look at a connection whose client takes nothing, so that between two looks more time passes than it has."""
    connections, now = edge.app[CONNECTIONS], asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        while len(connections):
            connections.look(now)
            now += 71
            await asyncio.sleep(0.01)


async def test_a_reader_that_does_not_read_is_cut_off(unwatched: Edge, origin: Origin) -> None:
    origin.answers(b"x" * 50_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", unwatched.port, limit=1000)
    writer.write(head())
    await reader.read(100)
    await _look_until_it_is_closed(unwatched)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(50_000_000)
    writer.close()


async def test_a_slow_transfer_that_makes_progress_is_not_cut_off(unwatched: Edge, origin: Origin) -> None:
    origin.answers(b"x" * 12_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", unwatched.port, limit=2**16)
    writer.write(head())
    await reader.readuntil(b"\r\n\r\n")
    begun = asyncio.get_running_loop().time()
    for number in range(12):
        await reader.readexactly(1_000_000)
        unwatched.app[CONNECTIONS].look(begun + 20 * number)
    writer.close()


async def _answered_before(port: int) -> bytes:
    """A request head whose answer is in memory and whose head is known."""
    known = head()
    async with talk(port) as client:
        for _ in range(3):
            await client.ask(known)
            await asyncio.sleep(0.05)
    return known


@contextlib.asynccontextmanager
async def _slow_reader(port: int, *, known: bool) -> AsyncIterator[asyncio.StreamReader]:
    """A client whose system takes little has asked for what is in memory, and has read the answer's head."""
    asked = await _answered_before(port)
    async with talk(port, takes_little=True) as client:
        client.writer.write(asked if known else asked.replace(b"Host: x", b"Host: other"))
        await client.reader.readuntil(b"\r\n\r\n")
        yield client.reader


@pytest.mark.parametrize("known", [False, True])
async def test_a_reader_that_does_not_read_what_is_in_memory_is_cut_off(
    unwatched: Edge, origin: Origin, known: bool
) -> None:
    origin.answers(b"x" * 4_000_000)
    async with _slow_reader(unwatched.port, known=known) as reader:
        await _look_until_it_is_closed(unwatched)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(4_000_000)


@pytest.mark.parametrize("known", [False, True])
async def test_a_slow_reader_of_what_is_in_memory_is_not_cut_off(
    unwatched: Edge, origin: Origin, known: bool
) -> None:
    origin.answers(b"x" * 4_000_000)
    async with _slow_reader(unwatched.port, known=known) as reader:
        begun = asyncio.get_running_loop().time()
        for number in range(20):
            await reader.readexactly(200_000)
            unwatched.app[CONNECTIONS].look(begun + 20 * number)


async def _look_when_all_is_taken(edge: Edge, now: float) -> None:
    connections = edge.app[CONNECTIONS]
    await until(lambda: not any(connection.untaken() for connection in connections._open.values()))
    connections.look(now)


async def test_a_connection_in_use_stays_open_and_an_idle_one_does_not(
    unwatched: Edge, origin: Origin
) -> None:
    origin.answers()
    known = await _answered_before(unwatched.port)
    clock = asyncio.get_running_loop().time
    async with talk(unwatched.port) as client:
        for _ in range(3):
            assert (await client.ask(known)).startswith(b"HTTP/1.1 200")
            begun = clock()
            assert (await client.ask(known)).startswith(b"HTTP/1.1 200")
            await _look_when_all_is_taken(unwatched, begun + 70)
        await _look_when_all_is_taken(unwatched, clock() + 71)
        assert await asyncio.wait_for(client.reader.read(), 20) == b""
