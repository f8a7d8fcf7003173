"""A small real origin, a real edge in front of it, and a clock that tests can move."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer
from multidict import CIMultiDictProxy
from pytest_aiohttp import AiohttpClient, AiohttpServer
from typed_settings import SecretStr
from yarl import URL

from common.serving import serving
from storage_edge.app import create_app, served
from storage_edge.cache.fetching import Fetch, FetchResult
from storage_edge.client.handlers import CACHE
from storage_edge.settings import Settings

STORAGE_TOKEN = "storage-secret"
PURGE_TOKEN = "purge-secret"
#: A file that the edge stores.
RAW = "/group/app/-/raw/main/README.md"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Clock:
    """Seconds since 1970, which the test sets."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


@attrs.define
class Origin:
    """An HTTP server whose answers each test decides; it records the requests."""

    clock: Clock
    url: str = ""
    #: Not in its repr, because hypothesis reports that of a failing example, and fails if it is long.
    requests: list[web.Request] = attrs.field(factory=list, repr=False)
    handler: Handler | None = attrs.field(default=None, repr=False)

    def answers(
        self,
        body: bytes = b"content",
        status: int = 200,
        cache_control: str | None = "public, max-age=60",
        etag: str | None = '"v1"',
        **headers: str,
    ) -> None:
        """Give the same answer to every request, or 304 if If-None-Match contains its entity tag."""
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        if cache_control is not None:
            fields["Cache-Control"] = cache_control
        if etag is not None:
            fields["ETag"] = etag

        async def handler(request: web.Request) -> web.StreamResponse:
            fields["Date"] = headers.get("Date", self.date())
            if etag is not None and request.headers.get("If-None-Match") == etag:
                return web.Response(status=304, headers=fields)
            return web.Response(status=status, body=body, headers=fields)

        self.handler = handler

    def held_back(self) -> tuple[asyncio.Event, asyncio.Event]:
        """Hold back all answers from now on. Return the events that a request has arrived, and that answers may be
        sent."""
        begun, gate = asyncio.Event(), asyncio.Event()
        decide = self.handler
        assert decide is not None

        async def handler(request: web.Request) -> web.StreamResponse:
            response = await decide(request)
            begun.set()
            await gate.wait()
            return response

        self.handler = handler
        return begun, gate

    def date(self) -> str:
        """Return the test's time as a Date."""
        return formatdate(self.clock.now, usegmt=True)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.requests.append(request)
        assert self.handler is not None
        return await self.handler(request)


@attrs.define
class Edge:
    """A running edge and a client session for it."""

    url: str
    port: int
    session: aiohttp.ClientSession
    app: web.Application

    async def get(self, target: str, method: str = "GET", **headers: str) -> "Answer":
        fields = {name.replace("_", "-"): value for name, value in headers.items()}
        url = URL(self.url + target, encoded=True)
        async with self.session.request(method, url, headers=fields, allow_redirects=False) as response:
            return Answer(response.status, response.headers, await response.read())

    async def settled(self) -> None:
        """Wait until everything that is being stored is stored."""
        await self.app[CACHE].settled()

    async def purge(self, token: str = PURGE_TOKEN, **document: object) -> int:
        async with self.session.post(
            f"{self.url}/-/purge", json=document, headers={"Authorization": f"Bearer {token}"}
        ) as response:
            assert response.status == 200, await response.text()
            return int((await response.json())["purged"])

    async def readiness(self) -> tuple[int, Any]:
        async with self.session.get(f"{self.url}/-/readiness") as response:
            return response.status, await response.json()

    async def raw(self, request: bytes) -> bytes:
        """Return the edge's answer to these bytes on a new connection, until it sends nothing for a second."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            writer.write(request)
            with contextlib.suppress(ConnectionError):
                await writer.drain()
            answer = b""
            with contextlib.suppress(ConnectionError, TimeoutError):
                while piece := await asyncio.wait_for(reader.read(2**16), 1):
                    answer += piece
            return answer
        finally:
            writer.close()


@attrs.frozen
class Answer:
    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def cache_status(self) -> str:
        return str(self.headers["Cache-Status"])


StartEdge = Callable[..., Awaitable[Edge]]
Serve = Callable[[Handler], Awaitable[str]]


class EdgeServer(TestServer):
    """The edge with the connection class of the real process, instead of aiohttp's site."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        super().__init__(create_app(settings, clock))
        self._settings = settings
        self._serving = contextlib.AsyncExitStack()

    async def start_server(self, *_: object, **__: object) -> None:
        if self._root is None:
            address = await self._serving.enter_async_context(serving(served(self.app, self._settings)))
            self.host, self.port = address
            self._root = URL.build(scheme="http", host=self.host, port=self.port)

    async def close(self) -> None:
        await self._serving.aclose()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def serve(aiohttp_server: AiohttpServer) -> Serve:
    """A function that serves one handler on all paths, and returns the URL."""

    async def serve(handler: Handler) -> str:
        app = web.Application(client_max_size=2**26)
        app.router.add_route("*", r"/{path:[\s\S]*}", handler)
        server = await aiohttp_server(app, access_log=None, shutdown_timeout=0.2, lingering_time=0.2)
        return str(server.make_url("")).rstrip("/")

    return serve


@pytest.fixture
async def origin(serve: Serve, clock: Clock) -> Origin:
    origin = Origin(clock)
    origin.url = await serve(origin.handle)
    return origin


@pytest.fixture
def start_edge(origin: Origin, clock: Clock, tmp_path: Path, aiohttp_client: AiohttpClient) -> StartEdge:
    """A function that starts an edge in front of the origin; settings are keyword arguments."""

    async def start(**settings: object) -> Edge:
        values = {
            "access_log": False,
            "origin": origin.url,
            "storage_token": SecretStr(STORAGE_TOKEN),
            "purge_token": SecretStr(PURGE_TOKEN),
            "data_dir": tmp_path / "edge",
            "memory_object_bytes": 256 * 1024,
            "origin_timeout": 5.0,
            "origin_check_interval": 0.0,
            **settings,
        }
        server = EdgeServer(Settings(port=0, shutdown_timeout=0.2, **values), clock)
        await server.start_server()
        client = await aiohttp_client(
            server,
            connector=aiohttp.TCPConnector(limit=0),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        assert server.port is not None
        return Edge(f"http://127.0.0.1:{server.port}", server.port, client.session, server.app)

    return start


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many requests have begun to wait for an answer of the origin, by its URI."""
    counted: Counter[str] = Counter()
    wait = Fetch.wait

    async def noted(fetch: Fetch) -> FetchResult:
        counted[fetch.uri] += 1
        return await wait(fetch)

    monkeypatch.setattr(Fetch, "wait", noted)
    return counted


@pytest.fixture
async def edge(start_edge: StartEdge) -> Edge:
    return await start_edge()
