"""Clients that are slow on purpose do not hold the edge."""

import asyncio
import socket

import pytest

from tests.storage_edge.conftest import Origin, StartEdge

RAW = "/group/app/-/raw/main/README.md"


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
    head = f"GET {RAW} HTTP/1.1\r\nHost: x\r\n".encode()
    if served_before:
        writer.write(head + b"\r\n")
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(len(b"content"))
    writer.write(head)
    assert await _is_closed_while_trickling(reader, writer)
    writer.close()


async def test_a_reader_that_does_not_read_is_cut_off(port: int, origin: Origin) -> None:
    origin.answers(b"x" * 50_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1000)
    writer.write(f"GET {RAW} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.read(100)
    await asyncio.sleep(3)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(50_000_000)
    writer.close()


async def test_a_slow_transfer_that_makes_progress_is_not_cut_off(port: int, origin: Origin) -> None:
    origin.answers(b"x" * 12_000_000)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**16)
    writer.write(f"GET {RAW} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    await reader.readuntil(b"\r\n\r\n")
    for _ in range(12):
        await reader.readexactly(1_000_000)
        await asyncio.sleep(0.12)
    writer.close()


async def _stored(port: int, size: int, target: str = RAW) -> bytes:
    """A request head whose answer is in memory and whose head is known."""
    head = f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(3):
        writer.write(head)
        await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(size)
        await asyncio.sleep(0.05)
    writer.close()
    return head


async def _connect(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client whose system takes little that it does not read."""
    small = socket.socket()
    small.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
    small.setblocking(False)
    await asyncio.get_running_loop().sock_connect(small, ("127.0.0.1", port))
    return await asyncio.open_connection(sock=small, limit=10_000)


@pytest.mark.parametrize("known", [False, True])
async def test_a_reader_that_does_not_read_what_is_in_memory_is_cut_off(
    port: int, origin: Origin, known: bool
) -> None:
    origin.answers(b"x" * 4_000_000)
    head = await _stored(port, 4_000_000)
    reader, writer = await _connect(port)
    writer.write(head if known else head.replace(b"Host: x", b"Host: other"))
    await reader.readuntil(b"\r\n\r\n")
    await asyncio.sleep(1.5)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(4_000_000)
    writer.close()


@pytest.mark.parametrize("known", [False, True])
async def test_a_slow_reader_of_what_is_in_memory_is_not_cut_off(
    port: int, origin: Origin, known: bool
) -> None:
    origin.answers(b"x" * 4_000_000)
    head = await _stored(port, 4_000_000)
    reader, writer = await _connect(port)
    writer.write(head if known else head.replace(b"Host: x", b"Host: other"))
    await reader.readuntil(b"\r\n\r\n")
    for _ in range(20):
        await reader.readexactly(200_000)
        await asyncio.sleep(0.1)
    writer.close()


async def test_a_connection_in_use_stays_open_and_an_idle_one_does_not(port: int, origin: Origin) -> None:
    origin.answers()
    head = await _stored(port, len(b"content"))
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(8):
        writer.write(head)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
        await reader.readexactly(len(b"content"))
        await asyncio.sleep(0.2)
    assert await asyncio.wait_for(reader.read(), 2) == b""
    writer.close()
