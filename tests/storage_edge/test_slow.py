"""Clients that are slow on purpose do not hold the edge."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from tests.storage_edge.conftest import Origin, StartEdge
from tests.storage_edge.talk import head, talk


@pytest.fixture
async def port(start_edge: StartEdge) -> int:
    """An edge that allows 0.4 s for a request's head, 0.4 s between requests and 0.4 s for a piece of a body."""
    edge = await start_edge(
        header_timeout=0.4, keepalive_timeout=0.4, send_timeout=0.4, memory_object_bytes=4 * 2**20
    )
    return edge.port


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


async def test_a_reader_that_does_not_read_is_cut_off(port: int, origin: Origin) -> None:
    origin.answers(b"x" * 50_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
    writer.write(head())
    await reader.read(100)
    await asyncio.sleep(3)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(50_000_000)
    writer.close()


async def test_a_slow_transfer_that_makes_progress_is_not_cut_off(port: int, origin: Origin) -> None:
    origin.answers(b"x" * 12_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    writer.write(head())
    await reader.readuntil(b"\r\n\r\n")
    for _ in range(12):
        await reader.readexactly(1_000_000)
        await asyncio.sleep(0.12)
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
    port: int, origin: Origin, known: bool
) -> None:
    origin.answers(b"x" * 4_000_000)
    async with _slow_reader(port, known=known) as reader:
        await asyncio.sleep(1.5)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(4_000_000)


@pytest.mark.parametrize("known", [False, True])
async def test_a_slow_reader_of_what_is_in_memory_is_not_cut_off(
    port: int, origin: Origin, known: bool
) -> None:
    origin.answers(b"x" * 4_000_000)
    async with _slow_reader(port, known=known) as reader:
        for _ in range(20):
            await reader.readexactly(200_000)
            await asyncio.sleep(0.1)


async def test_a_connection_in_use_stays_open_and_an_idle_one_does_not(port: int, origin: Origin) -> None:
    origin.answers()
    known = await _answered_before(port)
    async with talk(port) as client:
        for _ in range(8):
            assert (await client.ask(known)).startswith(b"HTTP/1.1 200")
            await asyncio.sleep(0.2)
        assert await asyncio.wait_for(client.reader.read(), 2) == b""
