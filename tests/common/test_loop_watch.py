"""What holds the event loop is measured, logged with who was at work, and shown to operators."""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common import loop_watch, operations
from common.client_settings import ClientSettings
from common.lifecycle import SHUTDOWN, Shutdown
from common.loop_watch import LOOP_WATCH, Held, LoopWatch

HELD = 0.2


def compute(seconds: float = HELD) -> None:
    """Keep the processor busy."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def hold_the_lock() -> None:
    """Keep the interpreter's lock for about `HELD` in a single call."""
    began = time.thread_time()
    sum(range(1_000_000))
    sum(range(round(1_000_000 * HELD / (time.thread_time() - began))))


@attrs.define
class Server:
    """An application whose requests hold the loop; its log lines."""

    client: "TestClient[Any, Any]"
    registry: CollectorRegistry
    lines: list[Any]

    @property
    def held(self) -> list[Any]:
        return [line for line in self.lines if line["event"] == "the event loop was held"]

    def count(self) -> float:
        return self.registry.get_sample_value("event_loop_held_seconds_count") or 0.0


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    async def busy(request: web.Request) -> web.Response:
        {"compute": compute, "lock": hold_the_lock, "sleep": lambda: time.sleep(HELD)}[request.query["how"]]()
        return web.Response()

    app, registry = web.Application(), CollectorRegistry()
    app[SHUTDOWN] = Shutdown()
    app.router.add_get("/api/v4/projects/{id}/busy", busy)
    operations.setup(app, ClientSettings(), registry, {})
    with capture_logs() as lines:
        async with TestClient(TestServer(app)) as client, app[LOOP_WATCH].watching():
            yield Server(client, registry, lines)


async def test_a_request_that_keeps_the_interpreters_lock_is_named(server: Server) -> None:
    """It can be looked at once only, when it gives the lock back: on a busy machine not each time."""
    for _ in range(10):
        await server.client.get("/api/v4/projects/group%2Fapp/busy?how=lock")
        await asyncio.sleep(0.1)
        if any(line["route"] for line in server.held):
            break
    line = next(line for line in server.held if line["route"])
    assert (line["route"], line["project"]) == ("GET /api/v4/projects/{id}/busy", "group/app")
    assert line["ms"] > HELD * 500


async def test_a_request_that_holds_the_loop_is_named(server: Server) -> None:
    await server.client.get("/api/v4/projects/group%2Fapp/busy?how=compute")
    await asyncio.sleep(0.1)
    (line,) = server.held
    assert (line["route"], line["project"]) == ("GET /api/v4/projects/{id}/busy", "group/app")
    assert line["ms"] > HELD * 700
    assert line["cpu_ms"] > HELD * 700
    assert server.count() == 1
    async with server.client.get("/-/readiness") as answer:
        part = (await answer.json())["event_loop"]
    assert part["status"] == "ok"
    assert part["message"].startswith(
        "0 minutes ago GET /api/v4/projects/{id}/busy of group/app held the event loop for"
    )


async def test_who_waits_for_the_machine_is_counted_and_not_blamed(server: Server) -> None:
    """It did not compute: the machine was busy with other things, or a disk was slow."""
    await server.client.get("/api/v4/projects/1/busy?how=sleep")
    await asyncio.sleep(0.1)
    assert server.count() == 1
    assert server.held == []
    async with server.client.get("/-/readiness") as answer:
        assert (await answer.json())["event_loop"] == {"status": "ok"}


async def test_a_route_is_logged_once_a_minute(server: Server) -> None:
    for _ in range(2):
        await server.client.get("/api/v4/projects/1/busy?how=compute")
        await asyncio.sleep(0.1)
    assert server.count() == 2
    assert len(server.held) == 1


async def test_many_short_steps_are_nobodys(server: Server) -> None:
    """The loop comes to its timer late, but no one of them is to blame."""

    async def short() -> None:
        compute(0.015)

    await asyncio.gather(*(short() for _ in range(40)))
    await asyncio.sleep(0.1)
    assert server.count() == 1
    assert [(line["route"], line["code"]) for line in server.held] == [(None, None)]


async def test_the_longest_of_the_last_hour_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10_000.0
    monkeypatch.setattr(loop_watch.time, "monotonic", lambda: now)
    watch = LoopWatch(CollectorRegistry())
    for minute, seconds in ((0, 9.0), (10, 2.0), (20, 5.0), (30, 1.0)):
        watch._record(Held(10_000.0 + 60 * minute, seconds, seconds, route="GET /a"))
    said = []
    for minute in (59, 61, 79, 81, 91):
        now = 10_000.0 + 60 * minute
        said.append(await watch.check())
    assert said == [
        "59 minutes ago GET /a held the event loop for 9.0 s",
        "41 minutes ago GET /a held the event loop for 5.0 s",
        "59 minutes ago GET /a held the event loop for 5.0 s",
        "51 minutes ago GET /a held the event loop for 1.0 s",
        None,
    ]
