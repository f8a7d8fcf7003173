"""Heads of requests: plain ones are recognised by their bytes, hostile ones are refused."""

import asyncio
import gzip
import string
from typing import Any
from unittest import mock

import pytest
from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from multidict import CIMultiDict, CIMultiDictProxy

from common.connections import is_host
from storage_edge.client import memory_hits
from storage_edge.client.handlers import CONNECTIONS, RULES
from storage_edge.client.memory_hits import HARMLESS, PlainHead
from storage_edge.request_rules import EdgeRequest, Rules
from storage_edge.settings import Settings
from tests.storage_edge.conftest import RAW, STORAGE_TOKEN, Edge, Origin
from tests.support.waiting import until

TARGET = b"/group/app/-/raw/main/README.md"
GET = b"GET " + TARGET + b" HTTP/1.1\r\n"
HOST = b"Host: x\r\n"
PLAIN = GET + HOST
END = b"\r\n"
MOST_BYTES, MOST_FIELDS = 8190, 100
PLAIN_RULES = Rules(Settings())


def by_bytes(data: bytes) -> PlainHead | None:
    return memory_hits.read_plain_head(data, MOST_BYTES, MOST_FIELDS)


async def by_aiohttp(data: bytes) -> list[Any] | None:
    """Return the requests that aiohttp reads from these bytes, or None."""
    parser = HttpRequestParser(
        mock.Mock(_reading_paused=False),
        asyncio.get_running_loop(),
        2**16,
        max_line_size=MOST_BYTES,
        max_field_size=MOST_BYTES,
        max_headers=MOST_FIELDS,
    )
    try:
        messages, upgraded, tail = parser.feed_data(data)
    except HttpProcessingError:
        return None
    return [message for message, body in messages if body.is_eof()] if not upgraded and not tail else []


def asked(head: PlainHead) -> EdgeRequest | None:
    return PLAIN_RULES.read_plainly(head.method, head.target, head.value(b"accept-encoding"))


async def assert_read_alike(data: bytes, head: PlainHead) -> None:
    """Check that aiohttp reads one request with the content of `head`, without a body, on a connection that stays
    open."""
    messages = await by_aiohttp(data)
    assert messages is not None
    (message,) = messages
    assert (message.method, message.path) == (head.method, head.target)
    assert message.version == HttpVersion11
    assert (message.should_close, message.upgrade, message.chunked) == (False, False, False)
    names = [name.decode() for name in head.fields]
    assert [name.lower() for name in message.headers] == names
    assert [head.value(name.encode()) for name in names] == list(message.headers.values())
    request = asked(head)
    if request is not None:
        by_rules = PLAIN_RULES.read(message.method, message.path, message.headers)
        assert by_rules == request
        assert request.takes_gzip == by_rules.takes_gzip  # type: ignore[union-attr]


BROWSER = (
    b'Connection: keep-alive\r\nsec-ch-ua: "Chromium";v="130", "Not?A_Brand";v="99"\r\n'
    b'sec-ch-ua-mobile: ?0\r\nsec-ch-ua-platform: "Linux"\r\nUpgrade-Insecure-Requests: 1\r\n'
    b"User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\r\nAccept: text/html,*/*;q=0.8\r\n"
    b"Sec-Fetch-Site: none\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-User: ?1\r\nSec-Fetch-Dest: document\r\n"
    b"Accept-Encoding: gzip, deflate, br, zstd\r\nAccept-Language: en-GB,en;q=0.9\r\nPriority: u=0, i\r\n"
)


@pytest.mark.parametrize(
    "data",
    [
        PLAIN,
        b"HEAD " + TARGET + b" HTTP/1.1\r\n" + HOST,
        GET + b"Host: localhost:8081\r\nUser-Agent: curl/8.5.0\r\nAccept: */*\r\n",
        PLAIN + BROWSER,
        GET
        + b"host:x\r\nuser-agent:  pip/24.0 {}  \r\nACCEPT-ENCODING: identity\r\nConnection: Keep-Alive\r\n",
        PLAIN + b"X-Forwarded-For: 192.0.2.1, 192.0.2.2\r\nX-Request-Id: 0123456789\r\nAccept:\r\n",
        b"GET /g/%61pp/-/archive/main/x.zip?path=a%20b&append_sha=true HTTP/1.1\r\n" + HOST,
        b'GET /g/a/-/raw/m/"<>^`{|}\\~ HTTP/1.1\r\n' + HOST,
    ],
)
async def test_what_clients_usually_send_is_plain(data: bytes) -> None:
    head = by_bytes(data + END)
    assert head is not None
    await assert_read_alike(data + END, head)


