"""Hostile input: no request makes the edge answer 500, repeat a field, or stop."""

import asyncio
import gzip
import string

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from storage_edge.client.handlers import CONNECTIONS, RULES
from tests.storage_edge.conftest import STORAGE_TOKEN, Edge, Origin
from tests.support.waiting import until

RAW = "/group/app/-/raw/main/README.md"
GET = f"GET {RAW}".encode()
START = GET + b" HTTP/1.1\r\nHost: x\r\n"
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
TARGETS = st.one_of(
    st.just(RAW),
    st.text(max_size=60),
    st.text(max_size=40).map(lambda text: f"/g/a/-/raw/{text}"),
    st.sampled_from(
        ["*", "//", "/%", "/\x00/raw/x", "http://x/g/a/-/raw/m/x", "/g/a/-/raw/m/%F0%9F", "/-/purge"]
    ),
)


@given(
    st.sampled_from(["GET", "HEAD", "OPTIONS", "POST", "BREW", "get", "\x00"]),
    TARGETS,
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
        GET + b" HTTP/1.1\r\nHost : x\r\nConnection: close\r\n\r\n",
        START + b" folded: y\r\nConnection: close\r\n\r\n",
        GET + b" HTTP/9.9\r\nHost: x\r\nConnection: close\r\n\r\n",
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
    """A malformed head can hold a cookie, and a client that goes away is no error of ours."""
    origin.answers(b"x" * 5_000_000)
    await edge.raw(START + b"Cookie: session=hunter2\x00\r\n\r\n")
    await edge.raw(GET + b"?token=hunter2 \xff HTTP/1.1\r\nHost: x\r\n\r\n")
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
