"""Caching by RFC 9111: conformance, validation, and updates by a 304."""

import asyncio
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path

import pytest
from aiohttp import web

from tests.storage_edge.conftest import RAW, Answer, Clock, Edge, Origin, StartEdge
from tests.support.logs import lines_of_edges

LONG_AGO = "Thu, 01 Jan 2026 00:00:00 GMT"

Fields = list[tuple[str, str]]


@pytest.fixture
async def forwarding_edge(start_edge: StartEdge) -> Edge:
    """An edge that forwards header fields of requests, so that a response can vary on them."""
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
    """Return `hit`, `validated` or `miss`: how the second of two requests is answered."""
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
async def test_storing(
    forwarding_edge: Edge, origin: Origin, clock: Clock, fields: Fields, expected: str
) -> None:
    assert await _twice(forwarding_edge, origin, clock, fields) == expected


@pytest.mark.parametrize(
    ("fields", "wait", "expected"), [row[1:] for row in FRESHNESS], ids=[row[0] for row in FRESHNESS]
)
async def test_freshness(
    forwarding_edge: Edge, origin: Origin, clock: Clock, fields: Fields, wait: float, expected: str
) -> None:
    assert await _twice(forwarding_edge, origin, clock, fields, wait=wait) == expected


@pytest.mark.parametrize(
    ("second", "expected"), [row[1:] for row in REQUESTS], ids=[row[0] for row in REQUESTS]
)
async def test_request_directives(
    forwarding_edge: Edge, origin: Origin, clock: Clock, second: dict[str, str], expected: str
) -> None:
    fields = [("Cache-Control", "max-age=60"), ("ETag", '"1"')]
    assert await _twice(forwarding_edge, origin, clock, fields, wait=10, second=second) == expected


@pytest.mark.parametrize(
    ("one", "two", "expected"), [row[1:] for row in VARYING], ids=[row[0] for row in VARYING]
)
async def test_vary(
    forwarding_edge: Edge, origin: Origin, clock: Clock, one: str, two: str, expected: str
) -> None:
    fields = [("Cache-Control", "max-age=60"), ("Vary", "Foo")]
    assert (
        await _twice(forwarding_edge, origin, clock, fields, first={"Foo": one}, second={"Foo": two})
        == expected
    )


@pytest.mark.parametrize("status", [200, 203, 204, 301, 404, 410, 501])
@pytest.mark.parametrize(("modified", "expected"), [(864_000, "hit"), (5, "validated")])
async def test_4_2_2_heuristics_guess_a_tenth_where_the_status_allows_it(
    forwarding_edge: Edge, origin: Origin, clock: Clock, status: int, modified: float, expected: str
) -> None:
    fields = [("Last-Modified", _ago(clock, modified))]
    assert await _twice(forwarding_edge, origin, clock, fields, status=status, wait=100) == expected


@pytest.mark.parametrize("status", [201, 302, 400, 500, 502, 503])
async def test_4_2_2_other_statuses_are_not_guessed_about(
    forwarding_edge: Edge, origin: Origin, clock: Clock, status: int
) -> None:
    fields = [("Last-Modified", _ago(clock, 864_000))]
    assert await _twice(forwarding_edge, origin, clock, fields, status=status) != "hit"


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
    forwarding_edge: Edge, origin: Origin, clock: Clock, cache_control: str, expected: str
) -> None:
    fields = [("Cache-Control", cache_control)]
    assert (
        await _twice(forwarding_edge, origin, clock, fields, first={"Authorization": "Basic eDp5"})
        == expected
    )


async def test_3_1_fields_of_one_connection_are_not_kept(forwarding_edge: Edge, origin: Origin) -> None:
    origin.answers(Connection="X-Hop", X_Hop="1", Keep_Alive="timeout=5", Proxy_Authenticate="x", X_End="1")
    for answer in (await forwarding_edge.get(RAW), await forwarding_edge.get(RAW)):
        assert not {"X-Hop", "Keep-Alive", "Proxy-Authenticate"} & set(answer.headers)
        assert answer.headers["X-End"] == "1"


async def test_3_2_a_304_updates_what_is_stored_but_not_what_describes_its_bytes(
    forwarding_edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"text", cache_control="max-age=1", X_Version="1", Content_Type="text/plain")
    await forwarding_edge.get(RAW)
    await forwarding_edge.settled()
    clock.advance(5)
    origin.answers(b"text", cache_control="max-age=100", X_Version="2", Content_Type="image/png")
    await forwarding_edge.get(RAW)
    await forwarding_edge.settled()
    answer = await forwarding_edge.get(RAW)
    assert (answer.headers["X-Version"], answer.headers["Content-Type"]) == ("2", "text/plain")
    assert (answer.headers["Cache-Control"], answer.body) == ("max-age=100", b"text")
    assert len(origin.requests) == 2


