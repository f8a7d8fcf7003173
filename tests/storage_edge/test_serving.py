"""The document's rules for external storage: what the edge forwards, stores, refuses and answers itself."""

from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from multidict import CIMultiDict
from typed_settings import SecretStr

from storage_edge.rules import storing
from tests.storage_edge.conftest import (
    PURGE_TOKEN,
    RAW,
    STORAGE_TOKEN,
    Answer,
    Clock,
    Edge,
    Origin,
    StartEdge,
)
from tests.storage_edge.origins import head, talk
from tests.storage_edge.test_operators import ask

ARCHIVE = "/group/app/-/archive/main/app-main.tar.gz"


@pytest.mark.parametrize("target", ["/", "/group/app", "/group/app/-/tree/main", "/raw", "/favicon.ico"])
async def test_a_path_without_a_marker_is_400_with_an_empty_body(
    edge: Edge, origin: Origin, target: str
) -> None:
    answer = await edge.get(target)
    assert (answer.status, answer.body) == (400, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert origin.requests == []


async def test_the_origin_gets_both_tokens_and_only_the_parameters_that_count(
    edge: Edge, origin: Origin
) -> None:
    origin.answers(cache_control="private, max-age=60")
    await edge.get(f"{ARCHIVE}?path=docs&append_sha=false&inline=true&token=flso-1&cb=7")
    (request,) = origin.requests
    assert request.raw_path == f"{ARCHIVE}?append_sha=false&path=docs"
    assert request.headers["X-Service-External-Storage-Token"] == STORAGE_TOKEN
    assert request.headers["X-Service-Static-Object-Token"] == "flso-1"


async def test_nothing_else_of_the_client_reaches_the_origin(edge: Edge, origin: Origin) -> None:
    origin.answers()
    await edge.get(
        RAW,
        Cookie="session=1",
        Authorization="Bearer x",
        Private_Token="flpat-x",
        X_Forwarded_For="203.0.113.9",
        X_Forwarded_Host="evil.example.org",
        X_Service_External_Storage_Token="forged",
        X_Service_Static_Object_Token="forged",
        Sec_Fetch_Mode="cors",
        Accept="image/png",
        Range="bytes=0-1",
        If_None_Match='"old"',
    )
    (request,) = origin.requests
    told = {"Cdn-Loop", "Host", "Via", "X-Forwarded-For", "X-Request-Id", "X-Service-External-Storage-Token"}
    assert {name.title() for name in request.headers} <= told
    assert request.headers["X-Service-External-Storage-Token"] == STORAGE_TOKEN
    assert request.headers["X-Forwarded-For"] == "127.0.0.1"


async def test_the_second_request_is_a_hit_with_an_age(edge: Edge, origin: Origin, clock: Clock) -> None:
    origin.answers(b"hello")
    first = await edge.get(RAW)
    clock.advance(7)
    second = await edge.get(RAW)
    assert (first.body, second.body) == (b"hello", b"hello")
    assert first.cache_status == "forgelet-edge; fwd=uri-miss; stored"
    assert second.cache_status.startswith("forgelet-edge; hit; ttl=")
    assert int(second.headers["Age"]) >= 7
    assert len(origin.requests) == 1


async def test_junk_parameters_share_one_stored_object(edge: Edge, origin: Origin) -> None:
    origin.answers()
    for number in range(5):
        assert (await edge.get(f"{RAW}?cb={number}")).status == 200
    assert len(origin.requests) == 1


async def test_set_cookie_is_neither_kept_nor_passed_on(edge: Edge, origin: Origin) -> None:
    origin.answers(Set_Cookie="session=1", Surrogate_Key="project-1")
    for answer in (await edge.get(RAW), await edge.get(RAW)):
        assert not {"Set-Cookie", "Surrogate-Key"} & set(answer.headers)
    assert len(origin.requests) == 1


async def test_a_preflight_needs_all_three_fields(edge: Edge) -> None:
    preflight = await edge.get(
        RAW,
        "OPTIONS",
        Origin="https://example.org",
        Access_Control_Request_Method="GET",
        Access_Control_Request_Headers="range",
    )
    plain = await edge.get(RAW, "OPTIONS", Origin="https://example.org")
    assert preflight.headers["Access-Control-Allow-Methods"] == "GET, HEAD, OPTIONS"
    assert "X-Csrf-Token" in preflight.headers["Access-Control-Allow-Headers"]
    assert plain.headers["Allow"] == "GET, HEAD, OPTIONS"
    assert "Access-Control-Allow-Methods" not in plain.headers


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "PURGE", "TRACE"])
async def test_other_methods_are_405_with_allow(edge: Edge, origin: Origin, method: str) -> None:
    answer = await edge.get(RAW, method)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD, OPTIONS")
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert origin.requests == []


