"""Ending and reloading do not affect requests under way."""

import asyncio
import contextlib
import json
import os
import signal
import ssl
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from common.config_errors import ConfigError
from storage_edge.cache import fetching
from storage_edge.client import connections
from storage_edge.client.handlers import METRICS, STORE
from storage_edge.client.operators import ORIGIN
from storage_edge.settings import Settings
from storage_edge.storage.purges import Purge
from storage_edge.tls import Certificate
from tests.storage_edge.conftest import PURGE_TOKEN, RAW, Clock, Edge, Origin, Serve, StartEdge
from tests.storage_edge.origins import Talk, head, talk
from tests.storage_edge.processes import EdgeProcess, edge_process
from tests.support.certificates import key_and_certificate
from tests.support.logs import lines_of_edges
from tests.support.waiting import until


class SilentOrigin:
    """An origin that does not answer until `gate` is set; it counts the requests that the edge gives up."""

    def __init__(self, origin: Origin) -> None:
        self.gate = asyncio.Event()
        self.begun = self.given_up = 0
        self._decide = origin.handler
        origin.handler = self._handle

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        assert self._decide is not None
        self.begun += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.given_up += 1
            raise
        return await self._decide(request)


@pytest.fixture
async def edge(start_edge: StartEdge) -> Edge:
    """An edge that waits for the origin for longer than the tests do."""
    return await start_edge(origin_timeout=60.0)


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Treat a client that has closed its side as gone after a moment."""
    monkeypatch.setattr(connections, "UNANSWERED_SECONDS", 0.05)


@pytest.fixture
async def clients(edge: Edge) -> AsyncIterator[list[Talk]]:
    """Three connections to the edge."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(talk(edge.port)) for _ in range(3)]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("stored", "query", "fields"),
    [
        (None, "", []),
        (None, "", ["Range: bytes=0-1"]),
        (None, "", ["Cache-Control: no-store"]),
        ("public, max-age=1", "", []),
        ("public, max-age=1", "", ['If-None-Match: "v1"']),
        ("private, max-age=60", "?token=alice", []),
    ],
    ids=["cold", "a range", "not to be stored", "stale", "conditional", "private"],
)
async def test_a_question_that_nobody_waits_for_ends_before_its_answer(
    edge: Edge,
    origin: Origin,
    clock: Clock,
    clients: list[Talk],
    method: str,
    stored: str | None,
    query: str,
    fields: list[str],
) -> None:
    origin.answers(cache_control=stored or "public, max-age=60")
    if stored is not None:
        await edge.get(RAW + query)
        clock.advance(10)
    silent = SilentOrigin(origin)
    clients[0].writer.write(head(RAW + query, *fields, method=method))
    await until(lambda: silent.begun == 1)
    clients[0].writer.transport.abort()
    await until(lambda: silent.given_up == 1)
    assert edge.app[ORIGIN].at_work == 0
    silent.gate.set()
    assert (await edge.get(RAW + query, method)).status == 200


@pytest.mark.parametrize("begun", [False, True])
async def test_who_leaves_is_found_in_the_log(start_edge: StartEdge, origin: Origin, begun: bool) -> None:
    """Clients leave before the answer or in the middle of it."""
    edge = await start_edge(access_log=True)
    origin.answers(b"x" * 20_000_000)
    silent = SilentOrigin(origin)
    with lines_of_edges() as logs:
        async with talk(edge.port, takes_little=True) as client:
            client.writer.write(head(RAW, "User-Agent: pip/24"))
            await until(lambda: silent.begun == 1)
            if begun:
                silent.gate.set()
                await client.reader.readuntil(b"\r\n\r\n")
            client.writer.transport.abort()
            await until(lambda: edge.app[METRICS].responses[499] == 1)
        await asyncio.sleep(0.05)
    (line,) = [line for line in logs if line["event"] == "request"]
    assert (line["method"], line["target"], line["status"], line["agent"]) == ("GET", RAW, 499, "pip/24")
    assert (line["bytes"] > 0) is begun


async def test_a_fetch_ends_with_the_last_of_those_who_wait_for_it(
    edge: Edge, origin: Origin, clients: list[Talk]
) -> None:
    origin.answers()
    silent = SilentOrigin(origin)
    for client in clients:
        client.writer.write(head())
    await until(lambda: silent.begun == 1)
    for client in clients[:2]:
        client.writer.transport.abort()
    await asyncio.sleep(0.05)
    assert silent.given_up == 0
    clients[2].writer.transport.abort()
    await until(lambda: silent.given_up == 1)
    assert silent.begun == 1


