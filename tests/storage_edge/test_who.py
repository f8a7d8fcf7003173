"""Behind proxies: who asks, under which id, and how often she may."""

import re
from typing import Any

import pytest

from common.concurrency import Rates
from storage_edge.client.callers import NO_PROXY_FIELDS, Proxies, ProxyFields
from tests.storage_edge.conftest import Edge, Origin, StartEdge
from tests.storage_edge.talk import RAW, head, talk
from tests.support.logs import lines_of_edges

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
    """Those that are answered without reading them again, too."""
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
