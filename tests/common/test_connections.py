"""Clients that hold a connection for nothing lose it, and nobody has all connections: on either process alike."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import attrs
import pytest

from common.connections import Connection
from tests.support.waiting import until
from tests.support.wire import Server, Talk, request, running, talk

PROCESSES = ("api", "edge")
ALIVE = request("GET", "/-/liveness")
#: Seconds; what makes progress has to do so in less.
IMPATIENT = {"header_timeout": 0.4, "body_timeout": 1.5, "keepalive_timeout": 1.0, "send_timeout": 0.6}


@pytest.fixture(scope="module", params=PROCESSES)
async def impatient(
    request: pytest.FixtureRequest,
    new_database: Callable[[], str],
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncIterator[Server]:
    folder = tmp_path_factory.mktemp("impatient")
    async with running(request.param, new_database, folder, **IMPATIENT) as server:
        yield server


@pytest.fixture(params=PROCESSES)
def start(
    request: pytest.FixtureRequest, new_database: Callable[[], str], tmp_path: Path
) -> Callable[..., Any]:
    return lambda **settings: running(request.param, new_database, tmp_path, **settings)


async def _trickle(client: Talk, piece: bytes) -> None:
    """Sends the piece again and again until the server has closed the connection."""
    while not client.reader.at_eof() and not client.writer.is_closing():
        client.writer.write(piece)
        await asyncio.sleep(0.02)


@pytest.mark.parametrize("sent", [b"", ALIVE[:-2], b"GET"], ids=["nothing", "half a head", "one word"])
async def test_a_client_that_sends_no_request_loses_its_connection(impatient: Server, sent: bytes) -> None:
    async with talk(impatient.port) as client:
        await client.send(sent)
        assert await client.rest() == b""
    await until(lambda: len(impatient.connections) == 0)


async def test_a_head_that_trickles_in_ends_the_connection(impatient: Server) -> None:
    async with talk(impatient.port) as client:
        await client.send(ALIVE[:-2])
        async with asyncio.TaskGroup() as tasks:
            trickle = tasks.create_task(_trickle(client, b"X: y\r\n"))
            assert await client.rest() == b""
            trickle.cancel()


@pytest.fixture
async def look(impatient: Server, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Look at the server's connections as so many seconds from now. Nothing else does, and it is a patient server:
    what took seconds may take a thousand times as long."""
    connections = impatient.connections
    look, clock = connections.look, asyncio.get_running_loop().time
    patient = {name: 1000 * seconds for name, seconds in IMPATIENT.items()}
    monkeypatch.setattr(connections, "settings", attrs.evolve(connections.settings, **patient))
    monkeypatch.setattr(connections, "look", lambda _: None)
    return lambda seconds: look(clock() + seconds)


async def test_a_connection_is_kept_for_the_next_request_for_a_while(
    impatient: Server, look: Callable[[float], None]
) -> None:
    async with talk(impatient.port) as client:
        for _ in range(3):
            await client.send(ALIVE)
            assert await client.answer() == (200, {"status": "ok"})
            await _taken(impatient)
            look(700)  # more than a head may take
        look(1100)
        assert await client.rest() == b""


async def _awaiting_body(server: Server) -> Connection:
    """Wait until the server has one connection, which awaits a body, and return it."""
    await until(
        lambda: [connection._awaits_body for connection in server.connections._open.values()] == [True]
    )
    (connection,) = server.connections._open.values()
    return connection


async def _taken(server: Server) -> None:
    """Wait until clients have taken all that was sent."""
    await until(lambda: not any(one.untaken() for one in server.connections._open.values()))


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_body_that_does_not_come_is_408(
    impatient: Server, look: Callable[[float], None], trickles: bool
) -> None:
    async with talk(impatient.port) as client, asyncio.TaskGroup() as tasks:
        await client.send(impatient.post("Content-Length: 100000") + b"{")
        connection = await _awaiting_body(impatient)
        trickle = tasks.create_task(_trickle(client, b" ")) if trickles else None
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        look(1600)
        await until(lambda: connection._deadline < math.inf)
        if trickle:  # the client looks at the answer when it has sent more
            before = connection._body_bytes
            await until(lambda: connection._body_bytes > before)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await client.answer() == (408, {"error": "The body of the request does not come."})
        await _taken(impatient)
        look(1100)
        assert await client.rest() == b""
        if trickle:
            trickle.cancel()


async def test_a_body_that_makes_progress_may_take_longer(
    impatient: Server, look: Callable[[float], None]
) -> None:
    piece = b" " * 70_000
    async with talk(impatient.port) as client:
        await client.send(impatient.post(f"Content-Length: {8 * len(piece)}"))
        connection = await _awaiting_body(impatient)
        for number in range(1, 9):
            await client.send(piece)
            await until(lambda: connection._body_bytes >= len(piece) or not connection._awaits_body)
            look(1000 * number)
        status, body = await client.answer()
        assert status == 400, body  # it is no document, but all of it has been read


async def test_no_more_connections_than_there_may_be(start: Callable[..., Any]) -> None:
    async with start(max_connections=3) as server, AsyncExitStack() as stack:
        others = [await stack.enter_async_context(talk(server.port)) for _ in range(3)]
        for other in others:
            await other.send(ALIVE)
            assert (await other.answer())[0] == 200
        async with talk(server.port) as client:
            # A body on its way must not reset the connection before the refusal has been read.
            client.writer.write(server.post("Content-Length: 1000000") + b" " * 1_000_000)
            head = await client.head()
            assert head.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
            assert b"Retry-After: 5\r\n" in head
            assert await client.rest() == b'{"message":"503 Service Unavailable"}'
        others[0].writer.close()
        await until(lambda: len(server.connections) == 2)
        async with talk(server.port) as client:
            await client.send(ALIVE)
            assert (await client.answer())[0] == 200


@pytest.mark.parametrize("trusted", [[], ["127.0.0.0/8"]])
async def test_no_client_has_more_than_its_share_of_connections(
    start: Callable[..., Any], trusted: list[str]
) -> None:
    limits = {"max_connections_per_address": 2, "trusted_proxies": trusted}
    async with start(**limits) as server, AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(talk(server.port))
        await until(lambda: len(server.connections) == 2)
        async with talk(server.port) as client:
            await client.send(ALIVE)
            status, body = await client.answer()
        if trusted:
            assert status == 200
        else:
            assert (status, body) == (429, {"message": "429 Too Many Requests"})


async def test_refused_connections_do_not_pile_up(start: Callable[..., Any]) -> None:
    async with start(max_connections=0) as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(talk(server.port)) for _ in range(200)]
        answers = [await client.rest() for client in clients]
        told = [answer for answer in answers if answer.startswith(b"HTTP/1.1 503")]
        assert 100 < len(told) < 200, len(told)
        assert len(server.connections) == 0


@pytest.mark.parametrize(
    ("version", "length", "status"),
    [("1.1", 100, 417), ("1.1", 0, 417), ("1.0", 0, 417)],
)
async def test_an_expectation_that_nobody_knows_is_417(
    impatient: Server, version: str, length: int, status: int
) -> None:
    async with talk(impatient.port) as client:
        head = impatient.post("Expect: wonders", f"Content-Length: {length}", "Connection: close")
        await client.send(head.replace(b"HTTP/1.1", f"HTTP/{version}".encode()) + b" " * length)
        assert await client.answer() == (status, {"error": "417 Expectation Failed"})


async def test_a_body_is_asked_for_when_it_is_wanted(impatient: Server) -> None:
    async with talk(impatient.port) as client:
        await client.send(impatient.post("Expect: 100-continue", "Content-Length: 9"))
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"{}       ")
        assert (await client.answer())[0] in (200, 400)


async def test_a_body_is_not_asked_for_from_strangers(impatient: Server) -> None:
    stranger = impatient.post("Expect: 100-continue", "Content-Length: 1000000").replace(
        b"oken: ", b"oken: x"
    )
    for field in (b"PRIVATE-TOKEN: ", b"Bearer "):
        stranger = stranger.replace(field, field + b"x")
    async with talk(impatient.port) as client:
        await client.send(stranger)
        head = await client.head()
        assert head.startswith(b"HTTP/1.1 401 Unauthorized\r\n")
        assert b"\r\nConnection: close\r\n" in head
