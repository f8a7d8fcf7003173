"""SIGHUP: the edge gets new certificates and tokens, and nothing in flight is touched."""

import asyncio
import contextlib
import json
import signal
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from common.mistakes import Mistake
from storage_edge.settings import Settings
from storage_edge.tls import Certificate
from tests.storage_edge.conftest import PURGE_TOKEN, Clock, Origin, Serve
from tests.storage_edge.processes import EdgeProcess, edge_process
from tests.storage_edge.talk import head, talk
from tests.support.certificates import key_and_certificate
from tests.support.waiting import until

RAW = "/group/app/-/raw/main/large.bin"
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

        cert.write_bytes(key_and_certificate()[1])  # whose key is another
        edge.process.send_signal(signal.SIGHUP)
        assert "problem" in await _said(edge, REFUSED)
        assert await _purge(edge, second, "another-token") == 200

        gate.set()
        assert await reading == b"a" * 100_000 + b"b" * 100_000
        await edge.stop()


def _renew(cert: Path, key: Path) -> ssl.SSLContext:
    """Puts a new certificate and its key in place; a client that trusts it and no other."""
    private, public = key_and_certificate()
    cert.write_bytes(public)
    key.write_bytes(private)
    return ssl.create_default_context(cadata=public.decode())


async def _get(edge: EdgeProcess, trusting: ssl.SSLContext) -> bytes:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"https://127.0.0.1:{edge.port}{RAW}", ssl=trusting) as answer,
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
    """The next line of the log about an event."""
    assert edge.process.stderr is not None
    while True:
        line: dict[str, Any] = json.loads(await edge.process.stderr.readline())
        if line["event"] == event:
            return line


async def test_files_are_read_once(tmp_path: Path) -> None:
    """Whatever becomes of them between the look at new settings and their use."""
    cert, key = tmp_path / "edge.crt", tmp_path / "edge.key"
    _renew(cert, key)
    settings = Settings(tls_cert=cert, tls_key=key)
    certificate = Certificate(settings)
    assert certificate.context is not None
    trusting = _renew(cert, key)
    change = certificate.renewed(settings)
    cert.write_bytes(key_and_certificate()[1])  # whose key is another
    await change()
    assert _is_shown(certificate.context, trusting)
    for other in (Settings(), Settings(tls_cert=tmp_path / "missing")):
        with pytest.raises(Mistake):
            certificate.renewed(other)
    assert _is_shown(certificate.context, trusting)


def test_tls_does_not_begin_with_a_reload(tmp_path: Path) -> None:
    cert, key = tmp_path / "edge.crt", tmp_path / "edge.key"
    _renew(cert, key)
    with pytest.raises(Mistake, match="with a new start alone"):
        Certificate(Settings()).renewed(Settings(tls_cert=cert, tls_key=key))


def _is_shown(context: ssl.SSLContext, trusting: ssl.SSLContext) -> bool:
    """Whether a client that trusts one certificate alone gets it in a handshake."""
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
    # As it is installed, not as a module, whose flags stand elsewhere.
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
    """Asks on one connection, half of the time for what is stored; how many connections that took."""
    async with talk(port) as client:
        count = 0
        while not stop.is_set():
            count += 1
            path = RAW if count % 2 else f"{RAW}-{number}-{count}"
            fields, _, body = (await client.ask(head(path))).partition(b"\r\n\r\n")
            assert fields.startswith(b"HTTP/1.1 200 "), fields
            assert body == body[:1] * 5000
            bodies[body[:1]] = bodies.get(body[:1], 0) + 1
    return 1
