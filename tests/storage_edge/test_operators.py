"""The edge's answers to callers with the purge token, and that wrong settings do not look healthy."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st
from typed_settings import SecretStr

from common.operations import CHECK_SECONDS
from storage_edge.cache.origin import LOOK_SECONDS
from storage_edge.client.handlers import STORE
from storage_edge.client.operators import ORIGIN
from storage_edge.storage import store
from storage_edge.storage.index import _connect
from storage_edge.storage.spool import CHUNK, Gathered
from tests.storage_edge.conftest import PURGE_TOKEN, RAW, STORAGE_TOKEN, Clock, Edge, Origin, StartEdge
from tests.support.logs import lines_of_edges
from tests.support.ports import free_port

ARCHIVE = "/group/app/-/archive/main/app-main.tar.gz"
NO_FILE = "/forgelet/-/raw/HEAD/is-the-storage-token-right"


async def ask(edge: Edge, path: str, token: str = PURGE_TOKEN, **parameters: str) -> Any:
    """Return the JSON of a 200."""
    async with edge.session.get(
        edge.url + path, params=parameters, headers={"Authorization": f"Bearer {token}"}
    ) as answer:
        assert answer.status == 200, await answer.text()
        return await answer.json()


async def test_only_checks_that_fail_are_logged(start_edge: StartEdge) -> None:
    edge = await start_edge(access_log=True)
    with lines_of_edges() as logs:
        for path in ("/-/liveness", "/-/metrics", "/-/status"):
            assert (await edge.get(path, Authorization=f"Bearer {PURGE_TOKEN}")).status == 200
        assert (await edge.get("/-/status")).status == 401
    told = [(line["target"], line["status"]) for line in logs if line["event"] == "request"]
    assert told == [("/-/status", 401)]


@pytest.mark.parametrize("path", ["/-/status", "/-/stored"])
async def test_they_are_for_the_purge_token_alone(start_edge: StartEdge, origin: Origin, path: str) -> None:
    edge = await start_edge()
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": f"Basic {PURGE_TOKEN}"}):
        async with edge.session.get(edge.url + path, headers=headers) as answer:
            assert answer.status == 401
    without = await start_edge(purge_token=SecretStr(""), data_dir=None)
    async with without.session.get(without.url + path, headers={"Authorization": "Bearer "}) as answer:
        assert answer.status == 404


async def test_status_says_what_was_done(edge: Edge, origin: Origin, clock: Clock) -> None:
    origin.answers(b"hello")
    for _ in range(3):
        await edge.get(RAW)
        await edge.settled()
    await edge.purge(keys=["project-1"])
    status = await ask(edge, "/-/status")
    assert status["requests"] == {"miss": 1, "hit": 2}
    assert status["responses"] == {"200": 3}
    assert status["bytes"]["from_origin"] == 5
    assert status["bytes"]["sent"] > 15
    assert status["stored"]["memory"]["responses"] == status["stored"]["disk"]["responses"] == 1
    assert status["stored"]["disk"]["bytes"] == 5
    assert status["purges"] == {
        "done": 1, "failed": 0, "refused": 0, "last_at": "2027-01-15T08:00:00.000Z", "problem": None
    }  # fmt: skip
    assert (status["started_at"], status["evictions"]) == ("2027-01-15T08:00:00.000Z", 0)


async def test_what_is_stored_is_listed_in_pages(start_edge: StartEdge, origin: Origin, clock: Clock) -> None:
    edge = await start_edge()
    origin.answers(b"public", cache_control="public, max-age=60")
    for number in range(5):
        await edge.get(f"/group/app/-/raw/main/{number}")
    origin.answers(b"short", cache_control="public, max-age=5", etag=None)
    await edge.get("/group/app/-/raw/main/short")  # only in memory
    origin.answers(b"secret!", cache_control="private, max-age=60")
    await edge.get(f"{ARCHIVE}?token=flso-secret")
    await edge.settled()
    for _ in range(3):
        await edge.get("/group/app/-/raw/main/3")
    clock.advance(7)

    found: list[Any] = []
    after = ""
    while after is not None:
        page = await ask(edge, "/-/stored", prefix="/group/", after=after, limit="3")
        found += page["stored"]
        assert len(page["stored"]) <= 3
        after = page["next"]
    urls = [one["url"].removeprefix(origin.url) for one in found]
    assert urls == [ARCHIVE, *(f"/group/app/-/raw/main/{name}" for name in (0, 1, 2, 3, 4, "short"))]
    assert "flso-secret" not in str(found)
    archive, third = found[0], found[4]
    assert (archive["kind"], archive["private"], archive["fresh_until"]) == ("archive", True, None)
    assert archive["bytes"] == 7
    assert third == {
        "url": f"{origin.url}/group/app/-/raw/main/3",
        "kind": "raw",
        "status": 200,
        "bytes": 6,
        "stored_at": "2027-01-15T08:00:00.000Z",
        "age": 7,
        "fresh_until": "2027-01-15T08:01:00.000Z",
        "hits": 3,
        "tier": "memory",
        "private": False,
    }
    assert (await ask(edge, "/-/stored", prefix="/other/"))["stored"] == []


async def test_hits_are_counted_until_a_purge_also_on_disk(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(memory_bytes=0)
    origin.answers(b"hello")

    async def listed() -> tuple[int, str]:
        ((one,), _) = (await ask(edge, "/-/stored")).values()
        return one["hits"], one["tier"]

    await edge.get(RAW)
    await edge.settled()
    for _ in range(2):
        await edge.get(RAW)
    await edge.app[STORE].tend()
    await edge.get(RAW)
    assert await listed() == (3, "disk")
    await edge.purge(prefixes=["/"])
    await edge.get(RAW)
    await edge.settled()
    assert await listed() == (0, "disk")


@pytest.mark.parametrize("parameters", [{"limit": "x"}, {"after": "x"}, {"after": "WzFd"}])
async def test_wrong_parameters_are_400(edge: Edge, parameters: dict[str, str]) -> None:
    async with edge.session.get(
        f"{edge.url}/-/stored", params=parameters, headers={"Authorization": f"Bearer {PURGE_TOKEN}"}
    ) as answer:
        assert answer.status == 400


def test_a_page_costs_as_much_as_its_length(tmp_path: Any) -> None:
    """This does not depend on the number of responses: rows are read from an index, in its order, and never sorted."""
    with contextlib.closing(_connect(tmp_path / "index", schema=True)) as index:
        given = {"target": "", "selected": "", "end": "x", "limit": 1}
        plan = [row[3] for row in index.execute(f"EXPLAIN QUERY PLAN {store.PAGE}", given)]
        assert not [step for step in plan if step.startswith("SCAN") or "TEMP B-TREE" in step], plan
        assert any("responses" in step and "target" in step for step in plan), plan
        assert index.execute("SELECT responses FROM counts").fetchone() == (0,)


def _service(*, token: str | None, external: str = "http://edge.example.org") -> Any:
    """Return an origin that treats the storage's token as this service does."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path == "/-/liveness":
            return web.json_response({"status": "ok"})
        sent = request.headers.get("X-Service-External-Storage-Token")
        if sent and sent != token:
            return web.Response(status=403, text="The external storage token is not the configured one.\n")
        if request.path == NO_FILE:
            return web.Response(status=404)
        if not sent and token:
            return web.Response(status=302, headers={"Location": external + request.path})
        return web.Response(text="hello", headers={"Cache-Control": "public, max-age=60", "ETag": '"1"'})

    return handler


async def test_the_right_token_is_found_right(edge: Edge, origin: Origin) -> None:
    origin.handler = _service(token=STORAGE_TOKEN)
    assert (await edge.readiness())[0] == 200
    assert (await ask(edge, "/-/status"))["origin"] == {
        "url": origin.url, "reachable": True, "token": "right", "problem": None
    }  # fmt: skip


async def test_a_wrong_token_is_said_in_words(edge: Edge, origin: Origin) -> None:
    origin.handler = _service(token="another")
    with lines_of_edges() as logs:
        status, said = await edge.readiness()
    assert (status, said["origin"]["status"]) == (503, "failed")
    assert [line["event"] for line in logs] == ["the origin cannot be used as it should"]
    assert "The storage token is wrong" in said["origin"]["message"]
    assert (await ask(edge, "/-/status"))["origin"]["token"] == "wrong"
    assert b"edge_origin_token_right 0.0" in (await edge.get("/-/metrics")).body
    origin.handler = _service(token=STORAGE_TOKEN)  # corrected at the service
    assert (await edge.readiness())[0] == 200
    origin.handler = _service(token="renewed")  # for all edges, which can still serve their content
    status, said = await edge.readiness()
    assert (status, said["origin"]["status"]) == (200, "degraded")
    assert "The storage token is wrong" in said["origin"]["message"]


async def test_an_origin_that_is_the_edge_itself_is_found_out(start_edge: StartEdge, origin: Origin) -> None:
    edges: list[Edge] = []

    async def next_edge(request: web.Request) -> web.StreamResponse:
        """Proxies that lead to another edge, and from there back to the first one."""
        edge = edges[len(origin.requests) % 2]
        async with edge.session.request(
            request.method, edge.url + request.raw_path, headers=request.headers, allow_redirects=False
        ) as answer:
            return web.Response(status=answer.status, body=await answer.read())

    origin.handler = next_edge
    edges += [await start_edge(), await start_edge(data_dir=None)]
    status, said = await edges[0].readiness()
    assert status == 503
    assert said["origin"]["message"] == (
        f"The origin {origin.url} leads back to this edge: set origin to where the service itself listens."
    )
    origin.requests.clear()
    assert (await edges[0].get(RAW)).status == 508
    assert len(origin.requests) <= 2


async def test_an_outage_is_told_when_it_begins_and_ends_and_seldom_meanwhile(
    start_edge: StartEdge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    edge = await start_edge()
    health = edge.app[ORIGIN].health
    with lines_of_edges() as logs:
        for status in (502, 502, 502, 200, 200):
            origin.answers(status=status)
            await health.probe()
        origin.answers(status=502)
        await health.probe()
        monkeypatch.setattr("storage_edge.cache.origin.REMIND_SECONDS", 0.0)
        await health.probe()
    broken, well = "the origin cannot be used as it should", "the origin can be used again"
    assert [line["event"] for line in logs] == [broken, well, broken, broken]


async def test_an_origin_that_is_silent_is_told_in_words_before_readiness_gives_up(
    start_edge: StartEdge, origin: Origin, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LOOK_SECONDS < CHECK_SECONDS  # the limits of any check, and of readiness
    monkeypatch.setattr("storage_edge.cache.origin.LOOK_SECONDS", 0.3)
    forever = asyncio.Event()

    async def silent(_request: web.Request) -> web.StreamResponse:
        await forever.wait()
        return web.Response()

    origin.handler = silent
    edge = await start_edge()
    with lines_of_edges() as logs:
        status, said = await edge.readiness()
    assert (status, "did not answer in time. Does it run" in said["origin"]["message"]) == (503, True)
    assert [line["event"] for line in logs] == ["the origin cannot be used as it should"]
    assert b'edge_origin_failures_total{reason="timeout"} 0.0' in (await edge.get("/-/metrics")).body
    forever.set()


async def test_no_token_is_degraded_and_wrong_once_the_origin_sends_the_edge_away(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge(storage_token=SecretStr(""))
    origin.handler = _service(token=STORAGE_TOKEN)
    status, said = await edge.readiness()
    assert (status, said["origin"]["status"]) == (200, "degraded")
    assert "No storage token is set" in said["origin"]["message"]
    assert (await edge.get(RAW)).status == 302
    status, said = await edge.readiness()
    assert status == 503
    assert "does not see the edge's storage token" in said["origin"]["message"]


async def test_a_wrong_origin_is_said_in_words(start_edge: StartEdge, origin: Origin) -> None:
    away = await start_edge(origin=f"http://127.0.0.1:{free_port()}")
    status, said = await away.readiness()
    assert status == 503
    assert "could not be reached: Connection refused. Does it run" in said["origin"]["message"]
    assert (await ask(away, "/-/status"))["origin"]["reachable"] is False
    assert b"edge_origin_up 0.0" in (await away.get("/-/metrics")).body
    origin.answers(status=404)
    other = await start_edge()
    assert "answers /-/liveness with 404" in (await other.readiness())[1]["origin"]["message"]


@pytest.mark.parametrize(("ours", "words"), [("", "no purge token is set"), ("other", "another token")])
async def test_a_purge_that_is_refused_shows(
    start_edge: StartEdge, origin: Origin, ours: str, words: str
) -> None:
    edge = await start_edge(purge_token=SecretStr(ours))
    origin.handler = _service(token=STORAGE_TOKEN)
    assert (await edge.readiness())[1]["purges"] == {"status": "ok"}
    async with edge.session.post(
        f"{edge.url}/-/purge", json={"keys": ["a"]}, headers={"Authorization": f"Bearer {PURGE_TOKEN}"}
    ) as answer:
        assert answer.status == (401 if ours else 404)
    _, said = await edge.readiness()
    assert (said["status"], words in said["purges"]["message"]) == ("degraded", True)
    if ours:
        await edge.purge(ours, keys=["a"])
        assert (await edge.readiness())[1]["purges"] == {"status": "ok"}


async def test_metrics_have_names_and_units_as_prometheus_wants_them(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello")
    await edge.get(RAW)
    await edge.get("/nothing")
    text = (await edge.get("/-/metrics")).body.decode()
    kinds = dict(line.split(" ")[2:4] for line in text.splitlines() if line.startswith("# TYPE edge_"))
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
    assert 'edge_responses_total{status="200"} 1.0' in text
    assert 'edge_responses_total{status="400"} 1.0' in text
    for phase in ("place", "connect", "head", "body"):
        assert f'edge_origin_duration_seconds_count{{phase="{phase}"}} 1.0' in text
    assert 'edge_tier_limit_bytes{tier="memory"} 6.7108864e+07' in text
    assert "edge_purges_pending 0.0" in text


PIECES = st.lists(st.sampled_from([1, 2, 100, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK]), max_size=12)


@given(PIECES, st.data())
def test_what_came_is_read_from_anywhere(sizes: list[int], data: st.DataObject) -> None:
    gathered, whole = Gathered(), b""
    for number, size in enumerate(sizes):
        piece = bytes([number]) * size
        whole += piece
        gathered.add(piece)
        offset = data.draw(st.integers(0, len(whole) - 1))
        read = gathered.read(offset, data.draw(st.integers(1, 2 * CHUNK)))
        assert read
        assert bytes(read) == whole[offset : offset + len(read)]
    assert b"".join(gathered.chunks) == whole
    if data.draw(st.booleans()):
        gathered.add(b"end")
        whole += b"end"
    assert gathered.whole() == whole
    assert gathered.whole() is gathered.whole()
    if whole:
        assert bytes(gathered.read(0, len(whole))) == whole


@given(st.integers(1, 5000))
def test_what_drips_is_few_pieces(count: int) -> None:
    gathered = Gathered()
    for _ in range(count):
        gathered.add(b"x" * 7)
    assert len(gathered.chunks) <= 1 + 7 * count // (CHUNK - 7)


def test_a_body_that_came_at_once_is_not_copied() -> None:
    gathered, piece = Gathered(), bytes(CHUNK)
    gathered.add(piece)
    assert gathered.whole() is piece


@pytest.fixture
def index(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(_connect(tmp_path / "index", schema=True)) as index:
        yield index


def test_a_page_in_the_midst_of_many_costs_as_much_as_the_first(index: sqlite3.Connection) -> None:
    index.execute("BEGIN")
    for number in range(3000):
        index.execute("INSERT INTO bodies VALUES (?, 5, 1.0)", (str(number),))
        index.execute(
            "INSERT INTO responses (target, selected, digest, epoch, response, checksum)"
            " VALUES (?, '[]', ?, 0, '{}', 0)",
            (f"http://o/{number:04}", str(number)),
        )
    index.execute("COMMIT")
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def cost(prefix: str, after: str) -> int:
        nonlocal steps
        steps = 0
        assert len(store.index_page(index, prefix, (after, "[]" if after else ""), 10)) == 10
        return steps

    index.set_progress_handler(step, 10)
    first = cost("", "")
    for prefix, after in (
        ("http://o/29", ""),
        ("http://o/", "http://o/2900"),
        ("http://o/29", "http://o/2950"),
    ):
        assert cost(prefix, after) <= 2 * first


def test_targets_in_memory_come_in_order_from_the_last_one_on() -> None:
    targets = ["b", "a/2", "a/1", "a/4", "a/3"]
    assert store.first_targets(targets, "a/", ("a/2", "[]"), 1) == ["a/2", "a/3"]
