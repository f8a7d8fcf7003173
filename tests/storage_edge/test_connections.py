"""Clients and their connections: limits, slow clients, clients behind proxies, and rate limits."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from common.concurrency import Rates
from common.lifecycle import BACKGROUND
from storage_edge.client import connections
from storage_edge.client.callers import NO_PROXY_FIELDS, Proxies, ProxyFields
from storage_edge.client.handlers import CONNECTIONS
from tests.storage_edge.conftest import RAW, Answer, Edge, Origin, StartEdge
from tests.storage_edge.origins import head, talk
from tests.support.logs import lines_of_edges
from tests.support.waiting import until


async def test_a_body_is_never_taken_for_a_request(edge: Edge, origin: Origin) -> None:
    """A head that announces a body is byte for byte the same, whatever the body contains."""
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
    """A plain request that arrives while another is being answered waits for its turn."""
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
    """It may close its side after its requests; the edge closes the connection when it has answered them."""

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
    assert len(body) > connections.SENDFILE_BYTES
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


NAMES = [f"/group/app/-/raw/main/{number}" for number in range(6)]
GREEDY = {"X_Forwarded_For": "198.51.100.1"}


@pytest.fixture
async def bounded_edge(start_edge: StartEdge) -> Edge:
    """An edge with four parallel requests to the origin, two for each client, which a proxy names."""
    return await start_edge(
        origin_connections=4,
        origin_connections_per_address=2,
        origin_queue_timeout=0.3,
        trusted_proxies=["127.0.0.1"],
    )


async def _come(origin: Origin, count: int) -> None:
    """Wait until this many requests have reached the origin."""
    await until(lambda: len(origin.requests) >= count)


def _ask(edge: Edge, *targets: str, **headers: str) -> list[asyncio.Task[Answer]]:
    return [asyncio.create_task(edge.get(target, **headers)) for target in targets]


@pytest.mark.parametrize(
    ("targets", "asked", "first"),
    [
        (NAMES[:5], {}, None),
        ([NAMES[0]] * 5, {"Cache_Control": "no-store"}, None),
        ([f"{NAMES[0]}?token={letter}" for letter in "abcde"], {}, f"{NAMES[0]}?token=x"),
    ],
    ids=["cold", "not to be stored", "private"],
)
async def test_one_client_has_a_share_of_the_origin(
    bounded_edge: Edge, origin: Origin, targets: list[str], asked: dict[str, str], first: str | None
) -> None:
    origin.answers(cache_control="private, max-age=60")
    if first is not None:
        await bounded_edge.get(first)
    gate = _slow_bodies(origin)
    greedy = _ask(bounded_edge, *targets, **GREEDY, **asked)
    before = 0 if first is None else 1
    await _come(origin, before + 2)
    refusals = [await each for each in await _first_done(greedy, 3)]
    refused = refusals[0]
    assert (refused.status, refused.headers["Retry-After"]) == (503, "5")
    assert refused.headers["Cache-Control"] == "no-store"
    assert refused.body == b"Too many requests are being passed on; try again later.\n"
    other = _ask(bounded_edge, NAMES[5], X_Forwarded_For="203.0.113.7")
    await _come(origin, before + 3)
    gate.set()
    assert (await other[0]).status == 200
    assert sorted([(await each).status for each in greedy]) == [200, 200, 503, 503, 503]
    assert len(origin.requests) == before + 3


async def _first_done(tasks: list[asyncio.Task[Answer]], count: int) -> list[asyncio.Task[Answer]]:
    """Wait until this many tasks are done; return those that are."""
    while len(done := [task for task in tasks if task.done()]) < count:
        await asyncio.wait([task for task in tasks if not task.done()], return_when=asyncio.FIRST_COMPLETED)
    return done


def _slow_bodies(origin: Origin) -> asyncio.Event:
    """Let the origin send bodies that end only when the returned event is set."""
    gate = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        fields = {"Cache-Control": "private, max-age=60", "Content-Length": "7", "Date": origin.date()}
        response = web.StreamResponse(headers=fields)
        await response.prepare(request)
        await response.write(b"con")
        await gate.wait()
        await response.write(b"tent")
        return response

    origin.handler = handler
    return gate


async def test_all_clients_together_have_what_the_operator_allows(bounded_edge: Edge, origin: Origin) -> None:
    origin.answers()
    _, gate = origin.held_back()
    addresses = ("192.0.2.1", "192.0.2.1", "192.0.2.2", "192.0.2.3", "192.0.2.4", "192.0.2.4")
    asked = [
        _ask(bounded_edge, target, X_Forwarded_For=address)[0]
        for target, address in zip(NAMES, addresses, strict=True)
    ]
    await _come(origin, 4)
    await _first_done(asked, 2)
    gate.set()
    assert sorted([(await each).status for each in asked]) == [200, 200, 200, 200, 503, 503]


async def test_who_waits_for_a_place_gets_it(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(origin_connections_per_address=1, origin_queue_timeout=20.0)
    origin.answers()
    begun, gate = origin.held_back()
    asked = _ask(edge, *NAMES)
    await begun.wait()
    gate.set()
    assert [(await each).status for each in asked] == [200] * len(NAMES)


async def test_who_joins_a_request_that_found_no_place_asks_for_herself(
    bounded_edge: Edge, origin: Origin
) -> None:
    origin.answers()
    _, gate = origin.held_back()
    greedy = _ask(bounded_edge, *NAMES[:3], **GREEDY)
    await _come(origin, 2)
    taken = {request.path for request in origin.requests}
    (waiting,) = set(NAMES[:3]) - taken
    other = _ask(bounded_edge, waiting, X_Forwarded_For="203.0.113.7")
    await _come(origin, 3)
    gate.set()
    assert (await other[0]).status == 200
    assert sorted([(await each).status for each in greedy]) == [200, 200, 503]


def _breaking(origin: Origin) -> Callable[[], None]:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"too little")
        assert request.transport is not None
        request.transport.abort()
        return response

    return lambda: setattr(origin, "handler", handler)


async def test_places_are_given_back_however_a_request_ends(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(origin_connections=1, origin_connections_per_address=1, origin_queue_timeout=0.0)
    breaking = _breaking(origin)
    ways: list[tuple[Callable[[], None], str, str, dict[str, str]]] = [
        (origin.answers, "GET", "/a", {}),
        (origin.answers, "HEAD", "/b", {}),
        (lambda: origin.answers(status=404), "GET", "/c", {}),
        (lambda: origin.answers(status=500), "GET", "/d", {}),
        (lambda: origin.answers(cache_control="private"), "GET", "/e?token=a", {}),
        (lambda: origin.answers(cache_control="private"), "GET", "/e?token=a", {}),
        (lambda: origin.answers(cache_control="private", etag='"v2"'), "GET", "/e?token=a", {}),
        (lambda: origin.answers(status=404), "GET", "/e?token=b", {}),
        (lambda: origin.answers(cache_control="no-store"), "GET", "/f", {}),
        (lambda: origin.answers(cache_control="no-store"), "GET", "/f", {"If_None_Match": '"v1"'}),
        (origin.answers, "GET", "/g", {"Range": "bytes=0-1"}),
        (breaking, "GET", "/h", {}),
        (breaking, "GET", "/i", {"Cache_Control": "no-store"}),
    ]
    for prepare, method, path, fields in ways:
        prepare()
        try:
            answer = await edge.get(f"/group/app/-/raw/main{path}", method, **fields)
        except Exception:  # breaking an answer that has begun cuts the connection
            answer = None
        await edge.settled()
        assert answer is None or answer.status != 503, (method, path, fields)
    origin.answers(b"x" * 20_000_000, cache_control="no-store")
    async with talk(edge.port, takes_little=True) as client:
        client.writer.write(head("/group/app/-/raw/main/j"))
        await client.reader.readuntil(b"\r\n\r\n")
        assert (await edge.get("/group/app/-/raw/main/k")).status == 503
        client.writer.transport.abort()
    async with asyncio.timeout(20):
        while (await edge.get("/group/app/-/raw/main/k")).status == 503:
            await asyncio.sleep(0.01)


@pytest.fixture
async def port(start_edge: StartEdge) -> int:
    """The port of an edge that allows 0.4 s for a request's head and 0.4 s between requests."""
    return (await start_edge(header_timeout=0.4, keepalive_timeout=0.4)).port


