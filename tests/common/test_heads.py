"""Bad heads have the same statuses in both processes, in HTTP/1.1 and without an echo."""

import asyncio
from collections.abc import AsyncIterator, Callable

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from common.connections import is_host
from tests.support.wire import Server, request, running, talk

ALIVE = request("GET", "/-/liveness")
WORDS = {
    400: "Bad Request",
    414: "Request-URI Too Long",
    431: "Request Header Fields Too Large",
    505: "HTTP Version Not Supported",
}
#: What is sent after nothing, and the status of the answer. The connection ends with it.
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
    """Closing while something is unread resets a connection, and takes away the answer with it."""
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
