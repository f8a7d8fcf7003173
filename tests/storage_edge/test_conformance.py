"""What RFC 9110, 9111, 9211, 9213 and 5861 ask of a shared cache, by section, over real HTTP."""

from email.utils import formatdate

import pytest
from aiohttp import web

from tests.storage_edge.conftest import Clock, Edge, Origin, StartEdge

RAW = "/group/app/-/raw/main/README.md"

LONG_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"

Fields = list[tuple[str, str]]


@pytest.fixture
async def edge(start_edge: StartEdge) -> Edge:
    """Fields of requests go upstream here, so that a response can vary on them."""
    return await start_edge(forward_all_headers=True, negative_seconds=0.0)


async def _twice(
    edge: Edge,
    origin: Origin,
    clock: Clock,
    fields: Fields,
    *,
    wait: float = 1.0,
    status: int = 200,
    first: dict[str, str] | None = None,
    second: dict[str, str] | None = None,
) -> str:
    """`hit`, `validated` or `miss`: how the second of two requests is answered."""
    entity_tag = dict(fields).get("ETag")
    modified = dict(fields).get("Last-Modified")

    async def handler(request: web.Request) -> web.Response:
        response = web.Response(status=status, body=b"" if status == 204 else b"content")
        for name, value in fields:
            response.headers.add(name, value)
        response.headers.setdefault("Date", origin.date())
        same_tag = entity_tag is not None and request.headers.get("If-None-Match") == entity_tag
        same_date = modified is not None and request.headers.get("If-Modified-Since") == modified
        if same_tag or same_date:
            return web.Response(status=304, headers=response.headers)
        return response

    origin.handler = handler
    await edge.get(RAW, **(first or {}))
    await edge.settled()
    clock.advance(wait)
    before = len(origin.requests)
    answer = await edge.get(RAW, **(second or {}))
    if len(origin.requests) == before:
        return "hit"
    return "validated" if "fwd-status=304" in answer.cache_status else "miss"


def _ago(clock: Clock, seconds: float) -> str:
    return formatdate(clock.now - seconds, usegmt=True)


# RFC 9111 section 3: storing

STORING: list[tuple[str, Fields, str]] = [
    ("3 no freshness and no validator", [], "miss"),
    ("3 no-store", [("Cache-Control", "max-age=60, no-store")], "miss"),
    ("3 no-store in odd case", [("Cache-Control", "max-age=60, No-StOrE")], "miss"),
    ("3 private", [("Cache-Control", "max-age=60, private"), ("ETag", '"1"')], "miss"),
    ("3 private with s-maxage", [("Cache-Control", "private, s-maxage=60"), ("ETag", '"1"')], "miss"),
    ("3 private with fields", [("Cache-Control", 'max-age=60, private="x"')], "miss"),
    ("3 an unknown directive", [("Cache-Control", "max-age=60, foo=bar")], "hit"),
    ("5.2.2.3 must-understand", [("Cache-Control", "max-age=60, no-store, must-understand")], "hit"),
    ("4.1 Vary: *", [("Cache-Control", "max-age=60"), ("Vary", "*")], "miss"),
    ("4.1 Vary: * in a list", [("Cache-Control", "max-age=60"), ("Vary", "Foo, *")], "miss"),
    ("4.1 Vary: * on a second line", [("Cache-Control", "max-age=60"), ("Vary", ""), ("Vary", "*")], "miss"),
]

