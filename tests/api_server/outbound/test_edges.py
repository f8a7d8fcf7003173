"""Notification of edges: all of them, each once, and those that were away as soon as they are back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from api_server.outbound import edges, queries
from api_server.outbound.edges import EDGES, EdgeApi
from api_server.settings import Settings
from api_server.state.database import connect
from api_server.state.migrate import migrate
from api_server.web.context import SERVICES
from tests.support.clock import MovedClock, forge_with_clock
from tests.support.forge import Forge, running_forge
from tests.support.ports import free_port
from tests.support.waiting import until_somebody_waits

TOKEN = "purge-token-of-the-tests"


@attrs.define
class Edge:
    """A stand-in for an edge that records purges, and answers as the test says."""

    status: int = 200
    told: list[dict[str, Any]] = attrs.field(factory=list)
    asked: asyncio.Event = attrs.field(factory=asyncio.Event)
    gate: asyncio.Event | None = None
    url: str = ""

    async def purge(self, request: web.Request) -> web.Response:
        assert request.headers["Authorization"] == f"Bearer {TOKEN}"
        document = await request.json()
        self.asked.set()
        if self.gate is not None:
            await self.gate.wait()
        if self.status == 200:
            self.told.append(document)
        return web.json_response({}, status=self.status)


@contextlib.asynccontextmanager
async def serving(*served: Edge) -> AsyncIterator[None]:
    async with contextlib.AsyncExitStack() as stack:
        for edge in served:
            app = web.Application()
            app.router.add_post("/-/purge", edge.purge)
            server = await stack.enter_async_context(TestServer(app))
            edge.url = str(server.make_url("")).rstrip("/")
        yield
        for edge in served:
            if edge.gate is not None:
                edge.gate.set()


@attrs.frozen
class Scene:
    """Three edges: the first answers, the second may not, and the third does not exist."""

    forge: Forge
    clock: MovedClock
    first: Edge
    second: Edge

    async def catch_up(self) -> None:
        """Move the clock and notify edges, as the queue does every few seconds; notifications that requests have under
        way are left alone."""
        self.clock.move(seconds=edges.EVERY_SECONDS + 1)
        await self.forge.server.app[SERVICES][EDGES].catch_up(edges.UNDER_WAY)

    async def change(self, count: int = 1) -> list[str]:
        """Make public projects private; return their surrogate keys."""
        keys = []
        for _ in range(count):
            project = await self.forge.project(visibility="public")
            answer = await self.forge.root.put(f"/projects/{project['id']}", {"visibility": "private"})
            assert answer.status == 200
            keys.append(f"project-{project['id']}")
        return keys

    async def owed(self) -> int:
        return int(await self.forge.database.value("SELECT count(*) FROM edge_purges"))

    async def readiness(self) -> dict[str, Any]:
        return dict((await self.forge.anonymous.get(f"{self.forge.base}/-/readiness")).body)


@contextlib.asynccontextmanager
async def scene_with(
    new_database: Any, data_dir: Path, first: Edge, second: Edge, *more: str, **settings: Any
) -> AsyncIterator[Scene]:
    async with serving(first, second):
        options = {"edge_urls": [first.url, second.url, *more], "edge_purge_token": TOKEN} | settings
        async with forge_with_clock(new_database(), data_dir, **options) as (forge, clock):
            scene = Scene(forge, clock, first, second)
            await scene.catch_up()
            assert first.told == [{"prefixes": ["/"]}]  # the content of a new edge is unknown
            first.told.clear()
            second.told.clear()
            yield scene


@pytest.fixture
async def scene(new_database: Any, tmp_path: Path) -> AsyncIterator[Scene]:
    async with scene_with(new_database, tmp_path, Edge(), Edge()) as scene:
        yield scene


async def test_every_edge_is_told_once(scene: Scene) -> None:
    (key,) = await scene.change()
    assert scene.first.told == scene.second.told == [{"keys": [key]}]
    assert await scene.owed() == 0
    await scene.catch_up()
    assert scene.first.told == scene.second.told == [{"keys": [key]}]
    assert (await scene.readiness())["edges"] == {"status": "ok"}


async def test_an_edge_that_cannot_be_reached_does_not_shorten_the_wait_for_the_others(
    new_database: Any, tmp_path: Path
) -> None:
    """The nearest edge refuses at once; the slow one has been notified when the change is answered."""
    slow = Edge()
    gone = f"http://127.0.0.1:{free_port()}"
    async with scene_with(new_database, tmp_path, Edge(), slow, gone, edge_purge_timeout=20.0) as scene:
        project = await scene.forge.project(visibility="public")
        slow.gate = asyncio.Event()
        slow.asked.clear()
        change = asyncio.ensure_future(
            scene.forge.root.put(f"/projects/{project['id']}", {"visibility": "private"})
        )
        await slow.asked.wait()
        first_told = asyncio.get_running_loop().time()
        while not scene.first.told or asyncio.get_running_loop().time() < first_told + 0.2:
            await asyncio.sleep(0.01)
        assert not change.done()
        slow.gate.set()
        assert (await change).status == 200
        assert slow.told == [{"keys": [f"project-{project['id']}"]}]
        assert await scene.owed() == 1


async def test_a_silent_edge_is_waited_for_as_long_as_the_setting_says(
    new_database: Any, tmp_path: Path
) -> None:
    silent = Edge()
    async with scene_with(new_database, tmp_path, Edge(), silent, edge_purge_timeout=1.0) as scene:
        silent.gate = asyncio.Event()
        async with asyncio.timeout(60):
            (key,) = await scene.change()
        assert scene.first.told == [{"keys": [key]}]
        assert await scene.owed() == 1


async def test_what_an_edge_has_missed_it_is_told_together_when_it_is_back(scene: Scene) -> None:
    scene.second.status = 500
    keys = await scene.change(3)
    for _ in range(3):
        await scene.catch_up()
    assert scene.first.told == [{"keys": [key]} for key in keys]
    assert (scene.second.told, await scene.owed()) == ([], 3)
    scene.clock.move(minutes=1)
    ready = await scene.readiness()
    assert (ready["status"], ready["edges"]) == (
        "degraded",
        {"status": "degraded", "message": "1 of 2 storage edges cannot be told of changes"},
    )
    scene.second.status = 200
    await scene.catch_up()
    assert [{"keys": sorted(told["keys"])} for told in scene.second.told] == [{"keys": sorted(keys)}]
    assert await scene.owed() == 0
    assert len(scene.first.told) == 3
    assert (await scene.readiness())["edges"] == {"status": "ok"}


async def test_an_edge_that_has_missed_too_much_forgets_everything(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(edges, "MAX_PENDING", 2)
    scene.second.status = 503
    await scene.change(3)
    await scene.catch_up()
    assert await scene.owed() == 1  # single keys that the purge of everything covers are deleted
    scene.second.status = 200
    await scene.catch_up()
    await scene.catch_up()
    assert scene.second.told[0] == {"prefixes": ["/"]}
    assert await scene.owed() == 0
    told = len(scene.second.told)
    (key,) = await scene.change()
    assert scene.second.told[told:] == [{"keys": [key]}]


async def test_what_is_under_way_is_told_by_its_request(scene: Scene) -> None:
    scene.second.status = 500
    await scene.change()
    scene.second.status = 200
    await scene.forge.server.app[SERVICES][EDGES].catch_up(edges.UNDER_WAY)
    assert (scene.second.told, await scene.owed()) == ([], 1)


async def test_background_work_tells_too(new_database: Any, tmp_path: Path) -> None:
    """It has no answer that could wait, so the queue notifies edges."""
    edge = Edge()
    async with serving(edge):
        options = {"edge_urls": [edge.url], "edge_purge_token": TOKEN}
        async with running_forge(new_database(), tmp_path, **options) as forge:
            await forge.server.app[SERVICES][EDGES].catch_up()
            async with forge.database.transaction() as transaction:
                await edges.changed(transaction, "project-1")
            async with asyncio.timeout(20):
                while await forge.database.value("SELECT count(*) FROM edge_purges"):
                    await asyncio.sleep(0.02)
    assert edge.told == [{"prefixes": ["/"]}, {"keys": ["project-1"]}]


@contextlib.asynccontextmanager
async def beside(scene: Scene, urls: list[str]) -> AsyncIterator[Forge]:
    """Run another server on the scene's database and folder that lists these edges; it has no background work."""
    settings = scene.forge.settings
    async with running_forge(
        settings.database_url, settings.data_dir, edge_urls=urls, edge_purge_token=TOKEN, work=False
    ) as forge:
        yield forge


