"""Clients that hold a connection without use lose it, and no client can take all connections, in both processes."""

import asyncio
import ipaddress
import math
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from unittest.mock import AsyncMock

import attrs
import orjson
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from common import connections
from common.client_address import address_behind, networks, one_client
from common.client_settings import ClientSettings
from common.config_errors import ConfigError
from common.connections import LOOKED_AT_TOGETHER, Connection, Connections, is_host
from common.serving import Endpoint, inherited, opened
from tests.support.forge import SharedForges
from tests.support.garbage import garbage_of, nothing_collected
from tests.support.waiting import until
from tests.support.wire import Server, Talk, request, running, talk

PROCESSES = ("api", "edge")
ALIVE = request("GET", "/-/liveness")
Look = Callable[[float], Awaitable[None]]
#: Seconds within which clients have to make progress.
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
    """Send the piece again and again until the server has closed the connection."""
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
async def look(impatient: Server, monkeypatch: pytest.MonkeyPatch) -> Look:
    """Check the server's connections as if this many seconds had passed. Nothing else checks them, and the server's
    limits are long, so that a busy machine does not matter."""
    watched = impatient.connections
    look, clock = watched.end_overdue, asyncio.get_running_loop().time
    patient = {name: 1000 * seconds for name, seconds in IMPATIENT.items()}
    monkeypatch.setattr(watched, "settings", attrs.evolve(watched.settings, **patient))
    monkeypatch.setattr(watched, "end_overdue", AsyncMock())
    return lambda seconds: look(clock() + seconds)


async def test_a_connection_is_kept_for_the_next_request_for_a_while(impatient: Server, look: Look) -> None:
    async with talk(impatient.port) as client:
        for _ in range(3):
            await client.send(ALIVE)
            assert await client.answer() == (200, {"status": "ok"})
            await _taken(impatient)
            await look(700)  # longer than a head may take
        await look(1100)
        assert await client.rest() == b""


async def _awaiting_body(server: Server) -> Connection:
    """Wait until the server has one connection, which waits for a body, and return it."""
    await until(
        lambda: [connection._awaits_body for connection in server.connections._open.values()] == [True]
    )
    (connection,) = server.connections._open.values()
    return connection


async def _taken(server: Server) -> None:
    """Wait until clients have received everything that was sent."""
    await until(lambda: not any(one.untaken() for one in server.connections._open.values()))


@pytest.mark.parametrize("trickles", [False, True])
async def test_a_body_that_does_not_come_is_408(impatient: Server, look: Look, trickles: bool) -> None:
    async with talk(impatient.port) as client, asyncio.TaskGroup() as tasks:
        await client.send(impatient.post("Content-Length: 100000") + b"{")
        connection = await _awaiting_body(impatient)
        trickle = tasks.create_task(_trickle(client, b" ")) if trickles else None
        client.writer.transport.pause_reading()  # type: ignore[attr-defined]
        await look(1600)
        await until(lambda: connection._deadline < math.inf)
        if trickle:  # the client reads the answer only after it has sent more
            before = connection._body_bytes
            await until(lambda: connection._body_bytes > before)
        client.writer.transport.resume_reading()  # type: ignore[attr-defined]
        assert await client.answer() == (408, {"error": "The body of the request does not come."})
        await _taken(impatient)
        await look(1100)
        assert await client.rest() == b""
        if trickle:
            trickle.cancel()


async def test_a_body_that_makes_progress_may_take_longer(impatient: Server, look: Look) -> None:
    piece = b" " * 70_000
    async with talk(impatient.port) as client:
        await client.send(impatient.post(f"Content-Length: {8 * len(piece)}"))
        connection = await _awaiting_body(impatient)
        for number in range(1, 9):
            await client.send(piece)
            await until(lambda: connection._body_bytes >= len(piece) or not connection._awaits_body)
            await look(1000 * number)
        status, body = await client.answer()
        assert status == 400, body  # it is not a JSON document, but all of it has been read


