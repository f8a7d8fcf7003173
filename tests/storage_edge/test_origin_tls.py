"""TLS towards the origin, its time-outs by phase, and what files that cannot be used are called."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import attrs
import pytest
from aiohttp import web

from common.mistakes import Mistake
from storage_edge.app import reconfigured
from storage_edge.client.handlers import SETTINGS
from storage_edge.client.operators import ORIGIN
from storage_edge.settings import Settings
from storage_edge.tls import origin_context
from tests.storage_edge.bare_origin import bare_origin, says
from tests.storage_edge.conftest import Edge, StartEdge
from tests.storage_edge.talk import RAW
from tests.support.certificates import key_and_certificate
from tests.support.logs import lines_of_edges


@attrs.frozen
class Secured:
    """An origin with TLS that wants to see a certificate, and the files of both sides."""

    url: str
    ca: Path
    cert: Path
    key: Path

    @property
    def settings(self) -> dict[str, object]:
        return {"origin": self.url, "origin_ca": self.ca, "origin_cert": self.cert, "origin_key": self.key}


@contextlib.asynccontextmanager
async def secured(folder: Path) -> AsyncIterator[Secured]:
    for name in ("origin", "edge"):
        key, certificate = key_and_certificate()
        (folder / f"{name}.key").write_bytes(key)
        (folder / f"{name}.crt").write_bytes(certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(folder / "edge.crt"))
    context.load_cert_chain(folder / "origin.crt", folder / "origin.key")
    context.verify_mode = ssl.CERT_REQUIRED

    async def answer(_request: web.BaseRequest) -> web.StreamResponse:
        return web.Response(text="hello", headers={"Cache-Control": "public, max-age=60"})

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context)
    await site.start()
    try:
        port = runner.addresses[0][1]
        yield Secured(
            f"https://127.0.0.1:{port}", folder / "origin.crt", folder / "edge.crt", folder / "edge.key"
        )
    finally:
        await runner.cleanup()


async def _status(edge: Edge) -> int:
    return (await edge.get(RAW)).status


async def test_the_origin_is_judged_by_its_certificate_and_sees_the_edges(
    start_edge: StartEdge, tmp_path: Path
) -> None:
    async with secured(tmp_path) as origin:
        good = origin.settings
        assert await _status(await start_edge(data_dir=None, **good)) == 200
        wrong = [
            {**good, "origin_ca": None},  # the system's
            {**good, "origin_cert": None, "origin_key": None},
            {**good, "origin_tls_name": "other.example.org"},
        ]
        for settings in wrong:
            assert await _status(await start_edge(data_dir=None, **settings)) == 502
        assert await _status(await start_edge(data_dir=None, origin_tls_name="localhost", **good)) == 200


async def test_changed_files_are_read_once(start_edge: StartEdge, tmp_path: Path) -> None:
    """Whatever becomes of them between the look at new settings and their use."""
    async with secured(tmp_path) as origin:
        edge = await start_edge(**origin.settings)
        change = reconfigured(edge.app, edge.app[SETTINGS])
        origin.cert.write_text("nothing")
        await change()
        assert await _status(edge) == 200
        with pytest.raises(Mistake):
            reconfigured(edge.app, edge.app[SETTINGS])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"origin_ca": None}, "self-signed certificate. Set origin_ca"),
        ({"origin_tls_name": "other.example.org"}, "for 'other.example.org'. Set origin_ca"),
    ],
)
async def test_why_the_origin_is_not_believed_is_said(
    start_edge: StartEdge, tmp_path: Path, wrong: dict[str, object], words: str
) -> None:
    async with secured(tmp_path) as origin:
        edge = await start_edge(**{**origin.settings, **wrong})
        await edge.app[ORIGIN].health.look()
        problem = edge.app[ORIGIN].health.problem or ""
    assert "could not be reached: its certificate is not believed: " in problem
    assert words in problem


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"origin_ca": "missing"}, "its CA: No such file"),
        ({"origin_ca": "nothing"}, "no PEM certificate in"),
        ({"origin_cert": "nothing", "origin_key": "a.key"}, "no PEM with a certificate"),
        ({"origin_cert": "a.crt", "origin_key": "b.key"}, "its key is not that of"),
    ],
)
def test_files_that_cannot_be_used_are_said_in_one_sentence(
    tmp_path: Path, settings: dict[str, str], words: str
) -> None:
    (tmp_path / "nothing").write_text("nothing")
    for name in ("a", "b"):
        key, certificate = key_and_certificate()
        (tmp_path / f"{name}.key").write_bytes(key)
        (tmp_path / f"{name}.crt").write_bytes(certificate)
    files = {name: tmp_path / file for name, file in settings.items()}
    with pytest.raises(Mistake, match=f"TLS to the origin cannot be used: .*{words}"):
        origin_context(Settings(origin="https://x", **files))
    assert origin_context(Settings(origin="http://x", **files)) is None


async def test_a_name_that_is_not_found_in_time_counts_to_connecting(
    start_edge: StartEdge, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = asyncio.Event()

    async def resolve(*_: object, **__: object) -> list[dict[str, object]]:
        await found.wait()
        return []

    monkeypatch.setattr("aiohttp.connector.DefaultResolver.resolve", resolve)
    edge = await start_edge(
        origin="http://somewhere.example", origin_connect_timeout=0.1, origin_timeout=50.0
    )
    with lines_of_edges() as logs:
        async with asyncio.timeout(20):
            assert await _status(edge) == 504
    assert [(line["event"], line["phase"]) for line in logs] == [("origin did not answer in time", "connect")]
    found.set()


async def test_each_phase_has_its_own_time(start_edge: StartEdge) -> None:
    head = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=60\r\nContent-Length: 9\r\n\r\nabc"
    async with bare_origin() as bare:
        bare.behaviour = says(head)
        edge = await start_edge(origin=bare.url, origin_timeout=50.0, origin_read_timeout=0.2, data_dir=None)
        with lines_of_edges() as logs, pytest.raises(aiohttp.ClientError):
            async with asyncio.timeout(20), edge.session.get(edge.url + RAW) as answer:
                await answer.read()
        assert [line["event"] for line in logs] == ["origin stopped early"]

        async def never(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await waiting.wait()
            writer.close()

        waiting = asyncio.Event()
        server = await asyncio.start_server(never, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for url, phase, times in (
            (f"https://127.0.0.1:{port}", "connect", {"origin_connect_timeout": 0.2, "origin_timeout": 50.0}),
            (f"http://127.0.0.1:{port}", "head", {"origin_connect_timeout": 50.0, "origin_timeout": 0.2}),
        ):
            edge = await start_edge(origin=url, data_dir=None, **times)
            with lines_of_edges() as logs:
                async with asyncio.timeout(20):
                    assert await _status(edge) == 504
            assert [(line["event"], line["phase"]) for line in logs] == [
                ("origin did not answer in time", phase)
            ]
        waiting.set()
        server.close()
