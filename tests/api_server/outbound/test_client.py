"""The session for outgoing requests: what it connects to has been checked just before."""

from collections.abc import AsyncIterator

import aiohttp
import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.outbound.client import create_session
from api_server.outbound.destinations import BlockedError, Destination
from api_server.outbound.policy import AllowList, Policy, check_url
from tests.api_server.outbound.resolvers import ScriptedResolver

PUBLIC = ["203.0.113.7"]
LOCAL = ["127.0.0.1"]


@attrs.define
class Outside:
    """A session, the settings and the resolver it works with, and a server on loopback."""

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