@pytest.mark.parametrize("method", ["OPTIONS", "POST", "GET"])
async def test_a_path_of_nothing_static_is_400_by_whatever_method(
    edge: Edge, origin: Origin, method: str
) -> None:
    answer = await edge.get("/group/app/-/blob/main/README.md", method)
    assert (answer.status, answer.body, "Allow" in answer.headers) == (400, b"", False)
    assert origin.requests == []


@pytest.mark.parametrize(
    ("method", "target", "status", "allow"),
    [
        ("GET", "/group/app/-/raw/main/" + "x" * 8000, 414, None),
        ("OPTIONS", "*", 400, None),
        ("CONNECT", "example.org:443", 400, None),
        ("CONNECT", RAW, 405, "GET, HEAD, OPTIONS"),
    ],
)
async def test_a_target_that_is_no_path_is_refused_as_others_are(
    edge: Edge, origin: Origin, method: str, target: str, status: int, allow: str | None
) -> None:
    async with talk(edge.port) as client:
        answer = (await client.ask(head(target, method=method))).decode()
    assert answer.startswith(f"HTTP/1.1 {status} ")
    assert "\r\nAccess-Control-Allow-Origin: *\r\n" in answer
    assert "\r\nServer: forgelet-edge\r\n" in answer
    assert answer.endswith("\r\n\r\n")  # no body
    assert (f"\r\nAllow: {allow}\r\n" in answer) == (allow is not None)
    assert origin.requests == []


async def test_every_answer_is_safe_to_show(edge: Edge, origin: Origin) -> None:
    origin.answers()
    for answer in (await edge.get(RAW), await edge.get(RAW), await edge.get(RAW, "HEAD")):
        assert answer.headers["Access-Control-Allow-Origin"] == "*"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert "sandbox" in answer.headers["Content-Security-Policy"]
        assert "ETag" in answer.headers["Access-Control-Expose-Headers"]