ODD = {
    "a host that is none": GET + b"Host: a b/c\r\n",
    "a range": PLAIN + b"Range: bytes=0-1\r\n",
    "a condition": PLAIN + b'If-None-Match: "v1"\r\n',
    "a date as condition": PLAIN + b"If-Modified-Since: Thu, 01 Jan 2026 00:00:00 GMT\r\n",
    "a precondition": PLAIN + b'If-Match: "v1"\r\n',
    "a range's condition": PLAIN + b'If-Range: "v1"\r\n',
    "directives": PLAIN + b"Cache-Control: no-cache\r\n",
    "old directives": PLAIN + b"Pragma: no-cache\r\n",
    "a cookie": PLAIN + b"Cookie: session=1\r\n",
    "credentials": PLAIN + b"Authorization: Bearer x\r\n",
    "credentials for proxies": PLAIN + b"Proxy-Authorization: Basic x\r\n",
    "a token": PLAIN + b"Private-Token: x\r\n",
    "a user's token": PLAIN + b"X-Service-Static-Object-Token: x\r\n",
    "the storage's token": PLAIN + b"X-Service-External-Storage-Token: x\r\n",
    "a loop": PLAIN + b"CDN-Loop: forgelet-edge\r\n",
    "an unknown field": PLAIN + b"X: y\r\n",
    "an expectation": PLAIN + b"Expect: 100-continue\r\n",
    "an upgrade": PLAIN + b"Connection: Upgrade\r\nUpgrade: websocket\r\n",
    "an upgrade alone": PLAIN + b"Upgrade: h2c\r\n",
    "closing": PLAIN + b"Connection: close\r\n",
    "closing after all": PLAIN + b"Connection: keep-alive, close\r\n",
    "closing twice": PLAIN + b"Connection: close\r\nConnection: close\r\n",
    "staying and closing": PLAIN + b"Connection: keep-alive\r\nConnection: close\r\n",
    "a length": PLAIN + b"Content-Length: 5\r\n",
    "no length": PLAIN + b"Content-Length: 0\r\n",
    "chunks": PLAIN + b"Transfer-Encoding: chunked\r\n",
    "an unknown coding": PLAIN + b"Transfer-Encoding: xchunked\r\n",
    "length and chunks": PLAIN + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "a type": PLAIN + b"Content-Type: text/plain\r\n",
    "trailers": PLAIN + b"TE: trailers\r\nTrailer: X\r\n",
    "no Host": GET + b"Accept: */*\r\n",
    "no field": GET,
    "Host twice": PLAIN + HOST,
    "Host twice, differently": PLAIN + b"HOST: y\r\n",
    "a field twice": PLAIN + b"Accept: a\r\nAccept: b\r\n",
    "codings twice": PLAIN + b"Accept-Encoding: gzip\r\naccept-encoding: gzip;q=0\r\n",
    "70 fields": PLAIN + b"".join(b"Accept-%d: x\r\n" % number for number in range(70)),
    "101 fields": PLAIN + b"".join(b"X-%d: x\r\n" % number for number in range(100)),
    "a fold": PLAIN + b"Accept: a\r\n b\r\n",
    "a fold by tab": PLAIN + b"Accept: a\r\n\tb\r\n",
    "a fold of the first field": GET + b" " + HOST,
    "a space before a colon": GET + b"Host : x\r\n",
    "no colon": PLAIN + b"Accept\r\n",
    "no name": PLAIN + b": x\r\n",
    "a tab": PLAIN + b"Accept:\tx\r\n",
    "a bare LF": PLAIN + b"Accept: a\nRange: bytes=0-1\r\n",
    "bare LFs": (PLAIN + END).replace(b"\r\n", b"\n"),
    "a bare CR": PLAIN + b"Accept: a\rRange: bytes=0-1\r\n",
    "CR twice": PLAIN + b"Accept: a\r\r\n",
    "a CR and LFs elsewhere": PLAIN + b"Accept: \r\r\n\n\r\n",
    "NUL": PLAIN + b"Accept: a\0b\r\n",
    "NUL in a name": PLAIN + b"Accept\0: a\r\n",
    "NUL in the target": b"GET " + TARGET + b"\0 HTTP/1.1\r\n" + HOST,
    "DEL": PLAIN + b"Accept: a\x7fb\r\n",
    "bytes that are not ASCII": PLAIN + b"User-Agent: caf\xc3\xa9 \xff\r\n",
    "a target that is not ASCII": b"GET /g/a/-/raw/m/\xc3\xa9 HTTP/1.1\r\n" + HOST,
    "a fragment": b"GET " + TARGET + b"#a HTTP/1.1\r\n" + HOST,
    "the absolute form": b"GET http://x" + TARGET + b" HTTP/1.1\r\n" + HOST,
    "the authority form": b"CONNECT x:443 HTTP/1.1\r\n" + HOST,
    "an asterisk": b"OPTIONS * HTTP/1.1\r\n" + HOST,
    "no target": b"GET  HTTP/1.1\r\n" + HOST,
    "a target without slash": b"GET group/app/-/raw/main/x HTTP/1.1\r\n" + HOST,
    "a space in the target": b"GET /g/a/-/raw/m/a b HTTP/1.1\r\n" + HOST,
    "two spaces": b"GET  " + TARGET + b" HTTP/1.1\r\n" + HOST,
    "a space at the end": b"GET " + TARGET + b" HTTP/1.1 \r\n" + HOST,
    "a space at the beginning": b" " + PLAIN,
    "an empty line before": b"\r\n" + PLAIN,
    "HTTP/1.0": b"GET " + TARGET + b" HTTP/1.0\r\n" + HOST,
    "HTTP/2.0": b"GET " + TARGET + b" HTTP/2.0\r\n" + HOST,
    "HTTP/0.9": b"GET " + TARGET + b"\r\n",
    "no version": b"GET " + TARGET + b" HTTP\r\n" + HOST,
    "small letters": b"get " + TARGET + b" HTTP/1.1\r\n" + HOST,
    "another method": b"POST " + TARGET + b" HTTP/1.1\r\n" + HOST,
    "a preflight": b"OPTIONS " + TARGET + b" HTTP/1.1\r\n" + HOST + b"Origin: http://a\r\n",
    "two requests": PLAIN + END + PLAIN,
    "two requests, the second cut off": PLAIN + END + GET,
    "two requests, the second's body": PLAIN + END + b"x",
    "one more line": PLAIN + END + END,
    "a very long target": b"GET /g/a/-/raw/m/" + b"x" * MOST_BYTES + b" HTTP/1.1\r\n" + HOST,
    "a very long field": PLAIN + b"Accept: " + b"x" * MOST_BYTES + b"\r\n",
    "much in all": PLAIN + b"Accept: " + b"x" * 5000 + b"\r\nReferer: " + b"y" * 5000 + b"\r\n",
    "nothing": b"",
}  # fmt: skip