@pytest.fixture
async def unwatched(start_edge: StartEdge) -> Edge:
    """An edge that checks its connections only when the test says so, and with the test's time. It allows 70 s between
    requests and 70 s for a piece of a body."""
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
    """Check a connection whose client reads nothing, each time after more than the allowed time, until it is closed."""
    connections, now = edge.app[CONNECTIONS], asyncio.get_running_loop().time()
    async with asyncio.timeout(20):
        while len(connections):
            await connections.end_overdue(now)
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
        await unwatched.app[CONNECTIONS].end_overdue(begun + 20 * number)
    writer.close()


async def _answered_before(port: int) -> bytes:
    """Return a request head whose answer is in memory and whose head is cached."""
    known = head()
    async with talk(port) as client:
        for _ in range(3):
            await client.ask(known)
            await asyncio.sleep(0.05)
    return known


@contextlib.asynccontextmanager
async def _slow_reader(port: int, *, known: bool) -> AsyncIterator[asyncio.StreamReader]:
    """Yield a client with small buffers that has requested something in memory, and has read the answer's head."""
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
            await unwatched.app[CONNECTIONS].end_overdue(begun + 20 * number)


async def _look_when_all_is_taken(edge: Edge, now: float) -> None:
    connections = edge.app[CONNECTIONS]
    await until(lambda: not any(connection.untaken() for connection in connections._open.values()))
    await connections.end_overdue(now)


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