async def test_4_3_5_a_head_freshens_what_it_describes(
    forwarding_edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"text", cache_control="max-age=1", etag=None)
    await forwarding_edge.get(RAW)
    await forwarding_edge.settled()
    clock.advance(5)
    origin.answers(b"text", cache_control="max-age=100", etag=None)
    await forwarding_edge.get(RAW, "HEAD")
    assert (await forwarding_edge.get(RAW)).cache_status.startswith("forgelet-edge; hit")


async def test_4_3_5_a_head_of_another_length_makes_stale(
    forwarding_edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(b"text", cache_control="max-age=1", etag=None)
    await forwarding_edge.get(RAW)
    await forwarding_edge.settled()
    clock.advance(5)
    origin.answers(b"longer text", cache_control="max-age=100", etag=None)
    await forwarding_edge.get(RAW, "HEAD")
    assert (await forwarding_edge.get(RAW)).body == b"longer text"


async def test_5_2_2_4_fields_listed_in_no_cache_are_not_reused(
    forwarding_edge: Edge, origin: Origin
) -> None:
    origin.answers(cache_control='max-age=60, no-cache="X-A"', X_A="1", X_B="1")
    first, second = await forwarding_edge.get(RAW), await forwarding_edge.get(RAW)
    assert ("X-A" in first.headers, "X-A" in second.headers, "X-B" in second.headers) == (True, False, True)


async def test_5_2_1_7_only_if_cached_without_anything_is_504(forwarding_edge: Edge, origin: Origin) -> None:
    assert (await forwarding_edge.get(RAW, Cache_Control="only-if-cached")).status == 504
    assert origin.requests == []


@pytest.mark.parametrize(
    ("condition", "status"),
    [({"If_None_Match": '"v1"'}, 304), ({"If_None_Match": 'W/"v1"'}, 304), ({"If_None_Match": '"x", "v1"'},
    304),
     ({"If_None_Match": "*"}, 304), ({"If_None_Match": '"x"'}, 200), ({"If_None_Match": "v1"}, 304)],
)  # fmt: skip
async def test_9110_13_if_none_match_is_compared_weakly(
    forwarding_edge: Edge, origin: Origin, condition: dict[str, str], status: int
) -> None:
    origin.answers()
    for _ in range(2):
        assert (await forwarding_edge.get(RAW, **condition)).status == status


async def test_9110_13_if_none_match_comes_before_if_modified_since(
    forwarding_edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(Last_Modified=_ago(clock, 1000))
    await forwarding_edge.get(RAW)
    old, new = _ago(clock, 2000), _ago(clock, 500)
    assert (await forwarding_edge.get(RAW, If_Modified_Since=new)).status == 304
    assert (await forwarding_edge.get(RAW, If_Modified_Since=old)).status == 200
    assert (await forwarding_edge.get(RAW, If_Modified_Since=old, If_None_Match='"v1"')).status == 304
    assert (await forwarding_edge.get(RAW, If_Modified_Since=new, If_None_Match='"x"')).status == 200


async def test_9211_cache_status_says_what_happened(
    forwarding_edge: Edge, origin: Origin, clock: Clock
) -> None:
    origin.answers(cache_control="max-age=60")
    miss = await forwarding_edge.get(RAW)
    clock.advance(10)
    hit = await forwarding_edge.get(RAW)
    assert miss.cache_status == "forgelet-edge; fwd=uri-miss; stored"
    assert hit.cache_status.startswith("forgelet-edge; hit; ttl=")
    assert 45 <= int(hit.cache_status.rsplit("=", 1)[1]) <= 50
    assert int(hit.headers["Age"]) >= 10
    assert hit.headers["Date"] == miss.headers["Date"]


MONDAY, TUESDAY = "Mon, 05 Jan 2026 10:00:00 GMT", "Tue, 06 Jan 2026 10:00:00 GMT"
SentFields = dict[str, str]


@pytest.fixture
def mistaken(origin: Origin) -> Callable[[SentFields], None]:
    """A function that makes the origin wrong: it has b"new", but answers conditional requests with 304 and these
    fields."""

    def be_mistaken(fields: SentFields) -> None:
        async def handler(request: web.Request) -> web.Response:
            conditional = {"If-None-Match", "If-Modified-Since"} & set(request.headers)
            common = {"Cache-Control": "public, max-age=60", "Date": origin.date(), "X-Version": "new"}
            if conditional:
                return web.Response(status=304, headers={**common, **fields})
            return web.Response(body=b"new", headers={**common, "ETag": '"new"'})

        origin.handler = handler

    return be_mistaken


async def _stored(edge: Edge, origin: Origin, clock: Clock, fields: SentFields, target: str = RAW) -> None:
    """Store b"old" with these fields, and let it become stale."""
    origin.answers(b"old", etag=None, X_Version="old", **fields)
    assert (await edge.get(target)).body == b"old"
    await edge.settled()
    clock.advance(100)


def _seen(answer: Answer) -> tuple[int, bytes, str | None]:
    return answer.status, answer.body, answer.headers.get("X-Version")


#: The stored response, the 304, and whether it selects the stored one.
SELECTING: list[tuple[str, SentFields, SentFields, bool]] = [
    ("the same strong tag", {"ETag": '"a"'}, {"ETag": '"a"'}, True),
    ("another strong tag", {"ETag": '"a"'}, {"ETag": '"b"'}, False),
    ("a strong tag for a weak one", {"ETag": 'W/"a"'}, {"ETag": '"a"'}, False),
    ("a strong tag for a date", {"Last-Modified": MONDAY}, {"ETag": '"a"', "Last-Modified": MONDAY}, False),
    ("the same weak tag", {"ETag": 'W/"a"'}, {"ETag": 'W/"a"'}, True),
    ("the weak form of a strong tag", {"ETag": '"a"'}, {"ETag": 'W/"a"'}, True),
    ("another weak tag", {"ETag": 'W/"a"'}, {"ETag": 'W/"b"'}, False),
    ("a strong tag before a date", {"ETag": '"a"', "Last-Modified": MONDAY},
     {"ETag": '"a"', "Last-Modified": TUESDAY}, True),
    ("a weak tag beside another date", {"ETag": 'W/"a"', "Last-Modified": MONDAY},
     {"ETag": 'W/"a"', "Last-Modified": TUESDAY}, False),
    ("the same date", {"Last-Modified": MONDAY}, {"Last-Modified": MONDAY}, True),
    ("another date", {"Last-Modified": MONDAY}, {"Last-Modified": TUESDAY}, False),
    ("a date for a tag", {"ETag": '"a"'}, {"Last-Modified": MONDAY}, False),
    ("no validator", {"ETag": '"a"'}, {}, True),
]  # fmt: skip


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize(
    ("stored", "said", "selects"), [row[1:] for row in SELECTING], ids=[row[0] for row in SELECTING]
)
async def test_4_3_4_a_304_freshens_only_what_it_is_about(
    edge: Edge, origin: Origin, clock: Clock, mistaken: Callable[[SentFields], None],
    stored: SentFields, said: SentFields, selects: bool, method: str,
) -> None:  # fmt: skip
    """The response to HEAD is of the same version as the response to GET."""
    await _stored(edge, origin, clock, {name.replace("-", "_"): value for name, value in stored.items()})
    mistaken(said)
    answer = await edge.get(RAW, method)
    body = b"" if method == "HEAD" else b"old" if selects else b"new"
    assert _seen(answer) == (200, body, "new")
    asked = ["If-None-Match" in r.headers or "If-Modified-Since" in r.headers for r in origin.requests[1:]]
    assert asked == ([True] if selects else [True, False])
    await edge.settled()
    assert _seen(await edge.get(RAW)) == (200, b"old" if selects else b"new", "new")


async def test_4_3_4_a_private_object_is_not_confirmed_by_a_304_about_another_version(
    edge: Edge, origin: Origin
) -> None:
    origin.answers(b"old", cache_control="private, max-age=0", etag='"old"')
    target = f"{RAW}?token=alice"
    assert (await edge.get(target)).body == b"old"
    await edge.settled()

    async def handler(request: web.Request) -> web.Response:
        status, body = (304, None) if "If-None-Match" in request.headers else (200, b"new")
        headers = {"Cache-Control": "private, max-age=0", "ETag": '"new"', "Date": origin.date()}
        return web.Response(status=status, body=body, headers=headers)

    origin.handler = handler
    assert (await edge.get(target)).body == b"new"
    assert [r.headers.get("If-None-Match") for r in origin.requests] == [None, '"old"', None]
    assert {r.headers["X-Service-Static-Object-Token"] for r in origin.requests} == {"alice"}


async def test_4_3_4_the_shared_copy_is_not_confirmed_by_a_304_about_another_version(
    start_edge: StartEdge, origin: Origin, mistaken: Callable[[SentFields], None], tmp_path: Path
) -> None:
    shared = (tmp_path / "shared").as_uri()
    origin.answers(b"old", etag='"old"')
    first = await start_edge(shared_store_url=shared)
    assert (await first.get(RAW)).body == b"old"
    await first.settled()
    mistaken({"ETag": '"new"'})
    second = await start_edge(shared_store_url=shared, data_dir=tmp_path / "second")
    assert _seen(await second.get(RAW)) == (200, b"new", "new")
    assert [r.headers.get("If-None-Match") for r in origin.requests] == [None, '"old"', None]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
@pytest.mark.parametrize("conditions", [{}, {"If_None_Match": '"v1"'}], ids=["plain", "conditional"])
@pytest.mark.parametrize("is_stored", [False, True], ids=["nothing stored", "stale"])
async def test_a_304_that_the_edge_has_not_asked_for_is_said_to_nobody(
    edge: Edge, origin: Origin, clock: Clock, method: str, conditions: SentFields, is_stored: bool
) -> None:
    """The edge evaluates a client's own condition, with the origin's 200; it never reaches the origin."""
    if is_stored:
        await _stored(edge, origin, clock, {"Last_Modified": MONDAY})

    async def handler(_: web.Request) -> web.Response:
        headers = {"ETag": '"v1"', "Cache-Control": "max-age=60", "Date": origin.date()}
        return web.Response(status=304, headers=headers)

    origin.handler = handler
    with lines_of_edges() as logs:
        answer = await edge.get(RAW, method, **conditions)
    sentence = b"" if method == "HEAD" else b"The origin's answer is none to this request.\n"
    assert (answer.status, answer.body) == (502, sentence)
    assert [(line["event"], line["status"]) for line in logs] == [
        ("origin gave an answer to another question", 304)
    ]
    assert not any("If-None-Match" in request.headers for request in origin.requests)


@pytest.mark.parametrize("cache_control", ["max-age=60", "no-store"])
async def test_a_clients_condition_is_evaluated_at_the_edge(
    edge: Edge, origin: Origin, cache_control: str
) -> None:
    origin.answers(b"body", cache_control=cache_control)
    for _ in range(2):
        assert (await edge.get(RAW, If_None_Match='"v1"')).status == 304
        assert (await edge.get(RAW, If_None_Match='"v2"')).body == b"body"
        assert (await edge.get(RAW)).body == b"body"
    assert not any("If-None-Match" in request.headers for request in origin.requests)


async def test_a_refusal_that_came_meanwhile_stays_one(start_edge: StartEdge, origin: Origin) -> None:
    """It came in the same instant as the validated response."""
    edge = await start_edge()
    origin.answers(b"content")
    await edge.get(RAW)
    await edge.settled()
    await edge.purge(prefixes=[RAW], soft=True)
    asked, gate = asyncio.Event(), asyncio.Event()

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.method == "GET":
            return web.Response(status=404, headers={"Date": origin.date()})
        asked.set()
        await gate.wait()
        return web.Response(status=304, headers={"ETag": '"v1"', "Date": origin.date()})

    origin.handler = handler
    validating = asyncio.create_task(edge.get(RAW, "HEAD"))
    await asked.wait()
    assert (await edge.get(RAW)).status == 404
    gate.set()
    assert (await validating).status == 200
    await edge.settled()
    answer = await edge.get(RAW)
    assert (answer.status, "; hit" in answer.cache_status) == (404, True)


async def test_fields_are_not_given_to_what_another_process_has_put_there(
    start_edge: StartEdge, origin: Origin, clock: Clock
) -> None:
    first, second = await start_edge(), await start_edge()
    origin.answers(b"one", etag='"v1"')
    await first.get(RAW)
    await first.settled()
    clock.advance(61)
    origin.answers(b"another", etag='"v2"')
    await second.get(RAW)
    await second.settled()
    origin.answers(b"one", etag='"v1"')
    assert (await first.get(RAW)).body == b"one"
    await first.settled()
    answer = await (await start_edge()).get(RAW)
    assert (answer.headers["ETag"], answer.body) == ('"v2"', b"another")