async def listed(scene: Scene) -> set[str]:
    found = await scene.forge.database.value("SELECT array_agg(url) FROM edges")
    return set(found or ())


async def test_servers_with_different_lists_tell_all_edges(scene: Scene) -> None:
    third = Edge()
    async with serving(third), beside(scene, [third.url]) as other:
        await scene.catch_up()
        assert third.told.pop() == {"prefixes": ["/"]}
        (key,) = await scene.change()
        project = await other.project(visibility="public")
        answer = await other.root.put(f"/projects/{project['id']}", {"visibility": "private"})
        assert answer.status == 200
        told = [{"keys": [key]}, {"keys": [f"project-{project['id']}"]}]
        assert scene.first.told == scene.second.told == third.told == told
        assert await scene.owed() == 0
        both = set(await scene.forge.server.app[SERVICES][EDGES].statuses())
        assert both <= {scene.first.url, scene.second.url, third.url}
        assert await listed(scene) == {scene.first.url, scene.second.url, third.url}


async def test_servers_that_start_at_the_same_moment_know_all_edges(new_database: Any) -> None:
    """Neither sees the other's uncommitted edges, nor adds them again."""
    edge = Edge()
    async with serving(edge), contextlib.AsyncExitStack() as stack:
        settings = Settings(database_url=new_database(), data_dir=Path("unused"), edge_urls=[edge.url])
        migrate(settings.database_url)
        http = await stack.enter_async_context(aiohttp.ClientSession())
        one, other = [
            edges.Edges(
                settings, http, await stack.enter_async_context(connect(settings.database_url, base_url="x"))
            )
            for _ in range(2)
        ]
        async with one._database.transaction() as transaction:
            await queries.list_them(transaction, [edge.url], one._database.now)
            starting = asyncio.ensure_future(other.list_own())
            await until_somebody_waits(one._database)
        await starting
        assert [api.url for api in await other.apis()] == [edge.url]