BEHIND = {"trusted_proxies": ["127.0.0.1", "10.0.0.0/8"]}
VISITOR = "198.51.100.7"
ID = "0123456789abcdef"


@pytest.mark.parametrize(
    ("forwarded_for", "told"),
    [
        (VISITOR, f"{VISITOR}, 127.0.0.1"),
        (f"203.0.113.66, {VISITOR}, 10.0.0.2", f"{VISITOR}, 10.0.0.2, 127.0.0.1"),  # the first only claims
        ("nonsense", "127.0.0.1"),
        ("2001:db8::1", "2001:db8::1, 127.0.0.1"),
    ],
)
async def test_the_origin_is_told_the_way_as_far_as_it_is_believed(
    start_edge: StartEdge, origin: Origin, forwarded_for: str, told: str
) -> None:
    edge = await start_edge(**BEHIND)
    origin.answers()
    answer = await edge.get(RAW, X_Forwarded_For=forwarded_for, X_Request_Id=ID)
    (request,) = origin.requests
    assert request.headers["X-Forwarded-For"] == told
    assert request.headers["X-Request-Id"] == answer.headers["X-Request-Id"] == ID


async def test_nobody_else_is_believed(edge: Edge, origin: Origin) -> None:
    origin.answers()
    answer = await edge.get(RAW, X_Forwarded_For=VISITOR, X_Request_Id=ID)
    (request,) = origin.requests
    assert request.headers["X-Forwarded-For"] == "127.0.0.1"
    assert request.headers["X-Request-Id"] == answer.headers["X-Request-Id"] != ID


@pytest.mark.parametrize("sent", ["short", "x" * 65, "with space in it", "new\u00e9line-id"])
async def test_an_id_that_is_none_is_made_anew(start_edge: StartEdge, origin: Origin, sent: str) -> None:
    edge = await start_edge(**BEHIND)
    origin.answers(X_Request_Id="of-the-origin")
    for _ in range(2):
        answer = await edge.get(RAW, X_Request_Id=sent)
        (made,) = answer.headers.getall("X-Request-Id")
        assert re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]+", made)
        await edge.settled()