@pytest.mark.parametrize("data", ODD.values(), ids=ODD.keys())
def test_what_is_odd_is_left_to_aiohttp(data: bytes) -> None:
    assert by_bytes(data + END) is None


@pytest.mark.parametrize("missing", range(1, len(PLAIN + END)))
def test_what_has_not_all_come_is_left_to_aiohttp(missing: int) -> None:
    assert by_bytes((PLAIN + END)[:-missing]) is None


@pytest.mark.parametrize(
    "target",
    [
        "/group/app/-/raw/main/README.md?token=flso-alice",
        "/group/app/-/raw/main/README.md?inline=false&%74ok%65n=flso-alice",
        "/group%2Fapp/-/raw/main/README.md",
        "/group/app/-/raw/main/%2e%2e/x",
        "/group/app/-/raw/main/../x",
        "/group/app/-/raw//main",
        "//group/app/-/raw/main/x",
        "/group/app/-/raw/main/x%00",
        "/group/app/-/raw/main/%",
        "/-/status",
        "/-/metrics",
        "/%2d/status",
        "/",
    ],
)
async def test_targets_with_a_token_or_more_than_one_meaning_are_asked_for_otherwise(target: str) -> None:
    head = by_bytes(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert head is not None
    assert asked(head) is None


def test_where_all_fields_count_nothing_is_plain() -> None:
    all_count = Rules(Settings(forward_all_headers=True))
    assert all_count.read_plainly("GET", TARGET.decode(), None) is None


def test_limits_are_the_operators() -> None:
    data = PLAIN + b"Accept: */*\r\n" + END
    assert memory_hits.read_plain_head(data, len(data), 2) is not None
    assert memory_hits.read_plain_head(data, len(data) - 1, 2) is None
    assert memory_hits.read_plain_head(data, len(data), 1) is None


NAMES = st.sampled_from(
    [*sorted(HARMLESS), b"Host", b"Range", b"Content-Length", b"Transfer-Encoding", b"Upgrade", b"X-Any", b""]
)
PIECES = st.sampled_from(
    [b"", b" ", b"\t", b"\r", b"\n", b"\r\n", b"\0", b"\x7f", b"\x80", b"\xc3\xa9", b":", b",", b"x", b"gzip", b"*",
     b"close", b"keep-alive", b"chunked", b"5", b'"', b"gzip;q=0", b"HTTP/1.1", b"GET "]
)  # fmt: skip
VALUES = st.one_of(st.lists(PIECES, max_size=3).map(b"".join), st.binary(max_size=6))
LINES = st.builds(
    lambda name, colon, value, end: name + colon + value + end,
    st.one_of(NAMES, NAMES.map(bytes.upper), st.binary(max_size=3)),
    st.sampled_from([b": ", b": ", b":", b" : ", b""]),
    VALUES,
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r", b""]),
)
TARGETS = st.one_of(
    st.just(TARGET),
    st.binary(max_size=5).map(lambda end: TARGET + end),
    st.text("/-raw%2fF.?=&#;\\|^{ \x7fé", max_size=12).map(lambda text: b"/" + text.encode()),
)
HEADS = st.builds(
    lambda method, target, version, lines, end: b" ".join([method, target, version]) + b"".join(lines) + end,
    st.sampled_from([b"GET", b"GET", b"GET", b"HEAD", b"POST", b"get", b""]),
    TARGETS,
    st.sampled_from([b"HTTP/1.1\r\n"] * 4 + [b"HTTP/1.0\r\n", b"HTTP/1.1\n", b"HTTP/1.1 \r\n"]),
    st.lists(st.one_of(st.just(HOST), LINES), max_size=6),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b"", b"\r\n\r\n", b"\n", b"\r\n" + PLAIN + END]),
)