FRESHNESS: list[tuple[str, Fields, float, str]] = [
    ("4.2.1 max-age", [("Cache-Control", "max-age=60")], 59, "hit"),
    ("4.2.1 max-age over", [("Cache-Control", "max-age=60")], 61, "miss"),
    ("4.2.1 s-maxage before max-age", [("Cache-Control", "max-age=60, s-maxage=10")], 20, "miss"),
    ("4.2.1 a longer s-maxage", [("Cache-Control", "max-age=0, s-maxage=60")], 20, "hit"),
    ("4.2.1 negative", [("Cache-Control", "max-age=-60")], 0, "miss"),
    ("4.2.1 not a number", [("Cache-Control", "max-age=6a")], 0, "miss"),
    ("4.2.1 too large", [("Cache-Control", "max-age=99999999999999")], 1e6, "hit"),
    ("4.2.1 quoted", [("Cache-Control", 'max-age="60"')], 1, "hit"),
    ("4.2.1 in another's quotes", [("Cache-Control", 'x="a, max-age=60", max-age=1')], 2, "miss"),
    ("4.2.1 on two lines", [("Cache-Control", "max-age=60"), ("Cache-Control", "s-maxage=1")], 2, "miss"),
    ("5.1 Age", [("Cache-Control", "max-age=60"), ("Age", "50")], 20, "miss"),
    ("5.1 an Age that is none", [("Cache-Control", "max-age=60"), ("Age", "50.0")], 20, "hit"),
    ("5.1 the first of two", [("Cache-Control", "max-age=60"), ("Age", "0, 50")], 20, "hit"),
    ("5.3 Expires over max-age", [("Cache-Control", "max-age=60"), ("Expires", "0")], 1, "hit"),
    ("5.3 Expires in the future", [("Expires", "Thu, 18 Aug 2050 02:01:18 GMT")], 1, "hit"),
    ("5.3 asctime", [("Expires", "Thu Aug 18 02:01:18 2050")], 1, "hit"),
    ("5.3 RFC 850", [("Expires", "Thursday, 18-Aug-50 02:01:18 GMT")], 1, "hit"),
    ("5.3 another zone", [("Expires", "Thu, 18 Aug 2050 02:01:18 UTC")], 1, "miss"),
    ("5.3 two digits of a year", [("Expires", "Thu, 18 Aug 50 02:01:18 GMT")], 1, "miss"),
    ("5.3 no such day", [("Expires", "Thu, 31 Feb 2050 02:01:18 GMT")], 1, "miss"),
    ("5.3 zero", [("Expires", "0")], 1, "miss"),
    ("5.2.2.4 no-cache", [("Cache-Control", "max-age=60, no-cache"), ("ETag", '"1"')], 1, "validated"),
    ("9213 2 first", [("Cache-Control", "no-store"), ("CDN-Cache-Control", "max-age=60")], 9, "hit"),
    ("9213 2 shorter", [("Cache-Control", "max-age=60"), ("CDN-Cache-Control", "max-age=1")], 9, "miss"),
    ("9213 2.1 void", [("Cache-Control", "max-age=60"), ("CDN-Cache-Control", "a=1, &&")], 9, "hit"),
    ("9213 2 private", [("Cache-Control", "max-age=60"), ("CDN-Cache-Control", "private")], 9, "miss"),
    ("9213 beside private", [("Cache-Control", "private"), ("CDN-Cache-Control", "max-age=60")], 9, "miss"),
    ("4.3.1 an entity tag", [("Cache-Control", "max-age=1"), ("ETag", '"1"')], 9, "validated"),
    ("4.3.1 a weak one", [("Cache-Control", "max-age=1"), ("ETag", 'W/"1"')], 9, "validated"),
    ("4.3.1 a date", [("Cache-Control", "max-age=1"), ("Last-Modified", LONG_AGO)], 9, "validated"),
]

REQUESTS: list[tuple[str, dict[str, str], str]] = [
    ("5.2.1.4 no-cache", {"Cache_Control": "no-cache"}, "validated"),
    ("5.2.1.1 max-age=0", {"Cache_Control": "max-age=0"}, "validated"),
    ("5.2.1.1 max-age", {"Cache_Control": "max-age=5"}, "validated"),
    ("5.2.1.1 a larger max-age", {"Cache_Control": "max-age=50"}, "hit"),
    ("5.2.1.3 min-fresh", {"Cache_Control": "min-fresh=55"}, "validated"),
    ("5.2.1.7 only-if-cached", {"Cache_Control": "only-if-cached"}, "hit"),
    ("5.4 Pragma", {"Pragma": "no-cache"}, "hit"),
]

