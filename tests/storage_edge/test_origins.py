"""Origins: separate keys for each; TLS connections to them; and the answers to clients when one misbehaves."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import attrs
import pytest
from aiohttp import web

from common.config_errors import ConfigError
from storage_edge.app import reconfigured
from storage_edge.cache.origin import request_head
from storage_edge.client.handlers import SETTINGS
from storage_edge.client.operators import ORIGIN
from storage_edge.settings import Settings
from storage_edge.tls import origin_context
from tests.storage_edge.conftest import RAW, Clock, Edge, Origin, Serve, StartEdge
from tests.storage_edge.origins import BareOrigin, Behaviour, Wire, bare_origin, says
from tests.support.certificates import key_and_certificate
from tests.support.logs import lines_of_edges
from tests.support.ports import free_port

FIELDS = b'Cache-Control: max-age=60\r\nETag: "1"\r\n'
OK = b"HTTP/1.1 200 OK\r\n" + FIELDS
WHOLE = OK + b"Content-Length: 3\r\n\r\nabc"
#: The result for a client whose answer is cut off.
BROKEN = "broken"


@pytest.fixture
async def bare() -> AsyncIterator[BareOrigin]:
    async with bare_origin() as bare:
        yield bare


async def _seen(edge: Edge, bare: BareOrigin | None = None) -> object:
    """Return status and body of an answer, or that it was cut off after its head."""
    if bare is not None:
        bare.delivered.clear()
    async with edge.session.get(edge.url + RAW, allow_redirects=False) as response:
        if bare is not None:
            bare.delivered.set()
        try:
            return response.status, await response.read()
        except (aiohttp.ClientError, ConnectionError):
            return BROKEN


UNREACHABLE = (502, b"The origin could not be reached.\n")
UNREADABLE = (502, b"The origin's answer cannot be read.\n")
MISFIT = (502, b"The origin's answer is none to this request.\n")
STOPPED = (502, b"The origin stopped before the end of its answer.\n")
LATE = (504, b"The origin did not answer in time.\n")
REACH, READ, QUESTION, STOP, TIME = (
    "origin could not be reached",
    "origin's answer cannot be read",
    "origin gave an answer to another question",
    "origin stopped early",
    "origin did not answer in time",
)

#: The origin's behaviour | the client's result | whether it is stored | the log line.
FAULTS: list[tuple[str, Behaviour, object, bool, str | None]] = [
    ("closes at once", says(then="closes"), UNREACHABLE, False, REACH),
    ("resets at once", says(then="resets"), UNREACHABLE, False, REACH),
    ("closes within the head", says(b"HTTP/1.1 200 OK\r\nCache", then="closes"), UNREACHABLE, False, REACH),
    ("is silent", says(), LATE, False, TIME),
    ("sends its head without end", says(OK, b"X: y\r\n", then="repeats"), LATE, False, TIME),
    ("says 100 without end", says(b"HTTP/1.1 100 Continue\r\n\r\n", then="repeats"), LATE, False, TIME),
    ("is no web server", says(b"SSH-2.0-OpenSSH_9.2\r\n"), UNREADABLE, False, READ),
    ("sends garbage", says(b"\x00\xff\r\n\r\n"), UNREADABLE, False, READ),
    ("sends HTTP/2", says(b"HTTP/2 200 OK\r\n" + FIELDS + b"\r\n"), UNREADABLE, False, READ),
    ("sends a NUL", says(OK + b"X: a\0b\r\nContent-Length: 0\r\n\r\n"), UNREADABLE, False, READ),
    ("sends a long line", says(OK + b"X: " + b"y" * 40_000 + b"\r\n\r\n"), UNREADABLE, False, READ),
    ("announces no number", says(OK + b"Content-Length: abc\r\n\r\n"), UNREADABLE, False, READ),
    ("announces less than nothing", says(OK + b"Content-Length: -1\r\n\r\n"), UNREADABLE, False, READ),
    ("announces two lengths", says(OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc"), UNREADABLE, False,
     READ),
    ("announces a length and chunks",
     says(OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), UNREADABLE, False, READ),
    ("sends more than announced", says(WHOLE + b"def"), UNREADABLE, False, READ),
    ("says 101", says(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"), MISFIT,
     False, QUESTION),
    ("says 206", says(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-2/9\r\nContent-Length: 3\r\n"
                      + FIELDS + b"\r\nabc"), MISFIT, False, QUESTION),
    ("says 304", says(b"HTTP/1.1 304 Not Modified\r\n" + FIELDS + b"\r\n"), MISFIT, False, QUESTION),
    ("says 999", says(b"HTTP/1.1 999 What\r\n" + FIELDS + b"Content-Length: 0\r\n\r\n"), MISFIT, False, QUESTION),
    ("stops before the body", says(OK + b"Content-Length: 9\r\n\r\n", then="closes"), STOPPED, False, STOP),
    ("is silent before the body", says(OK + b"Content-Length: 9\r\n\r\n"), STOPPED, False, STOP),
    ("stops within the body", says(OK + b"Content-Length: 9\r\n\r\nabc", then="breaks"), BROKEN, False, STOP),
    ("resets within the body", says(OK + b"Content-Length: 9\r\n\r\nabc", then="resets"), BROKEN, False, STOP),
    ("is silent within the body", says(OK + b"Content-Length: 9\r\n\r\nabc"), BROKEN, False, STOP),
    ("stops within a large body", says(OK + b"Content-Length: 900000\r\n\r\n" + b"x" * 800_000, then="breaks"),
     BROKEN, False, STOP),
    ("stops within a chunk", says(OK + b"Transfer-Encoding: chunked\r\n\r\n9\r\nabc", then="breaks"), BROKEN, False,
     STOP),
    ("stops between chunks", says(OK + b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", then="breaks"), BROKEN,
     False, STOP),
    ("resets a body without announced end", says(OK + b"\r\nabc", then="resets"), BROKEN, False, STOP),
    ("ends a body without announced end", says(OK + b"\r\nabc", then="closes"), (200, b"abc"), False, None),
    ("says 103 first", says(b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n" + WHOLE), (200, b"abc"), True, None),
    ("is of 1996", says(b"HTTP/1.0 200 OK\r\n" + FIELDS + b"Content-Length: 3\r\n\r\nabc", then="closes"),
     (200, b"abc"), True, None),
    ("redirects", says(b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:9/x\r\nContent-Length: 0\r\n\r\n"),
     (302, b""), False, None),
    ("fails", says(b"HTTP/1.1 500 Oops\r\nContent-Length: 4\r\n\r\noops"), (500, b"oops"), False,
     None),
]  # fmt: skip


async def _edge(start_edge: StartEdge, bare: BareOrigin, line: str | None, name: str) -> Edge:
    """Return an edge, with a short time limit for its origin if the test waits for it."""
    is_slow = line == TIME or "silent" in name
    return await start_edge(origin=bare.url, origin_timeout=0.3 if is_slow else 5.0)


@pytest.mark.parametrize(
    ("name", "behaviour", "seen", "is_stored", "line"), FAULTS, ids=[row[0] for row in FAULTS]
)
async def test_what_the_origin_does_wrong_costs_one_request_and_one_line(
    start_edge: StartEdge, bare: BareOrigin,
    name: str, behaviour: Behaviour, seen: object, is_stored: bool, line: str | None,
) -> None:  # fmt: skip
    edge = await _edge(start_edge, bare, line, name)
    bare.behaviour = behaviour
    with lines_of_edges() as logs:
        assert await _seen(edge, bare) == seen
        await edge.settled()
    assert bare.requests == 1
    assert [entry["event"] for entry in logs] == ([line] if line else [])
    assert not any(entry.get("exc_info") for entry in logs)
    stored = await edge.get(RAW, Cache_Control="only-if-cached")
    assert (stored.status, stored.body) == (seen if is_stored else (504, b""))


async def test_what_fails_again_and_again_is_one_line_a_second(
    start_edge: StartEdge, bare: BareOrigin
) -> None:
    edge = await start_edge(origin=bare.url)
    bare.behaviour = says(then="closes")
    with lines_of_edges() as logs:
        begun = asyncio.get_running_loop().time()
        for number in range(60):
            assert (await edge.get(f"{RAW}{number}")).status == 502
        seconds = asyncio.get_running_loop().time() - begun
    assert {line["event"] for line in logs} == {REACH}
    assert len(logs) <= 1 + seconds


STAND_IN = [row for row in FAULTS if row[2] != BROKEN and row[4] is not None] + [FAULTS[-1]]


@pytest.mark.parametrize(
    ("name", "behaviour", "line"),
    [(row[0], row[1], row[4]) for row in STAND_IN],
    ids=[row[0] for row in STAND_IN],
)
async def test_a_stale_response_stands_in_for_each_failure_that_comes_before_the_body(
    start_edge: StartEdge, bare: BareOrigin, clock: Clock, name: str, behaviour: Behaviour, line: str | None
) -> None:
    """This applies to failures up to the head of the answer, because an answer that has begun cannot be withdrawn."""
    kept = b"HTTP/1.1 200 OK\r\nCache-Control: max-age=9, stale-if-error=60\r\nContent-Length: 4\r\n\r\nkept"
    edge = await _edge(start_edge, bare, line, name)
    bare.behaviour = says(kept)
    assert await _seen(edge) == (200, b"kept")
    await edge.settled()
    clock.advance(20)
    bare.behaviour = behaviour
    answer = await edge.get(RAW)
    assert (answer.status, answer.body) in [(200, b"kept"), *([STOPPED] if line == STOP else [])]
    assert ("stale" in answer.cache_status) == (answer.status == 200)


async def test_an_origin_that_is_not_there(start_edge: StartEdge) -> None:
    edge = await start_edge(origin=f"http://127.0.0.1:{free_port()}")
    with lines_of_edges() as logs:
        assert await _seen(edge) == UNREACHABLE
    assert [(line["event"], line["reason"]) for line in logs] == [(REACH, "Connection refused")]


@pytest.mark.parametrize("name", ["forgelet.invalid", "*"])
async def test_a_name_that_is_nobodys(start_edge: StartEdge, name: str) -> None:
    edge = await start_edge(origin=f"http://{name}:{free_port()}")
    with lines_of_edges() as logs:
        assert await _seen(edge) == UNREACHABLE
    assert [line["event"] for line in logs] == [REACH]


@pytest.mark.parametrize("speaks", ["tls with a certificate of its own", "no tls"])
async def test_an_origin_whose_tls_fails(start_edge: StartEdge, tmp_path: Path, speaks: str) -> None:
    key, certificate = key_and_certificate()
    (tmp_path / "both.pem").write_bytes(key + certificate)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "both.pem")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            await reader.read(100)
            writer.write(WHOLE)
        writer.close()

    tls = context if speaks.startswith("tls") else None
    async with await asyncio.start_server(answer, "127.0.0.1", 0, ssl=tls) as server:
        edge = await start_edge(origin=f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        with lines_of_edges() as logs:
            assert await _seen(edge) == UNREACHABLE
    why = "its certificate is not believed: self-signed certificate" if tls else "TLS failed: "
    ((event, reason),) = [(line["event"], line["reason"]) for line in logs]
    assert (event, reason.startswith(why)) == (REACH, True), reason


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_a_request_that_met_only_connections_that_the_origin_had_given_up_is_sent_again(
    start_edge: StartEdge, bare: BareOrigin, method: str
) -> None:
    """This happens if an origin is restarted behind a program that keeps connections: all idle ones are dead."""
    edge = await start_edge(origin=bare.url)
    kept: set[asyncio.StreamWriter] = set()
    all_here = asyncio.Event()

    async def keep(wire: Wire) -> bool:
        kept.add(wire.writer)
        if len(kept) == 3:
            all_here.set()
        await all_here.wait()
        return await says(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")(wire)

    async def reset_what_was_kept(wire: Wire) -> bool:
        if wire.writer in kept:
            wire.reset()
            return False
        return await says(OK + b"Content-Length: 0\r\n\r\n")(wire)

    bare.behaviour = keep
    await asyncio.gather(*(edge.get(f"{RAW}{number}") for number in range(3)))
    bare.behaviour = reset_what_was_kept
    assert (await edge.get(RAW, method)).status == 200
    assert bare.requests == 3 + 3 + 1


class OneDead(aiohttp.abc.AbstractResolver):
    """A resolver of a name with two addresses, of which nothing listens on the first."""

    async def resolve(
        self,
        host: str,
        port: int = 0,
        family: socket.AddressFamily = socket.AF_INET,  # noqa: ARG002
    ) -> list[aiohttp.abc.ResolveResult]:
        return [
            {
                "hostname": host,
                "host": address,
                "port": port,
                "family": socket.AF_INET,
                "proto": 0,
                "flags": 0,
            }
            for address in ("127.0.0.2", "127.0.0.1")
        ]

    async def close(self) -> None:
        """Do nothing: no resource is open."""


async def test_one_dead_address_of_several_costs_nobody_an_answer(
    start_edge: StartEdge, bare: BareOrigin
) -> None:
    bare.behaviour = says(WHOLE)
    edge = await start_edge(origin=f"http://origin.example:{bare.port}")
    edge.app[ORIGIN]._connector._resolver = OneDead()
    with lines_of_edges() as logs:
        assert await _seen(edge) == (200, b"abc")
    assert logs == []


#: A body that stays in memory, and one that does not.
SIZES = [1000, 700_000]


@pytest.fixture
async def other(serve: Serve, clock: Clock) -> Origin:
    """Another service with the same paths."""
    other = Origin(clock)
    other.url = await serve(other.handle)
    return other


async def _stored(edge: Edge, expected: bytes) -> str:
    """Return the Cache-Status of an object, whose bytes have to be these."""
    answer = await edge.get(RAW)
    assert (answer.status, answer.body) == (200, expected)
    await edge.settled()
    return answer.cache_status


@pytest.mark.parametrize("size", SIZES)
async def test_edges_of_two_origins_share_a_directory_side_by_side(
    start_edge: StartEdge, origin: Origin, other: Origin, size: int
) -> None:
    """The entity tag is the same too, so neither origin could distinguish the other's bytes from its own."""
    origin.answers(b"a" * size)
    other.answers(b"b" * size)
    one, two = await start_edge(), await start_edge(origin=other.url)
    for edge, expected in ((one, b"a"), (two, b"b")):
        assert await _stored(edge, expected * size) == "forgelet-edge; fwd=uri-miss; stored"
    for edge, expected in ((one, b"a"), (two, b"b"), (await start_edge(), b"a")):
        assert "; hit; ttl=" in await _stored(edge, expected * size)
    assert (len(origin.requests), len(other.requests)) == (1, 1)


