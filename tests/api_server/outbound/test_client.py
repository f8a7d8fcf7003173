"""Outgoing requests connect to the checked addresses, and URLs are sent byte for byte as users wrote them."""

import asyncio
import contextlib
import datetime
from collections.abc import AsyncIterator

import aiohttp
import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.outbound.client import create_session
from api_server.outbound.destinations import BlockedError, Destination, without_secrets, written_url
from api_server.outbound.edges import EdgeApi
from api_server.outbound.policy import AllowList, Policy, check_url
from api_server.status_checks.attempts import Message, send
from tests.api_server.outbound.resolvers import ScriptedResolver

PUBLIC = ["203.0.113.7"]
LOCAL = ["127.0.0.1"]


@attrs.define
class Outside:
    """A session with its settings and its resolver, and a server on loopback."""

    session: aiohttp.ClientSession
    resolver: ScriptedResolver
    port: int
    policy: Policy = attrs.field(factory=Policy)
    requests: list[web.Request] = attrs.field(factory=list)

    async def get(self, url: str, **options: bool) -> str:
        async with self.session.get(f"{url}:{self.port}/", **options) as response:
            return await response.text()


@pytest.fixture
async def outside() -> AsyncIterator[Outside]:
    async def answer(request: web.Request) -> web.Response:
        world.requests.append(request)
        if request.path == "/redirect":
            return web.Response(status=307, headers={"Location": "http://localhost/"})
        return web.Response(text="reached", headers={"Set-Cookie": "seen=1"})

    async def policy() -> Policy:
        return world.policy

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", answer)
    resolver = ScriptedResolver(rebinding=[PUBLIC, LOCAL], local=[LOCAL], mixed=[[*PUBLIC, *LOCAL]])
    async with (
        TestServer(application, host="127.0.0.1") as server,
        create_session(
            policy, resolver, timeout=aiohttp.ClientTimeout(total=5), user_agent="forgelet"
        ) as session,
    ):
        world = Outside(session, resolver, server.port or 0)
        yield world


async def test_a_name_that_changes_its_answer_after_the_check_is_refused_on_connecting(
    outside: Outside,
) -> None:
    url = "http://rebinding.example.org"
    await check_url(url, outside.policy, outside.resolver, schemes=("http",))
    with pytest.raises(BlockedError, match="loopback"):
        await outside.get(url)
    assert outside.requests == []


async def test_the_checked_answer_is_the_one_that_is_connected_to(outside: Outside) -> None:
    outside.policy = Policy(allow_list=AllowList.parse(["127.0.0.1"]))
    outside.resolver.answers["turning.example.org"] = [LOCAL, ["192.0.2.1"]]
    assert await outside.get("http://turning.example.org") == "reached"
    assert outside.resolver.calls == ["turning.example.org"]


@pytest.mark.parametrize(
    "host",
    [
        "127.0.0.1",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "2130706433",
        "0x7f.1",
        "0x7f000001",
        "127.1",
        "0",
        "localhost",
        "localhost.",
        "x.localhost",
        "local.example.org",
        "mixed.example.org",
    ],
)
async def test_no_spelling_of_a_local_host_is_reached(outside: Outside, host: str) -> None:
    outside.resolver.answers |= {"0x7f.1": [LOCAL], "0x7f000001": [LOCAL]}
    with pytest.raises(BlockedError):
        await outside.get(f"http://{host}")
    assert outside.requests == []


async def test_what_the_settings_allow_is_reached_and_no_longer_when_they_change(outside: Outside) -> None:
    for policy in (
        Policy(allow_local_requests=True),
        Policy(allow_list=AllowList.parse([f"127.0.0.1:{outside.port}"])),
        Policy(allow_list=AllowList.parse(["local.example.org"])),
        Policy(instance=Destination("http", "local.example.org", outside.port)),
    ):
        outside.policy = policy
        assert await outside.get("http://local.example.org") == "reached"
        outside.policy = Policy()
        with pytest.raises(BlockedError):
            await outside.get("http://127.0.0.1")