@given(HEADS)
@settings(max_examples=4 * settings().max_examples)
async def test_whatever_is_plain_aiohttp_reads_alike(data: bytes) -> None:
    head = by_bytes(data)
    if head is not None:
        await assert_read_alike(data, head)


@given(
    st.sampled_from([b"GET", b"HEAD"]),
    st.text([chr(code) for code in range(0x21, 0x7F)], max_size=20),
    st.dictionaries(
        st.sampled_from(sorted(HARMLESS - {b"connection"})),
        st.text([chr(code) for code in range(0x20, 0x7F)], max_size=20),
    ),
)
@settings(max_examples=3 * settings().max_examples)
async def test_all_that_can_be_plain_aiohttp_reads_alike(
    method: bytes, rest: str, fields: dict[bytes, str]
) -> None:
    lines = [b"%s:%s\r\n" % (name, value.encode()) for name, value in {b"host": "x", **fields}.items()]
    data = b"%s %s HTTP/1.1\r\n%s\r\n" % (method, TARGET + rest.encode(), b"".join(lines))
    head = by_bytes(data)
    host = fields.get(b"host", "x").strip(" ").encode()
    assert (head is None) == ("#" in rest or not is_host(host))
    if head is not None:
        await assert_read_alike(data, head)


def test_directives_and_forwarded_fields_of_a_plain_request_are_none() -> None:
    request = PLAIN_RULES.read_plainly("GET", TARGET.decode(), "gzip")
    fields = CIMultiDictProxy(CIMultiDict({"Host": "x", "Accept-Encoding": "gzip", "Origin": "http://a"}))
    assert request == PLAIN_RULES.read("GET", TARGET.decode(), fields)