async def test_the_spelling_of_an_origin_does_not_matter(start_edge: StartEdge, origin: Origin) -> None:
    origin.answers(b"a")
    await _stored(await start_edge(), b"a")
    edge = await start_edge(origin=f"{origin.url.replace('http', 'HTTP')}/")
    assert "; hit; ttl=" in await _stored(edge, b"a")
    assert len(origin.requests) == 1


async def test_a_purge_of_urls_concerns_one_origin_and_one_of_keys_all(
    start_edge: StartEdge, origin: Origin, other: Origin
) -> None:
    """A key may name something in either, so too much is deleted rather than too little."""
    origin.answers(b"a", Surrogate_Key="project-1")
    other.answers(b"b", Surrogate_Key="project-1")
    one, two = await start_edge(), await start_edge(origin=other.url)
    await _stored(one, b"a")
    await _stored(two, b"b")
    assert await one.purge(urls=[RAW]) == 1
    assert "fwd=uri-miss" in await _stored(one, b"a")
    assert "; hit; ttl=" in await _stored(two, b"b")
    assert await one.purge(prefixes=["/group/"]) == 1
    assert "fwd=uri-miss" in await _stored(one, b"a")
    assert "; hit; ttl=" in await _stored(two, b"b")
    assert await one.purge(keys=["project-1"]) == 2
    assert "fwd=uri-miss" in await _stored(one, b"a")
    assert "fwd=uri-miss" in await _stored(two, b"b")