async def test_who_leaves_waits_for_no_place(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(
        origin_timeout=60.0, origin_connections=1, origin_connections_per_address=1, origin_queue_timeout=60.0
    )
    origin.answers()
    silent = SilentOrigin(origin)
    async with talk(edge.port) as first, talk(edge.port) as second:
        first.writer.write(head(RAW))
        await until(lambda: silent.begun == 1)
        second.writer.write(head(f"{RAW}2"))
        places = edge.app[ORIGIN]._places
        await until(lambda: places._waiting)
        second.writer.transport.abort()
        await until(lambda: not places._waiting)
        silent.gate.set()
        await first.answer()
        await edge.settled()
    assert silent.begun == 1


async def test_a_validation_in_the_background_goes_on_without_clients(
    edge: Edge, origin: Origin, clock: Clock, clients: list[Talk]
) -> None:
    origin.answers(b"old", cache_control="max-age=10, stale-while-revalidate=60")
    await edge.get(RAW)
    clock.advance(20)
    origin.answers(b"new", etag='"v2"')
    silent = SilentOrigin(origin)
    assert (await clients[0].ask(head())).endswith(b"old")
    await until(lambda: silent.begun == 1)
    clients[1].writer.write(head(RAW, "Cache-Control: no-cache"))  # joins it
    await asyncio.sleep(0.05)
    for client in clients[:2]:
        client.writer.transport.abort()
    await asyncio.sleep(0.05)
    assert (silent.begun, silent.given_up) == (1, 0)
    silent.gate.set()
    await edge.settled()
    assert (await edge.get(RAW)).body == b"new"


async def test_a_purge_is_carried_out_though_its_client_leaves(
    edge: Edge, origin: Origin, clients: list[Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    origin.answers()
    await edge.get(RAW)
    await edge.settled()
    store = edge.app[STORE]
    begun, gate = asyncio.Event(), asyncio.Event()
    purge = store.purge

    async def slowly(request: Purge) -> int:
        begun.set()
        await gate.wait()
        return await purge(request)

    monkeypatch.setattr(store, "purge", slowly)
    body = b'{"prefixes": ["/"]}'
    fields = (f"Authorization: Bearer {PURGE_TOKEN}", f"Content-Length: {len(body)}")
    clients[0].writer.write(head("/-/purge", *fields, method="POST") + body)
    await begun.wait()
    clients[0].writer.transport.abort()
    await asyncio.sleep(0.05)
    gate.set()
    await until(lambda: edge.app[METRICS].purges["done"] == 1)
    assert (await edge.get(RAW)).cache_status.startswith("forgelet-edge; fwd=uri-miss")


@pytest.mark.parametrize(("unread", "arrives"), [(0.1, False), (60.0, True)])
async def test_a_body_that_nobody_reads_any_more_ends_after_a_while(
    edge: Edge,
    origin: Origin,
    clients: list[Talk],
    monkeypatch: pytest.MonkeyPatch,
    unread: float,
    arrives: bool,
) -> None:
    """It goes on for a moment, because clients may ask for one part after another."""
    monkeypatch.setattr(fetching, "UNREAD_SECONDS", unread)
    given_up = asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "max-age=60", "Date": origin.date()})
        response.content_length = 600_000
        await response.prepare(request)
        try:
            for _ in range(20):
                await response.write(b"a" * 30_000)
                await asyncio.sleep(0.05)
        except (ConnectionError, asyncio.CancelledError):
            given_up.set()
            raise
        return response

    origin.handler = handler
    clients[0].writer.write(head())
    await clients[0].reader.readuntil(b"\r\n\r\n")
    clients[0].writer.transport.abort()
    await edge.settled()
    assert given_up.is_set() is not arrives
    origin.answers(b"another")
    assert (len((await edge.get(RAW)).body) == 600_000) is arrives


async def test_a_body_that_nobody_reads_any_more_ends_although_its_origin_is_silent(
    edge: Edge, origin: Origin, clients: list[Talk], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program that packs an archive may send nothing for minutes. A client that returns in time reads on."""
    monkeypatch.setattr(fetching, "UNREAD_SECONDS", 0.3)
    asked, given_up = 0, asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        response = web.StreamResponse(headers={"Cache-Control": "max-age=60", "Date": origin.date()})
        await response.prepare(request)
        await response.write(b"a" * 1000)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            given_up.set()
        return response

    origin.handler = handler
    for client in clients:
        client.writer.write(head())
        await client.reader.readuntil(b"\r\n\r\n")
        client.writer.transport.abort()
        await asyncio.sleep(0.1)
        assert not given_up.is_set()
    await asyncio.wait_for(given_up.wait(), 5)
    await edge.settled()
    assert (asked, edge.app[ORIGIN].at_work) == (1, 0)
    origin.answers(b"another")
    assert (await edge.get(RAW)).body == b"another"


@pytest.fixture
def freed(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the event loop waited, for each large file whose blocks were freed: with its name or its descriptor,
    whichever ends last."""
    freed = []

    def watched(end: Callable[..., None], links: int) -> Callable[..., None]:
        def ending(file: int | Path, **options: bool) -> None:
            with contextlib.suppress(OSError):
                status = os.stat(file)  # noqa: PTH116 - Path takes no descriptor
                if status.st_size >= LARGE and status.st_nlink == links:
                    freed.append(threading.current_thread() is threading.main_thread())
            end(file, **options)

        return ending

    monkeypatch.setattr(os, "close", watched(os.close, links=0))
    monkeypatch.setattr(Path, "unlink", watched(Path.unlink, links=1))
    return freed


LARGE = 20_000_000


async def test_the_event_loop_does_not_wait_until_a_large_file_is_freed(
    edge: Edge, origin: Origin, clients: list[Talk], tmp_path: Path, freed: list[bool]
) -> None:
    """It does so neither for the file of a body that did not arrive, nor for one that was evicted while it was
    sent."""

    async def broken_off(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Cache-Control": "max-age=60", "Date": origin.date()})
        response.content_length = LARGE + 1
        await response.prepare(request)
        await response.write(b"a" * LARGE)
        raise ConnectionResetError

    origin.handler = broken_off
    with pytest.raises(aiohttp.ClientPayloadError):
        await edge.get(RAW)
    await until(lambda: freed == [False])
    origin.answers(b"a" * LARGE)
    await edge.get(RAW)
    await edge.settled()
    clients[0].writer.write(head())
    await clients[0].reader.readuntil(b"\r\n\r\n")
    (stored,) = (path for path in tmp_path.glob("edge/*/objects/*/*") if path.stat().st_size == LARGE)
    await asyncio.to_thread(stored.unlink)
    clients[0].writer.transport.abort()
    await until(lambda: freed == [False, False, False])


LARGE_FILE = "/group/app/-/raw/main/large.bin"
READ = "the settings were read again"
REFUSED = "the settings cannot be read again, the old ones stay"


async def test_certificates_and_tokens_are_those_of_now(origin: Origin, tmp_path: Path) -> None:
    begun, gate = asyncio.Event(), asyncio.Event()

    async def slow(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"a" * 100_000)
        begun.set()
        await gate.wait()
        await response.write(b"b" * 100_000)
        return response

    origin.handler = slow
    cert, key = tmp_path / "edge.crt", tmp_path / "edge.key"
    first = _renew(cert, key)
    options = ("--tls-cert", str(cert), "--tls-key", str(key))
    async with edge_process(origin, tmp_path / "edge", *options) as edge, asyncio.timeout(60):
        reading = asyncio.create_task(_get(edge, first))
        await begun.wait()

        second = _renew(cert, key)
        (tmp_path / "edge-purge-token").write_text("another-token\n")
        edge.process.send_signal(signal.SIGHUP)
        said = await _said(edge, READ)
        assert (said["changed"], said["at_next_start"]) == (["purge_token"], [])
        assert await _purge(edge, second, "another-token") == 200
        assert await _purge(edge, second, PURGE_TOKEN) == 401

        cert.write_bytes(key_and_certificate()[1])  # the key of another certificate
        edge.process.send_signal(signal.SIGHUP)
        assert "problem" in await _said(edge, REFUSED)
        assert await _purge(edge, second, "another-token") == 200

        gate.set()
        assert await reading == b"a" * 100_000 + b"b" * 100_000
        await edge.stop()


def _renew(cert: Path, key: Path) -> ssl.SSLContext:
    """Install a new certificate with its key; return a client that trusts only this one."""
    private, public = key_and_certificate()
    cert.write_bytes(public)
    key.write_bytes(private)
    return ssl.create_default_context(cadata=public.decode())


async def _get(edge: EdgeProcess, trusting: ssl.SSLContext) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{edge.port}{LARGE_FILE}", ssl=trusting) as answer,
    ):
        return await answer.read()


async def _purge(edge: EdgeProcess, trusting: ssl.SSLContext, token: str) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    url = f"https://127.0.0.1:{edge.port}/-/purge"
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(url, json={"prefixes": ["/other/"]}, ssl=trusting) as answer,
    ):
        return answer.status


async def _said(edge: EdgeProcess, event: str) -> dict[str, Any]:
    """Return the next line of the log about an event."""
    assert edge.process.stderr is not None
    while True:
        line: dict[str, Any] = json.loads(await edge.process.stderr.readline())
        if line["event"] == event:
            return line


async def test_files_are_read_once(tmp_path: Path) -> None:
    """The files may change between the check of new settings and their use."""
    cert, key = tmp_path / "edge.crt", tmp_path / "edge.key"
    _renew(cert, key)
    settings = Settings(tls_cert=cert, tls_key=key)
    certificate = Certificate(settings)
    assert certificate.context is not None
    trusting = _renew(cert, key)
    change = certificate.renewed(settings)
    cert.write_bytes(key_and_certificate()[1])  # the key of another certificate
    await change()
    assert _is_shown(certificate.context, trusting)
    for other in (Settings(), Settings(tls_cert=tmp_path / "missing")):
        with pytest.raises(ConfigError):
            certificate.renewed(other)
    assert _is_shown(certificate.context, trusting)


def test_tls_does_not_begin_with_a_reload(tmp_path: Path) -> None:
    cert, key = tmp_path / "edge.crt", tmp_path / "edge.key"
    _renew(cert, key)
    with pytest.raises(ConfigError, match="with a new start alone"):
        Certificate(Settings()).renewed(Settings(tls_cert=cert, tls_key=key))


def _is_shown(context: ssl.SSLContext, trusting: ssl.SSLContext) -> bool:
    """Return whether a client that trusts only one certificate gets it in a handshake."""
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = trusting.wrap_bio(back, there, server_hostname="localhost")
    server = context.wrap_bio(there, back, server_side=True)
    for side in (client, server, client, server):
        with contextlib.suppress(ssl.SSLWantReadError):
            side.do_handshake()
    return client.getpeercert() is not None


async def test_nearly_everything_changes_under_load_and_no_request_is_lost(
    origin: Origin, serve: Serve, clock: Clock, tmp_path: Path
) -> None:
    other = Origin(clock)
    other.url = await serve(other.handle)
    origin.answers(b"a" * 5000, Content_Type="text/plain")
    other.answers(b"b" * 5000, Content_Type="text/plain")
    told = tmp_path / "settings.toml"

    def tell(**settings: object) -> None:
        told.write_text("[edge]\n" + "".join(f"{name} = {json.dumps(it)}\n" for name, it in settings.items()))

    tell(origin=origin.url)
    # The installed command, because the module has its flags in another place.
    run: Any = {"environment": {"FORGELET_SETTINGS": str(told)}, "command": ("forgelet", "edge")}
    async with (
        edge_process(None, tmp_path / "edge", "--no-access-log", **run) as edge,
        asyncio.timeout(60),
    ):
        bodies: dict[bytes, int] = {}
        stop = asyncio.Event()
        load = [asyncio.create_task(_ask_until(stop, edge.port, number, bodies)) for number in range(4)]
        await until(lambda: bodies.get(b"a", 0) > 20)

        tell(
            origin=other.url, memory_bytes=1_000_000, disk_bytes=2_000_000, compress_from=0, client_rate=1e6,
            trusted_proxies=["127.0.0.1"], origin_timeout=9.0, private_grace=1.0, log_level="WARNING", data_dir="x",
        )  # fmt: skip
        edge.process.send_signal(signal.SIGHUP)
        await until(lambda: bodies.get(b"b", 0) > 20)

        tell(origin=origin.url, origin_ca=str(tmp_path / "missing"), origin_timeout="soon")
        edge.process.send_signal(signal.SIGHUP)
        said = await _said(edge, REFUSED)
        assert "origin_timeout" in said["problem"]

        stop.set()
        assert await asyncio.gather(*load) == [1] * 4  # connections of each client
        await edge.stop()
    assert set(bodies) == {b"a", b"b"}


async def _ask_until(stop: asyncio.Event, port: int, number: int, bodies: dict[bytes, int]) -> int:
    """Send requests on one connection, half of them for stored objects; return the number of connections that were
    needed."""
    async with talk(port) as client:
        count = 0
        while not stop.is_set():
            count += 1
            path = LARGE_FILE if count % 2 else f"{LARGE_FILE}-{number}-{count}"
            fields, _, body = (await client.ask(head(path))).partition(b"\r\n\r\n")
            assert fields.startswith(b"HTTP/1.1 200 "), fields
            assert body == body[:1] * 5000
            bodies[body[:1]] = bodies.get(body[:1], 0) + 1
    return 1