HOSTILE_GET = f"GET {RAW}".encode()
START = HOSTILE_GET + b" HTTP/1.1\r\nHost: x\r\n"
FIELD_NAMES = st.sampled_from(
    ["Range", "If-None-Match", "If-Modified-Since", "If-Range", "Cache-Control", "Host", "Origin",
     "Cookie", "Via", "Connection", "Authorization", "Transfer-Encoding", "Content-Length", "Expect",
     "Upgrade", "X-Any"]
)  # fmt: skip
FIELD_VALUES = st.one_of(
    st.text(string.printable, max_size=60),
    st.sampled_from(
        ["bytes=0-", "bytes=-0", "bytes=" + "0-1," * 400, "bytes=99999999999999999999-", '"', "*", "W/",
         "\x00", "é", "max-age=99999999999999999999", "max-age=\u0661", "Thu, 99 Foo 9999 99:99:99 GMT",
         "chunked"]
    ),
)  # fmt: skip
HOSTILE_TARGETS = st.one_of(
    st.just(RAW),
    st.text(max_size=60),
    st.text(max_size=40).map(lambda text: f"/g/a/-/raw/{text}"),
    st.sampled_from(
        ["*", "//", "/%", "/\x00/raw/x", "http://x/g/a/-/raw/m/x", "/g/a/-/raw/m/%F0%9F", "/-/purge"]
    ),
)