async def test_many_connections_past_their_time_are_not_closed_in_one_step() -> None:
    """Connections that were opened together reach their limit together."""
    several, closed, steps = Connections(ClientSettings()), 0, []

    class Late:
        def end_overdue(self, _now: float) -> None:
            nonlocal closed
            closed += 1

    several._open = {number: Late() for number in range(3 * LOOKED_AT_TOGETHER)}  # type: ignore[misc]
    looking = asyncio.create_task(several.end_overdue(1e9))
    while not looking.done():
        await asyncio.sleep(0)
        steps.append(closed)
    assert steps[:3] == [LOOKED_AT_TOGETHER, 2 * LOOKED_AT_TOGETHER, 3 * LOOKED_AT_TOGETHER]


#: Bytes that clients send before they leave, and the number of bytes of the answer that they wait for.
LEFT_BEHIND: dict[str, tuple[bytes, int]] = {
    "nothing": (b"", 0),
    "half a head": (ALIVE[:-2], 0),
    "a bad head": (b"hello\r\n\r\n", 1),
    "a line that is too long": (request("GET", "/-/liveness", "Cookie: " + "a=; " * 3000), 1),
    "an answer that was an exception": (request("GET", "/no/where/-/raw/main/a"), 1),
    "a body that nobody wanted": (request("POST", "/-/liveness", "Content-Length: 1000"), 1),
}


@pytest.mark.parametrize("name", LEFT_BEHIND)
async def test_a_connection_leaves_no_garbage(
    impatient: Server, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Garbage would be collected together with that of thousands of others, in one step of the event loop."""
    monkeypatch.setattr(connections, "REFUSED_SECONDS", 0.0)
    sent, awaited = LEFT_BEHIND[name]

    async def leave() -> None:
        async with talk(impatient.port) as client:
            await client.send(sent)
            await client.reader.readexactly(awaited)
        await until(lambda: len(impatient.connections) == 0)
        await asyncio.sleep(0.02)

    assert await garbage_of(leave) == {}


async def test_a_body_that_ends_too_early_leaves_no_garbage(impatient: Server) -> None:
    """The garbage would be as large as the received part of the body, for each client that leaves in the middle."""

    async def leave() -> None:
        async with talk(impatient.port) as client:
            await client.send(impatient.post("Content-Length: 100000") + b"{")
            await _awaiting_body(impatient)
            await asyncio.sleep(0.02)
        await until(lambda: len(impatient.connections) == 0)
        await asyncio.sleep(0.02)

    assert await garbage_of(leave) == {}


async def test_an_open_connection_keeps_neither_its_last_request_nor_the_answer() -> None:
    """A client may have a thousand connections, and send a large request on each."""
    size, body = 100_000, web.RequestKey("body", bytes)

    async def keep(request: web.BaseRequest) -> web.StreamResponse:
        request[body] = await request.content.readexactly(size)
        return web.Response(body=bytes(size))

    settings = ClientSettings()
    endpoint = Endpoint(settings=settings, host="127.0.0.1", port=0, connections=Connections(settings))
    sent = request("POST", "/", f"Content-Length: {size}") + bytes(size)

    async with opened(endpoint, keep) as listener, AsyncExitStack() as stack:

        async def ask() -> None:
            client = await stack.enter_async_context(talk(listener.address[1]))
            await client.send(sent)
            await client.head()
            await client.reader.readexactly(size)

        await ask()
        with nothing_collected() as held:
            for _ in range(10):
                await ask()
            assert held() < 5 * size  # of 20


async def test_who_leaves_in_the_middle_of_an_answer_leaves_no_garbage() -> None:
    async def endless(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b"x" * 1000)
            await asyncio.sleep(0)

    settings = ClientSettings()
    endpoint = Endpoint(settings=settings, host="127.0.0.1", port=0, connections=Connections(settings))

    async def leave() -> None:
        async with talk(listener.address[1]) as client:
            await client.send(ALIVE)
            await client.head()
        await until(lambda: len(endpoint.connections) == 0)
        await asyncio.sleep(0.02)

    async with opened(endpoint, endless) as listener:
        assert await garbage_of(leave) == {}


async def test_the_rest_of_a_body_is_not_awaited_of_a_client_that_has_gone(impatient: Server) -> None:
    async with talk(impatient.port) as client:
        await client.send(request("POST", "/-/liveness", "Content-Length: 1000"))
        assert (await client.head()).startswith(b"HTTP/1.1 40")
        (connection,) = impatient.connections._open.values()
        reading = connection.reader._task_handler
        assert reading is not None
        assert not reading.done()
    await asyncio.wait({reading}, timeout=1)  # less than it lingers
    assert reading.done()


async def test_a_refusal_is_not_kept_for_a_client_that_has_gone(
    impatient: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, clients that connect again and again would fill the memory, and a full garbage collection would take
    long."""
    monkeypatch.setattr(connections, "REFUSED_SECONDS", 600)
    before = len(asyncio.all_tasks())
    for _ in range(20):
        async with talk(impatient.port) as client:
            await client.send(request("GET", "/-/liveness", "Cookie: " + "a=; " * 3000))
            assert (await client.head()).startswith(b"HTTP/1.1 431")
    await until(lambda: len(asyncio.all_tasks()) <= before)


async def test_unwanted_bodies_are_read_slowly(
    start: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many at once would block the event loop for as long as they are sent."""
    rate = 2 * 2**20
    monkeypatch.setattr(connections, "UNWANTED_RATE", rate)
    size = 8 * 2**20
    async with start() as server, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(talk(server.port)) for _ in range(4)]
        began = asyncio.get_running_loop().time()
        for client in clients:
            client.writer.write(request("POST", "/-/liveness", f"Content-Length: {size}") + bytes(size))
        for client in clients:
            assert (await client.head()).startswith(b"HTTP/1.1 40")
        reading = list(server.connections._open.values())
        await asyncio.sleep(0.5)
        read = sum(connection._body_bytes for connection in reading)
        may_have_been = rate * (asyncio.get_running_loop().time() - began) + len(clients) * 2**19
        assert 0 < read <= may_have_been


async def test_no_more_connections_than_there_may_be(start: Callable[..., Any]) -> None:
    async with start(max_connections=3) as server, AsyncExitStack() as stack:
        others = [await stack.enter_async_context(talk(server.port)) for _ in range(3)]
        for other in others:
            await other.send(ALIVE)
            assert (await other.answer())[0] == 200
        async with talk(server.port) as client:
            # A body under way must not reset the connection before the refusal has been read.
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


WORDS = {
    400: "Bad Request",
    414: "Request-URI Too Long",
    431: "Request Header Fields Too Large",
    505: "HTTP Version Not Supported",
}
#: The first bytes of a connection, and the status of the answer. The connection ends with it.
REFUSED: dict[str, tuple[bytes, int]] = {
    "a target of 9,000 bytes": (request("GET", "/" + "a" * 9000), 414),
    "a query of 9,000 bytes": (request("GET", "/?" + "secret=" * 1300), 414),
    "an absolute target of 9,000 bytes": (request("GET", "http://x/" + "a" * 9000), 414),
    "a target without an end": (b"GET /" + b"a" * 20_000, 414),
    "a value of 9,000 bytes": (request("GET", "/", "X: " + "a" * 9000), 431),
    "a value like a path": (request("GET", "/", "X: /" + "a" * 9000), 431),
    "a name of 9,000 bytes": (request("GET", "/", "X" * 9000 + ": a"), 431),
    "a cookie without an end": (request("GET", "/", "Cookie: " + "a" * 20_000)[:-4], 431),
    "a field too many": (request("GET", "/", *(f"X-{n}: y" for n in range(200))), 431),
    "HTTP/2.0": (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", 505),
    "HTTP/3.0": (b"GET / HTTP/3.0\r\nHost: x\r\n\r\n", 505),
    "HTTP/1.2": (b"GET / HTTP/1.2\r\nHost: x\r\n\r\n", 505),
    "HTTP/0.9": (b"GET / HTTP/0.9\r\nHost: x\r\n\r\n", 505),
    "HTTP/2.0's preface": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    "no version": (b"GET /\r\nHost: x\r\n\r\n", 505),
    "half a version": (b"GET / HTTP/1\r\nHost: x\r\n\r\n", 400),
    "another protocol": (b"GET / ICE/1.0\r\nHost: x\r\n\r\n", 400),
    "TLS": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    "no method": (b"hello\r\n\r\n", 400),
    "no host": (b"GET / HTTP/1.1\r\n\r\n", 400),
    "two hosts": (request("GET", "/", "Host: y"), 400),
    "a host with a space": (b"GET / HTTP/1.1\r\nHost: a b/c\r\n\r\n", 400),
    "a host with a path": (b"GET / HTTP/1.1\r\nHost: example.org/a\r\n\r\n", 400),
    "a host with a user": (b"GET / HTTP/1.1\r\nHost: ann@example.org\r\n\r\n", 400),
    "a host of HTTP/1.0 with a space": (b"GET / HTTP/1.0\r\nHost: a b\r\n\r\n", 400),
    "a host of bytes": (b"GET / HTTP/1.1\r\nHost: b\xc3\xbccher.example\r\n\r\n", 400),
    "a port that is none": (b"GET / HTTP/1.1\r\nHost: example.org:http\r\n\r\n", 400),
    "NUL in a value": (request("GET", "/", "X: \0secret"), 400),
    "a space before the colon": (request("GET", "/", "X : y"), 400),
    "a folded line": (request("GET", "/", " folded"), 400),
    "two lengths": (request("POST", "/", "Content-Length: 1", "Content-Length: 2"), 400),
    "a space in the target": (b"GET /a secret HTTP/1.1\r\nHost: x\r\n\r\n", 400),
}


@pytest.fixture(scope="module", params=("api", "edge"))
async def server(
    request: pytest.FixtureRequest, new_database: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Server]:
    async with running(request.param, new_database, tmp_path_factory.mktemp("heads")) as server:
        yield server


async def test_a_bad_head_is_refused_in_http_1_1_and_ends_the_connection(server: Server) -> None:
    async def answer(sent: bytes) -> bytes:
        async with talk(server.port) as client:
            await client.send(sent)
            return await client.rest()

    answers = await asyncio.gather(*(answer(sent) for sent, _ in REFUSED.values()))
    for (name, (_, status)), received in zip(REFUSED.items(), answers, strict=True):
        head, _, body = received.partition(b"\r\n\r\n")
        first, *fields = head.decode().split("\r\n")
        words = f"{status} {WORDS[status]}"
        assert (name, first, orjson.loads(body)) == (name, f"HTTP/1.1 {words}", {"message": words})
        assert (name, "Connection: close" in fields, b"secret" in received) == (name, True, False)


async def test_it_is_refused_behind_others_too(server: Server) -> None:
    async with talk(server.port) as client:
        for sent, status in ((ALIVE, 200), (ALIVE, 200), REFUSED["a target of 9,000 bytes"]):
            await client.send(sent)
            assert (await client.answer())[0] == status
        assert await client.rest() == b""


async def test_a_client_that_is_still_sending_reads_why_it_is_refused(server: Server) -> None:
    """Closing a connection with unread bytes resets it, and the answer is lost."""
    async with talk(server.port) as client:
        await client.send(b"GET /" + b"a" * 9000)
        assert (await client.head()).startswith(b"HTTP/1.1 414 ")
        await client.send(b"a" * 100_000)
        assert (await client.rest()).endswith(b"}")


#: Hosts as clients write them (RFC 9110 section 7.2).
HOSTS = ["", "x", "localhost:8080", "example.org.", "EXAMPLE.org:", "my_host-1", "192.0.2.1:80", "[::1]:8080",
         "[2001:db8::1]", "[fe80::1%25eth0]", "xn--bcher-kva.example", "a%20b", "a~b!$&'()*+,;=c"]  # fmt: skip


async def test_what_may_be_a_host_is_one(server: Server) -> None:
    for host in HOSTS:
        async with talk(server.port) as client:
            await client.send(f"GET /-/liveness HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert (host, (await client.head())[:12]) == (host, b"HTTP/1.1 200")


@given(st.text(max_size=40) | st.lists(st.sampled_from([*HOSTS, ":", "[", "]", "%", "@"])).map("".join))
def test_a_host_has_nothing_that_ends_it_elsewhere(text: str) -> None:
    if is_host(text.encode()):
        assert text.isascii()
        assert not set(text) & set(' /?#@\\"<>^`{|}\r\n\t\0')


PROXIES = networks(["10.0.0.0/8", "192.0.2.7", "2001:db8::/32"])
ADDRESSES = st.ip_addresses().map(str)
TRUSTED = st.ip_addresses(network="10.0.0.0/8").map(str)


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9, 198.51.100.1"], "198.51.100.1"),
        ("10.0.0.1", ["203.0.113.9", "198.51.100.1, 192.0.2.7"], "198.51.100.1"),
        ("::ffff:10.0.0.1", ["198.51.100.1"], "198.51.100.1"),
        ("2001:db8::1", [" 2001:DB9::1 "], "2001:DB9::1"),
        ("198.51.100.5", ["203.0.113.9"], "198.51.100.5"),
        ("192.0.2.8", ["203.0.113.9"], "192.0.2.8"),
        ("10.0.0.1", ["unknown"], "10.0.0.1"),
        ("10.0.0.1", ["198.51.100.1, <script>"], "10.0.0.1"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
    ],
)
def test_the_last_address_that_no_proxy_has_is_the_clients(
    peer: str, forwarded_for: list[str], address: str
) -> None:
    assert address_behind(PROXIES, peer, forwarded_for) == address


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("", ""),
    ],
)
def test_limits_count_one_customers_addresses_together(address: str, counted: str) -> None:
    assert one_client(address) == counted


@given(claimed=st.lists(ADDRESSES | st.text()), client=ADDRESSES, proxies=st.lists(TRUSTED, min_size=1))
def test_a_client_cannot_choose_its_address(claimed: list[str], client: str, proxies: list[str]) -> None:
    """Whatever it sends as `X-Forwarded-For`, the first trusted proxy adds its real address after that."""
    if any(ipaddress.ip_address(client) in network for network in PROXIES):
        return
    *between, peer = proxies
    assert address_behind(PROXIES, peer, [", ".join(claimed), ", ".join([client, *between])]) == client


@pytest.mark.parametrize(("trusted", "address"), [(["127.0.0.1"], "198.51.100.1"), ([], "127.0.0.1")])
async def test_an_audit_event_has_the_clients_address(
    shared_forge: SharedForges, trusted: list[str], address: str
) -> None:
    forge = await shared_forge(trusted_proxies=trusted)
    made = await forge.root.post(
        "/groups", {"name": "behind", "path": "behind"}, headers={"X-Forwarded-For": "198.51.100.1"}
    )
    events = (await forge.root.get(f"/groups/{made.body['id']}/audit_events")).body
    assert {event["details"]["ip_address"] for event in events} == {address}


def test_a_socket_is_taken_by_its_number_and_not_handed_on() -> None:
    with socket.socket() as ours:
        ours.bind(("127.0.0.1", 0))
        ours.set_inheritable(True)
        with inherited(ours.fileno()) as taken:
            assert taken.getsockname() == ours.getsockname()
            assert not taken.get_inheritable()
            taken.detach()


def test_what_is_no_socket_is_one_sentence() -> None:
    with open("/dev/null") as file:  # noqa: PTH123 - its descriptor is used
        number = file.fileno()
        with pytest.raises(ConfigError, match=f"^listen_fd names {number}, which is no open socket: "):
            inherited(number)