VARYING: list[tuple[str, str, str, str]] = [
    ("4.1 the same", "a", "a", "hit"),
    ("4.1 another", "a", "b", "miss"),
    ("4.1 other space", "1,2", " 1 , 2 ", "hit"),
    ("4.1 another order", "1,2", "2,1", "miss"),
]


@pytest.mark.parametrize(
    ("fields", "expected"), [row[1:] for row in STORING], ids=[row[0] for row in STORING]
)
async def test_storing(edge: Edge, origin: Origin, clock: Clock, fields: Fields, expected: str) -> None:
    assert await _twice(edge, origin, clock, fields) == expected


@pytest.mark.parametrize(
    ("fields", "wait", "expected"), [row[1:] for row in FRESHNESS], ids=[row[0] for row in FRESHNESS]
)
async def test_freshness(
    edge: Edge, origin: Origin, clock: Clock, fields: Fields, wait: float, expected: str
) -> None:
    assert await _twice(edge, origin, clock, fields, wait=wait) == expected


@pytest.mark.parametrize(
    ("second", "expected"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS]
)
async def test_request_directives(
    edge: Edge, origin: Origin, clock: Clock, second: dict[str, str], expected: str
) -> None:
    fields = [("Cache-Control", "max-age=60"), ("ETag", '"1"')]
    assert await _twice(edge, origin, clock, fields, wait=10, second=second) == expected


@pytest.mark.parametrize(
    ("one", "two", "expected"), [row[1:] for row in VARYING], ids=[row[0] for row in VARYING]
)
async def test_vary(edge: Edge, origin: Origin, clock: Clock, one: str, two: str, expected: str) -> None:
    fields = [("Cache-Control", "max-age=60"), ("Vary", "Foo")]
    assert await _twice(edge, origin, clock, fields, first={"Foo": one}, second={"Foo": two}) == expected


@pytest.mark.parametrize("status", [200, 203, 204, 301, 404, 410, 501])
@pytest.mark.parametrize(("modified", "expected"), [(864_000, "hit"), (5, "validated")])
async def test_4_2_2_heuristics_guess_a_tenth_where_the_status_allows_it(
    edge: Edge, origin: Origin, clock: Clock, status: int, modified: float, expected: str
) -> None:
    fields = [("Last-Modified", _ago(clock, modified))]
    assert await _twice(edge, origin, clock, fields, status=status, wait=100) == expected


@pytest.mark.parametrize("status", [201, 302, 400, 500, 502, 503])
async def test_4_2_2_other_statuses_are_not_guessed_about(
    edge: Edge, origin: Origin, clock: Clock, status: int
) -> None:
    fields = [("Last-Modified", _ago(clock, 864_000))]
    assert await _twice(edge, origin, clock, fields, status=status) != "hit"


@pytest.mark.parametrize(
    ("cache_control", "expected"),
    [
        ("max-age=60", "miss"),
        ("max-age=60, public", "hit"),
        ("s-maxage=60", "hit"),
        ("max-age=60, must-revalidate", "hit"),
    ],
)
async def test_3_5_what_credentials_had_part_in_is_shared_only_where_it_says_so(
    edge: Edge, origin: Origin, clock: Clock, cache_control: str, expected: str
) -> None:
    fields = [("Cache-Control", cache_control)]
    assert await _twice(edge, origin, clock, fields, first={"Authorization": "Basic eDp5"}) == expected


async def test_3_1_fields_of_one_connection_are_not_kept(edge: Edge, origin: Origin) -> None:
    origin.answers(Connection="X-Hop", X_Hop="1", Keep_Alive="timeout=5", Proxy_Authenticate="x", X_End="1")
    for answer in (await edge.get(RAW), await edge.get(RAW)):
        assert not {"X-Hop", "Keep-Alive", "Proxy-Authenticate"} & set(answer.headers)
        assert answer.headers["X-End"] == "1"