@given(
    st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "BREW", "get", "\x00"]),
    HOSTILE_TARGETS,
    st.lists(st.tuples(FIELD_NAMES, FIELD_VALUES), max_size=6),
)
@settings(
    max_examples=settings().max_examples * 3 // 2,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
async def test_no_request_is_answered_with_500(
    edge: Edge, origin: Origin, method: str, target: str, fields: list[tuple[str, str]]
) -> None:
    origin.answers(b"content")
    lines = [f"{method} {target} HTTP/1.1", "Host: x", *(f"{name}: {value}" for name, value in fields)]
    request = "\r\n".join([*lines, "Connection: close", "", ""]).encode("utf-8", "surrogatepass")
    answer = await edge.raw(request)
    status = answer.split(b" ", 2)[1:2]
    assert status != [b"500"]
    assert STORAGE_TOKEN.encode() not in answer
    assert (await edge.get(RAW)).status == 200


@pytest.mark.parametrize(
    "request_",
    [
        START
        + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
        + b"GET /admin HTTP/1.1\r\nHost: x\r\n\r\n",
        START + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nabcde",
        START + b"Transfer-Encoding: xchunked\r\nConnection: close\r\n\r\n",
        HOSTILE_GET + b" HTTP/1.1\r\nHost : x\r\nConnection: close\r\n\r\n",
        START + b" folded: y\r\nConnection: close\r\n\r\n",
        HOSTILE_GET + b" HTTP/9.9\r\nHost: x\r\nConnection: close\r\n\r\n",
        b"GET /g/a/-/raw/m/" + b"x" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
        START + b"X: " + b"y" * 100_000 + b"\r\n\r\n",
        START + b"" + b"X: y\r\n" * 10_000 + b"\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\r\n" * 1000,
    ],
    ids=["te-and-cl", "two-lengths", "odd-te", "space-before-colon", "folding", "odd-version", "long-url",
         "long-field", "many-fields", "tls", "newlines"],
)  # fmt: skip
async def test_smuggling_shapes_and_bombs_are_refused_or_read_as_one_request(
    edge: Edge, origin: Origin, request_: bytes
) -> None:
    origin.answers()
    answer = await edge.raw(request_)
    assert b" 500 " not in answer.split(b"\r\n", 1)[0]
    assert all(request.raw_path == RAW for request in origin.requests)
    assert (await edge.get(RAW)).status == 200


@pytest.mark.parametrize(
    "name", ["X-Forwarded-Host", "X-Original-URL", "X-Forwarded-Scheme", "X-Host", "Accept", "Origin"]
)
async def test_what_is_not_in_the_key_cannot_poison_what_is_stored(
    edge: Edge, origin: Origin, name: str
) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(
            text=request.headers.get(name, "clean"),
            headers={"Cache-Control": "max-age=60", "Date": origin.date()},
        )

    origin.handler = handler
    assert (await edge.get(RAW, **{name: "evil.example.org"})).body == b"clean"
    assert (await edge.get(RAW)).body == b"clean"


async def test_an_aborted_client_leaves_the_edge_working(edge: Edge, origin: Origin) -> None:
    origin.answers(b"x" * 5_000_000)
    for _ in range(5):
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(f"GET {RAW} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        await reader.read(1000)
        assert writer.transport is not None
        writer.transport.abort()
    assert len((await edge.get(RAW)).body) == 5_000_000
    assert len(origin.requests) == 1


async def test_an_origin_that_sends_nonsense_is_502(edge: Edge, origin: Origin) -> None:
    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 abc\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    edge.app[RULES].origin = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    assert (await edge.get(RAW)).status == 502
    server.close()


async def test_field_values_that_are_not_utf_8_are_passed_on(edge: Edge, origin: Origin) -> None:
    origin.answers(X_Odd="caf\udce9")
    for _ in range(2):
        assert (await edge.get(RAW)).status == 200


@pytest.mark.parametrize("accepted", [{}, {"Accept_Encoding": "br"}, {"Accept_Encoding": "gzip, br, *"}])
async def test_a_content_coding_is_never_undone_and_never_asked_for_by_a_client(
    edge: Edge, origin: Origin, accepted: dict[str, str]
) -> None:
    bomb = gzip.compress(bytes(50_000_000))
    origin.answers(bomb, Content_Encoding="gzip")
    for _ in range(2):
        answer = await edge.get("/g/app/-/raw/main/bomb", **accepted)
        assert (answer.body, answer.headers["Content-Encoding"]) == (bomb, "gzip")
        assert answer.headers["Content-Length"] == str(len(bomb))
        await edge.settled()
    (request,) = origin.requests
    assert "Accept-Encoding" not in request.headers


async def test_a_name_with_a_line_break_is_a_name(edge: Edge, origin: Origin) -> None:
    origin.answers(b"odd")
    answer = await edge.get("/group/app/-/raw/main/a%0D%0ASet-Cookie:%20b")
    assert (answer.status, answer.body) == (200, b"odd")
    assert "Set-Cookie" not in answer.headers
    (request,) = origin.requests
    assert request.raw_path == "/group/app/-/raw/main/a%0D%0ASet-Cookie:%20b"
    assert (await edge.get("/-/a%0Ab")).status == 404
    assert (await edge.get("/a%0Ab")).status == 400


async def test_what_clients_do_wrong_is_not_logged_with_what_they_sent(
    edge: Edge, origin: Origin, caplog: pytest.LogCaptureFixture
) -> None:
    """A malformed head can contain a cookie, and a client that leaves is not an error of ours."""
    origin.answers(b"x" * 5_000_000)
    await edge.raw(START + b"Cookie: session=hunter2\x00\r\n\r\n")
    await edge.raw(HOSTILE_GET + b"?token=hunter2 \xff HTTP/1.1\r\nHost: x\r\n\r\n")
    for _ in range(2):
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(START + b"\r\n")
        await reader.read(1000)
        assert writer.transport is not None
        writer.transport.abort()
        await edge.settled()
    await until(lambda: len(edge.app[CONNECTIONS]) == 0)
    assert "hunter2" not in caplog.text
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []
