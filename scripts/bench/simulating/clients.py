"""Clients that ask one thing after the other, real ones: each on a connection of its own, with pauses between."""

import asyncio
import re
import time
from collections.abc import Sequence
from random import Random

import attrs

_LENGTH = re.compile(rb"\r\nContent-Length: (\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\nTransfer-Encoding: chunked", re.IGNORECASE)


@attrs.frozen
class Asked:
    """Seconds that each answer took, and how many answers there were a second."""

    taken: list[float]
    rate: float

    @property
    def mean(self) -> float:
        """Milliseconds."""
        return sum(self.taken) / len(self.taken) * 1000


async def asked(
    ports: Sequence[int], requests: Sequence[bytes], number: int, pause: float, seconds: float
) -> Asked:
    """Of so many clients, by turns at the ports, each of which asks any of `requests` and then pauses for a while
    around `pause` seconds. Raises `RuntimeError` where one is not answered with 2xx or 3xx."""
    taken: list[float] = []
    begun = time.perf_counter()
    end = begun + seconds

    async def client(place: int) -> None:
        random = Random(place)
        reader, writer = await asyncio.open_connection("127.0.0.1", ports[place % len(ports)])
        try:
            while time.perf_counter() < end:
                if pause:
                    await asyncio.sleep(random.expovariate(1 / pause))
                sent = time.perf_counter()
                writer.write(random.choice(requests))
                await answer(reader)
                taken.append(time.perf_counter() - sent)
        finally:
            writer.close()

    await asyncio.gather(*(client(place) for place in range(number)))
    return Asked(taken, len(taken) / (time.perf_counter() - begun))


async def said(port: int, one: bytes) -> tuple[bytes, bytes]:
    """Head and body of the answer to one request."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(one)
        return await answer(reader)
    finally:
        writer.close()


async def answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body. Raises `RuntimeError` where it is no success."""
    head = await reader.readuntil(b"\r\n\r\n")
    if head[9:10] not in (b"2", b"3"):
        raise RuntimeError(f"An answer was {head[:40]!r}.")
    length = _LENGTH.search(head)
    if length is not None and head[9:12] != b"304":
        return head, await reader.readexactly(int(length[1]))
    if _CHUNKED.search(head) is None:
        return head, b""
    pieces = []
    while (size := int(await reader.readline(), 16)) > 0:
        pieces.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return head, b"".join(pieces)


def request(method: str, path: str, headers: dict[str, str], body: bytes = b"") -> bytes:
    """As it is sent."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body