async def test_head_and_conditions_are_answered_from_the_store(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello", etag='"abc"')
    await edge.get(RAW)
    head = await edge.get(RAW, "HEAD")
    same = await edge.get(RAW, If_None_Match='"abc"')
    assert (head.status, head.headers["Content-Length"], head.body) == (200, "5", b"")
    assert (same.status, same.headers["ETag"], same.body) == (304, '"abc"', b"")
    assert len(origin.requests) == 1


async def test_a_condition_on_a_miss_fills_the_store(edge: Edge, origin: Origin) -> None:
    origin.answers(b"hello", etag='"abc"')
    assert (await edge.get(RAW, If_None_Match='"abc"')).status == 304
    assert (await edge.get(RAW)).body == b"hello"
    assert len(origin.requests) == 1


@pytest.mark.parametrize("length", [1000, 1_000_000])
@pytest.mark.parametrize("warm", [True, False])
async def test_ranges_come_from_the_stored_object(
    edge: Edge, origin: Origin, length: int, warm: bool
) -> None:
    body = bytes(i * i % 251 for i in range(length))
    origin.answers(body)
    if warm:
        await edge.get(RAW)
    one = await edge.get(RAW, Range="bytes=10-19")
    last = await edge.get(RAW, Range="bytes=-5")
    many = await edge.get(RAW, Range="bytes=0-4,100-104")
    beyond = await edge.get(RAW, Range=f"bytes={length}-")
    whole = await edge.get(RAW, Range="bytes=0-4", If_Range='"other"')
    assert (one.status, one.body, one.headers["Content-Range"]) == (206, body[10:20], f"bytes 10-19/{length}")
    assert (last.status, last.body) == (206, body[-5:])
    assert many.status == 206
    assert many.headers["Content-Type"].startswith("multipart/byteranges; boundary=")
    assert body[:5] in many.body
    assert body[100:105] in many.body
    assert (beyond.status, beyond.headers["Content-Range"]) == (416, f"bytes */{length}")
    assert (whole.status, whole.body) == (200, body)
    assert len(origin.requests) == 1


async def test_a_redirect_is_passed_on_and_not_followed(edge: Edge, origin: Origin) -> None:
    async def handler(request: web.Request) -> web.Response:
        return web.Response(
            status=302, headers={"Location": "/users/sign_in", "Cache-Control": "public, max-age=60"}
        )

    origin.handler = handler
    for _ in range(2):
        answer = await edge.get(RAW)
        assert (answer.status, answer.headers["Location"]) == (302, "/users/sign_in")
    assert len(origin.requests) == 2


async def test_an_unreachable_origin_is_502(start_edge: StartEdge) -> None:
    edge = await start_edge(origin="http://127.0.0.1:1")
    answer = await edge.get(RAW)
    assert answer.status == 502
    assert answer.headers["Access-Control-Allow-Origin"] == "*"
    assert b"Traceback" not in answer.body


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("cache_control", ["public, max-age=60", "no-store"])
async def test_an_answer_to_a_token_is_for_its_user_alone(
    edge: Edge, origin: Origin, status: int, cache_control: str
) -> None:
    origin.answers(status=status, cache_control=cache_control, CDN_Cache_Control="max-age=60")
    answer = await edge.get(f"{RAW}?token=flso-1")
    assert answer.headers["Cache-Control"] == "private, no-cache"
    assert "CDN-Cache-Control" not in answer.headers


async def test_the_origin_of_a_gitlab_gets_its_own_header_names(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge(origin_flavour="gitlab")
    origin.answers(cache_control="private, s-maxage=60")
    await edge.get(f"{RAW}?token=glsoat-1")
    (request,) = origin.requests
    assert request.headers["X-Gitlab-External-Storage-Token"] == STORAGE_TOKEN
    assert request.headers["X-Gitlab-Static-Object-Token"] == "glsoat-1"


async def test_readiness_asks_the_origin(edge: Edge, origin: Origin) -> None:
    origin.answers(status=200)
    assert (await edge.get("/-/liveness")).status == 200
    assert (await edge.get("/-/readiness")).status == 200
    origin.answers(status=500)
    assert (await edge.get("/-/readiness")).status == 503
    assert b"edge_requests_total" in (await edge.get("/-/metrics")).body


@pytest.mark.parametrize("body", [b"", b"content", b"x" * 200_000])
@pytest.mark.parametrize("fields", [{}, {"Date": ""}, {"Content_Type": "text/plain", "X_Own": "grün"}])
async def test_a_hit_that_leaves_in_one_write_has_the_fields_of_any_other(
    edge: Edge, origin: Origin, body: bytes, fields: dict[str, str]
) -> None:
    origin.answers(body, **fields)
    await edge.get(RAW)
    await edge.settled()
    plain = await edge.get(RAW, Accept_Encoding="identity")
    other = await edge.get(RAW, Accept_Encoding="identity", Connection="close")
    assert (plain.status, plain.body, other.body) == (200, body, body)
    assert _fields(plain) == _fields(other)
    assert plain.headers["X-Request-Id"] != other.headers["X-Request-Id"]


def _fields(answer: Answer) -> list[tuple[str, str]]:
    """Return the fields that all answers have."""
    own = {"connection", "x-request-id"}
    return sorted((name, value) for name, value in answer.headers.items() if name.lower() not in own)


async def test_pipelined_hits_are_answered_one_after_the_other(edge: Edge, origin: Origin) -> None:
    origin.answers(b"content")
    await edge.get(RAW)
    await edge.settled()
    answers = await edge.raw(f"GET {RAW} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * 3)
    assert answers.count(b"HTTP/1.1 200 OK\r\n") == answers.count(b"\r\n\r\ncontent") == 3


@pytest.mark.parametrize("value", ["a\r\nX-Bad: 1", "a\nb", "a\0b"])
def test_a_field_that_would_not_stay_one_line_is_never_sent(value: str) -> None:
    with pytest.raises(ValueError, match="line break"):
        storing.head_of_200(CIMultiDict({"X-Own": value}), 1, 0.0)


PUBLIC = "/group/public/-/raw/main/README.md"
PRIVATE = "/group/private/-/raw/main/README.md"
USERS_TOKEN = "glsoat-of-alice"
STORAGE = "https://static.example.org"


def gitlab(clock: Clock, *, allowed: bool = False, storage_token: str = STORAGE_TOKEN) -> Any:
    """Return a stand-in for GitLab: it first finds the project and checks who may see it, and then the storage's
    token; without that token, the caller is treated as a user."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/-/"):  # only for addresses in the monitoring list
            return web.Response(status=200 if allowed else 404, text="GitLab OK")
        token = request.query.get("token") or request.headers.get("X-Gitlab-Static-Object-Token")
        if request.path not in {PUBLIC, PRIVATE} or (request.path == PRIVATE and token != USERS_TOKEN):
            return web.Response(status=302, headers={"Location": "http://gitlab/users/sign_in"})
        sent = request.headers.get("X-Gitlab-External-Storage-Token", "")
        if not sent:
            return web.Response(status=302, headers={"Location": STORAGE + request.path_qs})
        if sent != storage_token:
            return web.Response(status=403)
        sight = "public" if request.path == PUBLIC else "private"
        fields = {
            "Cache-Control": f"max-age=60, {sight}, must-revalidate, stale-while-revalidate=60, "
            "stale-if-error=300, s-maxage=60",
            "Date": formatdate(clock.now, usegmt=True),
            "ETag": '"0123456789abcdef"',
            "Content-Type": "text/plain; charset=utf-8",
            "X-Content-Type-Options": "nosniff",
        }
        if request.headers.get("If-None-Match") == fields["ETag"]:
            return web.Response(status=304, headers=fields)
        return web.Response(text="hello", headers={**fields, "Set-Cookie": "_gitlab_session=1"})

    return handler


async def _started(start_edge: StartEdge, **settings: object) -> Edge:
    return await start_edge(origin_flavour="gitlab", **settings)


async def _readiness(edge: Edge) -> tuple[int, dict[str, Any]]:
    status, whole = await edge.readiness()
    return status, whole["origin"]


async def test_public_and_private_objects(start_edge: StartEdge, origin: Origin, clock: Clock) -> None:
    edge = await _started(start_edge)
    origin.handler = gitlab(clock)
    for expected in ("fwd=uri-miss; stored", "; hit; ttl=60"):
        answer = await edge.get(PUBLIC)
        assert (answer.status, answer.body, expected in answer.cache_status) == (200, b"hello", True)
        assert "Set-Cookie" not in answer.headers
        await edge.settled()
    for token, status in ((USERS_TOKEN, 200), (USERS_TOKEN, 200), ("glsoat-wrong", 302)):
        answer = await edge.get(f"{PRIVATE}?token={token}")
        assert answer.status == status
        await edge.settled()
    assert answer.headers["Location"].endswith("/users/sign_in")
    assert (await edge.get(PRIVATE)).status == 302
    clock.advance(61)  # there is no notification of the change, so it is requested again
    assert "fwd-status=304" in (await edge.get(PUBLIC)).cache_status


@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    ("ours", "path", "status", "token", "words"),
    [
        (STORAGE_TOKEN, PUBLIC, 200, "right", None),
        ("wrong", PUBLIC, 503, "wrong", "The storage token is wrong"),
        ("", PUBLIC, 200, "unknown", "No storage token is set"),
        (STORAGE_TOKEN, PRIVATE, 200, "unknown", None),
        ("wrong", "", 200, "unknown", None),
    ],
)
async def test_readiness_says_what_it_can_of_the_token(
    start_edge: StartEdge, origin: Origin, clock: Clock,
    allowed: bool, ours: str, path: str, status: int, token: str, words: str | None,
) -> None:  # fmt: skip
    edge = await _started(start_edge, storage_token=SecretStr(ours), origin_check_path=path)
    origin.handler = gitlab(clock, allowed=allowed)
    ready, said = await _readiness(edge)
    assert (ready, words is None or words in said["message"]) == (status, True), said
    assert (await ask(edge, "/-/status"))["origin"]["token"] == token


async def test_users_requests_tell_as_well(start_edge: StartEdge, origin: Origin, clock: Clock) -> None:
    edge = await _started(start_edge)
    origin.handler = gitlab(clock)
    await edge.get(PUBLIC)
    assert (await ask(edge, "/-/status"))["origin"]["token"] == "right"
    await edge.settled()
    await edge.purge(prefixes=["/"])
    origin.handler = gitlab(clock, storage_token="changed")
    assert (await edge.get(PUBLIC)).status == 403
    assert (await _readiness(edge))[1]["message"].startswith("The storage token is wrong")


async def test_the_wrong_flavour_is_noticed(start_edge: StartEdge, origin: Origin, clock: Clock) -> None:
    edge = await start_edge()
    origin.handler = gitlab(clock, allowed=True)
    assert (await edge.get(PUBLIC)).status == 302
    status, said = await _readiness(edge)
    assert (status, "origin_flavour" in said["message"]) == (503, True)


async def test_a_gitlab_that_is_down_is_not_ready(start_edge: StartEdge, origin: Origin) -> None:
    edge = await _started(start_edge)
    origin.answers(status=502)
    status, said = await _readiness(edge)
    assert (status, "502" in said["message"]) == (503, True)


async def steer(edge: Edge, name: str, body: object, token: str = PURGE_TOKEN) -> int:
    headers = {"Authorization": f"Bearer {token}"}
    async with edge.session.post(f"{edge.url}/-/testing/{name}", json=body, headers=headers) as answer:
        return answer.status


async def test_what_is_stored_grows_old_with_the_clock(start_edge: StartEdge, origin: Origin) -> None:
    edge = await start_edge(testing=True)
    origin.answers(b"hello")
    asked = []
    for ahead in (0, 59, 61):
        assert await steer(edge, "clock", {"ahead": ahead}) == 204
        assert (await edge.get(RAW)).body == b"hello"
        await edge.settled()
        asked.append(sum(request.method == "GET" for request in origin.requests))
    assert asked == [1, 1, 2]


async def test_a_reset_forgets_everything_and_sets_the_clock_back(
    start_edge: StartEdge, origin: Origin
) -> None:
    edge = await start_edge(testing=True, client_rate=0.001, client_burst=3)
    origin.answers(b"before")
    assert await steer(edge, "clock", {"ahead": 100}) == 204
    for _ in range(3):
        await edge.get(RAW)
        await edge.settled()
    assert (await edge.get(RAW)).status == 429
    origin.answers(b"after", etag='"v2"')
    assert await steer(edge, "reset", {"ahead": 0}) == 204
    answer = await edge.get(RAW)
    assert (answer.status, answer.body) == (200, b"after")


@pytest.mark.parametrize("name", ["clock", "reset"])
async def test_only_who_has_the_purge_token_steers_and_only_an_edge_for_tests(
    start_edge: StartEdge, name: str
) -> None:
    edge = await start_edge(testing=True)
    assert await steer(edge, name, {"ahead": 0}, token="wrong") == 401
    assert [await steer(edge, name, body) for body in ({}, [], {"ahead": "1"})] == [400, 400, 400]
    usual = await start_edge(data_dir=None)
    assert await steer(usual, name, {"ahead": 0}) == 404