async def test_the_shared_tier_keeps_origins_apart(
    start_edge: StartEdge, origin: Origin, other: Origin, tmp_path: Path
) -> None:
    origin.answers(b"a")
    other.answers(b"b")
    shared = (tmp_path / "shared").as_uri()
    for number, (url, expected) in enumerate([(origin.url, b"a"), (other.url, b"b"), (origin.url, b"a")]):
        edge = await start_edge(origin=url, data_dir=tmp_path / f"edge-{number}", shared_store_url=shared)
        await _stored(edge, expected)
    assert [request.headers.get("If-None-Match") for request in origin.requests] == [None, '"v1"']
    assert [request.headers.get("If-None-Match") for request in other.requests] == [None]


@attrs.frozen
class Secured:
    """An origin with TLS that requires a certificate, and the files of both sides."""

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
    """The files may change between the check of new settings and their use."""
    async with secured(tmp_path) as origin:
        edge = await start_edge(**origin.settings)
        change = reconfigured(edge.app, edge.app[SETTINGS])
        origin.cert.write_text("nothing")
        await change()
        assert await _status(edge) == 200
        with pytest.raises(ConfigError):
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
        await edge.app[ORIGIN].health.probe()
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
    with pytest.raises(ConfigError, match=f"TLS to the origin cannot be used: .*{words}"):
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


def test_a_field_of_a_request_cannot_begin_another_one() -> None:
    sent = request_head("GET /a?b HTTP/1.1", {"Host": "example.org", "X-Name": "é"})
    assert sent == "GET /a?b HTTP/1.1\r\nHost: example.org\r\nX-Name: é\r\n\r\n".encode()
    for value in ("a\r\nB: c", "a\nb", "a\rb", "a\0b"):
        with pytest.raises(ValueError, match="line break or NUL"):
            request_head("GET / HTTP/1.1", {"A": value})