async def test_an_edge_that_no_server_lists_any_more_goes_in_time(scene: Scene) -> None:
    scene.second.status = 500
    await scene.change()
    settings = attrs.evolve(scene.forge.settings, edge_urls=[scene.first.url])
    app = scene.forge.server.app
    fewer = edges.Edges(settings, app[SERVICES][EDGES]._session, scene.forge.database)

    async def pass_by(seconds: float) -> None:
        """Let time pass while only `fewer` repeats its list of edges."""
        for _ in range(int(seconds / 10)):
            scene.clock.move(seconds=10)
            await fewer.list_own()

    both = {scene.first.url, scene.second.url}
    await fewer.list_own()
    assert await listed(scene) == both
    await pass_by(40)
    await app[SERVICES][EDGES].list_own()  # in time
    await pass_by(50)
    assert (await listed(scene), await scene.owed()) == (both, 1)
    await pass_by(20)
    assert (await listed(scene), await scene.owed()) == ({scene.first.url}, 0)


async def test_a_server_that_starts_leaves_the_others_time_to_come_back(scene: Scene) -> None:
    """All servers were away for longer than edges are listed."""
    scene.clock.move(hours=1)
    settings = attrs.evolve(scene.forge.settings, edge_urls=[scene.first.url])
    app = scene.forge.server.app
    await edges.Edges(settings, app[SERVICES][EDGES]._session, scene.forge.database).list_own()
    assert await listed(scene) == {scene.first.url, scene.second.url}


async def test_an_answer_that_does_not_end_is_not_read_to_its_end() -> None:
    """A wrong URL leads to some other server."""

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 2**20)

    app = web.Application()
    app.router.add_get("/-/status", endless)
    async with TestServer(app) as server, aiohttp.ClientSession() as session:
        api = EdgeApi(str(server.make_url("/")), TOKEN, session, 30.0)
        with pytest.raises(aiohttp.ClientPayloadError, match="more than 16777216 bytes"):
            await api.status()