async def test_a_followed_redirect_is_checked_like_a_first_request(outside: Outside) -> None:
    outside.policy = Policy(allow_list=AllowList.parse([f"127.0.0.1:{outside.port}"]))
    with pytest.raises(BlockedError, match="localhost"):
        await outside.session.get(f"http://127.0.0.1:{outside.port}/redirect")
    assert [request.path for request in outside.requests] == ["/redirect"]


async def test_a_proxy_of_the_environment_is_not_used_and_no_cookie_kept(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{outside.port}")
    outside.policy = Policy(allow_list=AllowList.parse(["127.0.0.1"]))
    for _ in range(2):
        await outside.get("http://local.example.org")
    assert [request.headers.get("Cookie") for request in outside.requests] == [None, None]
    assert {request.host for request in outside.requests} == {f"local.example.org:{outside.port}"}
    assert {request.headers["User-Agent"] for request in outside.requests} == {"forgelet"}


async def test_an_unknown_name_is_a_connection_error(outside: Outside) -> None:
    with pytest.raises(aiohttp.ClientConnectorDNSError):
        await outside.get("http://unknown.example.org")


#: The rest of a URL after scheme and authority, and the request target that is sent.
TARGETS = {
    "": "/", "/": "/", "/?": "/?", "?a=b": "/?a=b",
    "/invoke?sp=%2Ftriggers%2Frun&sig=a%2Bb%2Fc%3D%3D": "/invoke?sp=%2Ftriggers%2Frun&sig=a%2Bb%2Fc%3D%3D",
    "/%7Ee/%41%2d%5f": "/%7Ee/%41%2d%5f", "/%e2%82%ac": "/%e2%82%ac", "/a/./x/../y": "/a/./x/../y",
    "//a//": "//a//", "/a%2Fb%5Cc%00": "/a%2Fb%5Cc%00", "/a%zz%": "/a%zz%", "/a+b?c+d=e%20f": "/a+b?c+d=e%20f",
    "/!$&'()*+,;=:@-._~[]": "/!$&'()*+,;=:@-._~[]", "/?a=1&a=2;b&&c==/?:@": "/?a=1&a=2;b&&c==/?:@", "/a#b?c": "/a",
    "/a?b#c": "/a?b", "/é?ü=%C3%BC€": "/%C3%A9?%C3%BC=%C3%BC%E2%82%AC", "/a b?c d": "/a%20b?c%20d",
    "/\U0001f642": "/%F0%9F%99%82",
}  # fmt: skip
AUTHORITIES = {
    "https://example.org": ("https", None, None, "example.org", 443),
    "HTTP://Example.ORG:8080": ("http", None, None, "example.org", 8080),
    "http://ann:p%40s%3as@example.org:80": ("http", "ann", "p@s:s", "example.org", 80),
    "https://bücher.example": ("https", None, None, "xn--bcher-kva.example", 443),
    "https://[2001:db8::1]:8443": ("https", None, None, "2001:db8::1", 8443),
    "http://h.": ("http", None, None, "h.", 80),
}


def test_path_and_query_stay_and_what_cannot_stand_in_a_request_is_encoded() -> None:
    for authority, wanted in AUTHORITIES.items():
        for rest, target in TARGETS.items():
            url = written_url(authority + rest)
            found = (url.scheme, url.user, url.password, url.raw_host, url.port)
            assert (authority, rest, found, url.raw_path_qs) == (authority, rest, wanted, target)


def test_what_is_no_url_is_a_value_error() -> None:
    paths = ("", "a", "/a", "http:", "http://", "http:///a", "mailto:ann@example.org", "http://a/\ud800")
    for text in (*paths, "http://[", "http://a:b/", "http://\ud800/"):
        with pytest.raises(ValueError, match=r"."):
            written_url(text)


def test_what_anybody_may_read_of_a_url_is_as_written() -> None:
    shown = {
        "https://ann:secret@h/%7Ee/./%2F?token=x#y": "https://h/%7Ee/./%2F",
        "https://H:443//a": "https://H:443//a",
        "https://h?x": "https://h",
        "http://[": "[not a URL]",
    }
    assert {url: without_secrets(url) for url in shown} == shown


@attrs.define
class Wire:
    """A server that stores the first line of each request and answers it."""

    port: int = 0
    lines: list[str] = attrs.field(factory=list)
    answers: dict[str, bytes] = attrs.field(factory=dict)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            self.lines.append(head.partition("\r\n")[0])
            writer.write(self.answers.get(head.split(" ")[1], b"HTTP/1.1 200 OK\r\n\r\n{}"))
        writer.close()


@pytest.fixture
async def wire() -> AsyncIterator[Wire]:
    wire = Wire()
    server = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
    wire.port = server.sockets[0].getsockname()[1]
    async with server:
        yield wire


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async def policy() -> Policy:
        return Policy(allow_local_requests=True)

    resolver = ScriptedResolver(local=[["127.0.0.1"]])
    timeout = aiohttp.ClientTimeout(total=5)
    async with create_session(policy, resolver, timeout=timeout, user_agent="forgelet") as session:
        yield session


async def test_a_delivery_leaves_as_its_url_is_written(wire: Wire, session: aiohttp.ClientSession) -> None:
    for rest, target in TARGETS.items():
        message = Message(
            url=f"http://local.example.org:{wire.port}{rest}",
            body="{}",
            webhook_id="1",
            attempt=1,
            secret=None,
        )
        outcome = await send(session, message, datetime.datetime.now(datetime.UTC))
        assert (rest, outcome.status, wire.lines.pop()) == (rest, 200, f"POST {target} HTTP/1.1")


async def test_an_edge_is_called_at_its_url_as_the_operator_writes_it(
    wire: Wire, session: aiohttp.ClientSession
) -> None:
    edge = EdgeApi(f"http://127.0.0.1:{wire.port}/%7Ee/./x%2Fy/", "token", session, 5.0)
    assert await edge.status() == {}
    wire.answers["/%7Ee/./x%2Fy/-/stored?prefix=%2Fa%2Fb+%C3%BC&limit=7&after=%2B%26"] = (
        b'HTTP/1.1 200 OK\r\n\r\n{"stored": []}'
    )
    assert await edge.stored("/a/b ü", after="+&", limit=7) == ([], None)
    assert wire.lines[0] == "GET /%7Ee/./x%2Fy/-/status HTTP/1.1"


#: A redirect of the receiver's, and the following request target.
REDIRECTS = {
    "/%7Ee?sig=a%2Fb%3D": "/%7Ee?sig=a%2Fb%3D",
    "http://local.example.org:{port}/%2Fa/./?b%2Fc": "/%2Fa/./?b%2Fc",
    "/a/./b%2F..": "/a/b%2F..",  # a reference is merged with its base (RFC 3986 section 5.2)
    "y%2Fz?q=%2F": "/start/y%2Fz?q=%2F",
    "?q=%2F": "/start/x?q=%2F",
    "/\xc3\xa9": "/\xc3\xa9",
}


async def test_a_redirect_is_followed_as_the_receiver_writes_it(
    wire: Wire, session: aiohttp.ClientSession
) -> None:
    for location, target in REDIRECTS.items():
        field = location.format(port=wire.port).encode("latin-1")
        wire.answers["/start/x"] = b"HTTP/1.1 302 Found\r\nLocation: " + field + b"\r\n\r\n"
        async with session.get(written_url(f"http://127.0.0.1:{wire.port}/start/x")) as answer:
            assert answer.status == 200
        assert (location, wire.lines.pop()) == (location, f"GET {target} HTTP/1.1")


@pytest.mark.parametrize(
    "location", ["/a b", "http://-h/", "http://%6cocalhost/", "http://[::1/", "ftp://h/", "http://h:0/"]
)
async def test_a_redirect_to_what_is_no_url_is_refused(
    wire: Wire, session: aiohttp.ClientSession, location: str
) -> None:
    wire.answers["/x"] = f"HTTP/1.1 302 Found\r\nLocation: {location}\r\n\r\n".encode()
    with pytest.raises((BlockedError, aiohttp.ClientError, ValueError)):
        await session.get(written_url(f"http://127.0.0.1:{wire.port}/x"))
    assert wire.lines == ["GET /x HTTP/1.1"]


async def test_what_tests_send_to_other_machines_is_lost() -> None:
    async with aiohttp.ClientSession() as session:
        with pytest.raises(aiohttp.ConnectionTimeoutError):
            await session.get("http://203.0.113.7/", timeout=aiohttp.ClientTimeout(sock_connect=0.2))