async def test_every_answer_is_found_in_the_log(start_edge: StartEdge, origin: Origin) -> None:
    """This includes those that are answered without reading them again."""
    edge = await start_edge(access_log=True, **BEHIND)
    origin.answers(b"hello", cache_control="public, max-age=60")
    fields = (f"X-Forwarded-For: {VISITOR}", "User-Agent: pip/24", "X-Request-Id: " + ID)
    with lines_of_edges() as logs:
        async with talk(edge.port) as client:
            for _ in range(4):
                assert b"X-Request-Id: " + ID.encode() in await client.ask(head(RAW, *fields))
                await edge.settled()
            assert b"400" in await client.ask(head("/nothing", *fields))
    lines: list[Any] = [line for line in logs if line["event"] == "request"]
    said = [(line["client"], line["request_id"], line["agent"], line["status"]) for line in lines]
    assert said == [(VISITOR, ID, "pip/24", 200)] * 4 + [(VISITOR, ID, "pip/24", 400)]
    assert all({"method", "target", "cache", "bytes", "seconds"} <= set(line) for line in lines)


def test_what_a_peer_says_is_looked_at_once_per_head() -> None:
    proxies = Proxies(["127.0.0.1"], bytes)
    assert ProxyFields.by({}) is NO_PROXY_FIELDS
    first, second = (
        proxies.caller("192.0.2.1", NO_PROXY_FIELDS),
        proxies.caller("2001:db8::1", NO_PROXY_FIELDS),
    )
    assert (first.address, second.client) == ("192.0.2.1", "2001:db8::/64")
    assert first.request_id != second.request_id


async def test_who_asks_too_often_gets_429_and_others_do_not(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(client_rate=0.5, client_burst=3, **BEHIND)
    origin.answers(b"hello")
    statuses = [(await edge.get(RAW, X_Forwarded_For=VISITOR)).status for _ in range(3)]
    refused = await edge.get(RAW, X_Forwarded_For=VISITOR)
    assert (statuses, refused.status) == ([200] * 3, 429)
    assert refused.headers["Retry-After"] in {"1", "2"}
    assert (await edge.get(RAW, X_Forwarded_For="198.51.100.8")).status == 200
    assert (await edge.get("/-/liveness", X_Forwarded_For=VISITOR)).status == 200
    assert b'edge_limited_total{limit="requests"} 1.0' in (await edge.get("/-/metrics")).body


async def test_hits_that_come_again_count_as_well(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(client_rate=0.01, client_burst=6)
    origin.answers(b"hello")
    async with talk(edge.port) as client:
        for _ in range(6):
            assert b"200 OK" in await client.ask(head())
            await edge.settled()
        assert b" 429 " in await client.ask(head())


async def test_who_asks_the_origin_too_often_gets_429_but_what_is_stored(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge(client_origin_rate=0.01, client_origin_burst=2, **BEHIND)
    origin.answers(b"hello")
    for number in range(2):
        assert (await edge.get(f"{RAW}{number}", X_Forwarded_For=VISITOR)).status == 200
        await edge.settled()
    refused = await edge.get(f"{RAW}2", X_Forwarded_For=VISITOR)
    assert (refused.status, int(refused.headers["Retry-After"]) > 50) == (429, True)
    assert (await edge.get(f"{RAW}1", X_Forwarded_For=VISITOR)).status == 200
    assert (await edge.get(f"{RAW}2", X_Forwarded_For="198.51.100.8")).status == 200


def test_a_bucket_refills_and_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    rates = Rates()
    assert [rates.wait("a", 0.0) for _ in range(5)] == [0] * 5
    rates.limit(2.0, 3)
    assert [rates.wait("a", 100.0) for _ in range(5)] == [0, 0, 0, 1, 1]
    assert [rates.wait("a", 100.5), rates.wait("a", 100.5)] == [0, 1]
    assert [rates.wait("a", 200.0) for _ in range(4)] == [0, 0, 0, 1]
    rates.limit(0.1, 1)
    assert (rates.wait("b", 0.0), rates.wait("b", 0.0), rates.wait("b", 9.9)) == (0, 10, 1)
    for number in range(70_000):
        rates.wait(str(number), 300.0)
    assert len(rates._full_at) == 65_536
