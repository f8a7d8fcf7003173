"""What a 304 is about, and to whom it may be said (RFC 9111 section 4.3.3 to 4.3.5, RFC 9110 section 15.4.5)."""

from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from tests.storage_edge.conftest import Answer, Clock, Edge, Origin, StartEdge
from tests.support.logs import lines_of_edges

RAW = "/group/app/-/raw/main/README.md"
MONDAY, TUESDAY = "Mon, 05 Jan 2026 10:00:00 GMT", "Tue, 06 Jan 2026 10:00:00 GMT"
Fields = dict[str, str]


@pytest.fixture
def mistaken(origin: Origin) -> Callable[[Fields], None]:
    """From now on the origin has b"new", but says 304 with these fields whenever it is asked with a condition."""

    def be_mistaken(fields: Fields) -> None:
        async def handler(request: web.Request) -> web.Response:
            conditional = {"If-None-Match", "If-Modified-Since"} & set(request.headers)
            common = {"Cache-Control": "public, max-age=60", "Date": origin.date(), "X-Version": "new"}
            if conditional:
                return web.Response(status=304, headers={**common, **fields})
            return web.Response(body=b"new", headers={**common, "ETag": '"new"'})

        origin.handler = handler

    return be_mistaken


async def _stored(edge: Edge, origin: Origin, clock: Clock, fields: Fields, target: str = RAW) -> None:
    """b"old" is stored with these fields, and stale."""
    origin.answers(b"old", etag=None, X_Version="old", **fields)
    assert (await edge.get(target)).body == b"old"
    await edge.settled()
    clock.advance(100)


def _seen(answer: Answer) -> tuple[int, bytes, str | None]:
    return answer.status, answer.body, answer.headers.get("X-Version")


#: What is stored, what the 304 says, and whether it is about what is stored.
SELECTING: list[tuple[str, Fields, Fields, bool]] = [
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
    edge: Edge, origin: Origin, clock: Clock, mistaken: Callable[[Fields], None],
    stored: Fields, said: Fields, selects: bool, method: str,
) -> None:  # fmt: skip
    """The response to HEAD is of the version that the response to GET is of."""
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
    start_edge: StartEdge, origin: Origin, mistaken: Callable[[Fields], None], tmp_path: Path
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
    edge: Edge, origin: Origin, clock: Clock, method: str, conditions: Fields, is_stored: bool
) -> None:
    """A client's own condition is evaluated here, against the origin's 200; it never reaches the origin."""
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
