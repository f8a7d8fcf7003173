"""In front of an origin that answers as GitLab's documents say (see docs/edge-gitlab.md)."""

from email.utils import formatdate
from typing import Any

import pytest
from aiohttp import web
from typed_settings import SecretStr

from tests.storage_edge.conftest import STORAGE_TOKEN, Clock, Edge, Origin, StartEdge
from tests.storage_edge.test_operators import ask

PUBLIC = "/group/public/-/raw/main/README.md"
PRIVATE = "/group/private/-/raw/main/README.md"
USERS_TOKEN = "glsoat-of-alice"
STORAGE = "https://static.example.org"


def gitlab(clock: Clock, *, allowed: bool = False, storage_token: str = STORAGE_TOKEN) -> Any:
    """The project is found first, and who may see it; then the storage's token is looked at, and one that is missing
    makes a user of whoever asks."""

    async def handler(request: web.Request) -> web.StreamResponse:
        if request.path.startswith("/-/"):  # those of the monitoring list alone
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
    async with edge.session.get(f"{edge.url}/-/readiness") as answer:
        return answer.status, (await answer.json())["origin"]


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
    clock.advance(61)  # nobody tells of what has changed: it is asked for again
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