async def test_3_2_a_304_updates_what_is_stored_but_not_what_describes_its_bytes(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"text", cache_control="max-age=1", X_Version="1", Content_Type="text/plain")
    await edge.get(RAW)
    await edge.settled()
    clock.advance(5)
    origin.answers(b"text", cache_control="max-age=100", X_Version="2", Content_Type="image/png")
    await edge.get(RAW)
    await edge.settled()
    answer = await edge.get(RAW)
    assert (answer.headers["X-Version"], answer.headers["Content-Type"]) == ("2", "text/plain")
    assert (answer.headers["Cache-Control"], answer.body) == ("max-age=100", b"text")
    assert len(origin.requests) == 2


async def test_4_3_5_a_head_freshens_what_it_describes(edge: Edge, origin: Origin, clock: Clock) -> None:
    origin.answers(b"text", cache_control="max-age=1", etag=None)
    await edge.get(RAW)
    await edge.settled()
    clock.advance(5)
    origin.answers(b"text", cache_control="max-age=100", etag=None)
    await edge.get(RAW, "HEAD")
    assert (await edge.get(RAW)).cache_status.startswith("forgelet-edge; hit")


async def test_4_3_5_a_head_of_another_length_makes_stale(edge: Edge, origin: Origin, clock: Clock) -> None:
    origin.answers(b"text", cache_control="max-age=1", etag=None)
    await edge.get(RAW)
    await edge.settled()
    clock.advance(5)
    origin.answers(b"longer text", cache_control="max-age=100", etag=None)
    await edge.get(RAW, "HEAD")
    assert (await edge.get(RAW)).body == b"longer text"


async def test_5_2_2_4_fields_listed_in_no_cache_are_not_reused(edge: Edge, origin: Origin) -> None:
    origin.answers(cache_control='max-age=60, no-cache="X-A"', X_A="1", X_B="1")
    first, second = await edge.get(RAW), await edge.get(RAW)
    assert ("X-A" in first.headers, "X-A" in second.headers, "X-B" in second.headers) == (True, False, True)


async def test_5_2_1_7_only_if_cached_without_anything_is_504(edge: Edge, origin: Origin) -> None:
    assert (await edge.get(RAW, Cache_Control="only-if-cached")).status == 504
    assert origin.requests == []


@pytest.mark.parametrize(
    ("condition", "status"),
    [({"If_None_Match": '"v1"'}, 304), ({"If_None_Match": 'W/"v1"'}, 304), ({"If_None_Match": '"x", "v1"'},
    304),
     ({"If_None_Match": "*"}, 304), ({"If_None_Match": '"x"'}, 200), ({"If_None_Match": "v1"}, 304)],
)  # fmt: skip
async def test_9110_13_if_none_match_is_compared_weakly(
    edge: Edge, origin: Origin, condition: dict[str, str], status: int
) -> None:
    origin.answers()
    for _ in range(2):
        assert (await edge.get(RAW, **condition)).status == status


async def test_9110_13_if_none_match_comes_before_if_modified_since(
    edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(Last_Modified=_ago(clock, 1000))
    await edge.get(RAW)
    old, new = _ago(clock, 2000), _ago(clock, 500)
    assert (await edge.get(RAW, If_Modified_Since=new)).status == 304
    assert (await edge.get(RAW, If_Modified_Since=old)).status == 200
    assert (await edge.get(RAW, If_Modified_Since=old, If_None_Match='"v1"')).status == 304
    assert (await edge.get(RAW, If_Modified_Since=new, If_None_Match='"x"')).status == 200


async def test_9211_cache_status_says_what_happened(edge: Edge, origin: Origin, clock: Clock) -> None:
    origin.answers(cache_control="max-age=60")
    miss = await edge.get(RAW)
    clock.advance(10)
    hit = await edge.get(RAW)
    assert miss.cache_status == "forgelet-edge; fwd=uri-miss; stored"
    assert hit.cache_status.startswith("forgelet-edge; hit; ttl=")
    assert 45 <= int(hit.cache_status.rsplit("=", 1)[1]) <= 50
    assert int(hit.headers["Age"]) >= 10
    assert hit.headers["Date"] == miss.headers["Date"]
