"""Tasks and the loop: restart, end, limits, monitoring; and delayed garbage collection."""

import asyncio
import contextlib
import json
import sys
import threading
import time
import weakref
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import attrs
import pytest
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common import lifecycle, loop_watch, operations
from common.client_settings import ClientSettings
from common.concurrency import ConcurrencyLimiter, ShareTaken, TooBusy, aside, end, ended
from common.lifecycle import SHUTDOWN, BackgroundTasks, Shutdown, TaskDown
from common.loop_watch import LONGEST, LOOP_WATCH, LoopStall, LoopWatch, longest_step
from common.workers import Figures, Line


class Listener:
    """Work that ends in a different way each time, and finally goes on."""

    def __init__(self, *ways: BaseException | None) -> None:
        self._ways = list(ways)
        self.goes_on = asyncio.Event()

    async def __call__(self) -> None:
        if not self._ways:
            self.goes_on.set()
            await asyncio.Event().wait()
        way = self._ways.pop(0)
        if way is not None:
            raise way


async def test_work_is_started_again_whatever_ended_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FIRST_PAUSE", 0.001)
    registry = CollectorRegistry()
    tasks = BackgroundTasks(registry)
    lost = asyncio.CancelledError()  # as if others had cancelled something that it awaited
    work = Listener(RuntimeError("UVPoll closed"), None, OSError(), OSError(), lost)
    with capture_logs() as lines:
        tasks.start("listen", work)
        async with asyncio.timeout(20):
            await work.goes_on.wait()
    said = [(line["task"], line["problem"]) for line in lines if "task" in line]
    problems = [
        "RuntimeError: UVPoll closed",
        "it ended",
        "OSError: ",
        "CancelledError: ",
    ]  # each once a minute
    assert said == [("listen", problem) for problem in problems]
    assert registry.get_sample_value("background_task_restarts_total", {"task": "listen"}) == 5
    await tasks.check()
    await tasks.close()


async def test_readiness_names_what_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "FIRST_PAUSE", 3600)
    tasks = BackgroundTasks(CollectorRegistry())
    tasks.start("b", Listener(OSError()))
    tasks.start("a", Listener(None))
    tasks.start("c", Listener())
    with capture_logs() as lines:
        while sum("task" in line for line in lines) < 2:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    with pytest.raises(TaskDown, match=r": a, b$"):
        await tasks.check()
    async with asyncio.timeout(20):
        await tasks.close()


async def test_a_task_that_loses_a_cancellation_is_ended_even_so() -> None:
    lost = []

    async def forgetful() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        lost.append(True)
        await asyncio.Event().wait()

    async def fails() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ZeroDivisionError

    tasks = [asyncio.create_task(forgetful()), asyncio.create_task(fails())]
    await asyncio.sleep(0)
    async with asyncio.timeout(20):
        await end(*tasks)
    assert lost
    assert all(task.done() for task in tasks)


async def test_ending_nothing_is_fine() -> None:
    await end()


async def test_who_waits_for_a_thread_is_cancelled_after_its_end() -> None:
    gate, log = threading.Event(), []

    def work() -> None:
        gate.wait(10)
        log.append("worked")

    async def caller() -> None:
        try:
            await ended(asyncio.get_running_loop().run_in_executor(None, work))
        finally:
            log.append("let go")

    task = asyncio.create_task(caller())
    for _ in range(3):
        await asyncio.sleep(0.01)
        task.cancel()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert log == ["worked", "let go"]


async def test_what_a_thread_returns_or_raises_is_what_its_caller_gets() -> None:
    loop = asyncio.get_running_loop()
    assert await ended(loop.run_in_executor(None, int, "7")) == 7
    with pytest.raises(ValueError, match="invalid literal"):
        await ended(loop.run_in_executor(None, int, "seven"))


async def test_one_key_has_its_share_and_leaves_the_others_theirs() -> None:
    slots = ConcurrencyLimiter(3, 2)
    async with slots.slot("a"), slots.slot("a"):
        with pytest.raises(ShareTaken):
            async with slots.slot("a"):
                pass
        async with slots.slot("b"):
            with pytest.raises(TooBusy) as refused:
                async with slots.slot("c"):
                    pass
            assert not isinstance(refused.value, ShareTaken)
    assert slots.in_use == 0


async def test_all_keys_of_a_holder_count() -> None:
    slots = ConcurrencyLimiter(9, 1)
    async with slots.slot("alice", "project"):
        with pytest.raises(TooBusy):
            async with slots.slot("bob", "project"):
                pass
        async with slots.slot("bob", "another"):
            pass


async def test_who_waits_is_admitted_in_order_and_past_those_whose_key_is_full() -> None:
    slots = ConcurrencyLimiter(2, 1, timeout=60)
    order = []

    async def work(key: str, name: str) -> None:
        async with slots.slot(key):
            order.append(name)
            await asyncio.sleep(0)

    async with AsyncExitStack() as held:
        await held.enter_async_context(slots.slot("a"))
        await held.enter_async_context(slots.slot("b"))
        tasks = [
            asyncio.create_task(work(*who)) for who in (("a", "a1"), ("c", "c1"), ("c", "c2"), ("a", "a2"))
        ]
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)
    assert order == ["c1", "a1", "c2", "a2"]
    assert slots.in_use == 0


async def test_waiting_ends_with_the_timeout() -> None:
    slots = ConcurrencyLimiter(1, 1, timeout=0.01)
    async with slots.slot("a"):
        with pytest.raises(TooBusy):
            async with slots.slot("b"):
                pass
    async with slots.slot("b"):
        assert slots.in_use == 1


async def test_no_more_than_the_queue_wait() -> None:
    slots = ConcurrencyLimiter(1, 1, timeout=60, queue=0)
    async with slots.slot("a"):
        with pytest.raises(TooBusy):
            async with slots.slot("b"):
                pass


@pytest.mark.parametrize("freed_first", [False, True])
async def test_who_goes_away_while_waiting_leaves_nothing_behind(freed_first: bool) -> None:
    slots = ConcurrencyLimiter(1, 1, timeout=60)

    async def work() -> None:
        async with slots.slot("b"):
            await asyncio.sleep(60)

    async with AsyncExitStack() as held:
        await held.enter_async_context(slots.slot("a"))
        waiting = asyncio.create_task(work())
        await asyncio.sleep(0)
        if freed_first:
            await held.aclose()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert slots.in_use == 0
    async with slots.slot("b"):
        pass


@given(
    st.integers(1, 4), st.integers(1, 3), st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz")))
)
def test_neither_bound_is_ever_passed(total: int, each: int, askers: list[tuple[str, str]]) -> None:
    slots = ConcurrencyLimiter(total, each, timeout=60)
    running: list[str] = []

    async def work(keys: tuple[str, str]) -> None:
        async with slots.slot(*keys):
            running.extend(keys)
            assert len(running) <= 2 * total
            assert all(running.count(key) <= each for key in keys)
            await asyncio.sleep(0)
            for key in keys:
                running.remove(key)

    async def everybody() -> None:
        await asyncio.gather(*(work(keys) for keys in askers))

    asyncio.run(everybody())
    assert slots.in_use == 0


HELD = 0.2


def compute(seconds: float = HELD) -> None:
    """Keep the processor busy."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


def hold_the_lock() -> None:
    """Hold the interpreter's lock for about `HELD` in a single call."""
    began = time.thread_time()
    sum(range(1_000_000))
    sum(range(round(1_000_000 * HELD / (time.thread_time() - began))))


@attrs.define
class Server:
    """An application whose requests block the loop; its log lines."""

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


def test_a_look_keeps_nothing_that_a_frame_has_let_go_of() -> None:
    seen = set[int]()
    garbage = weakref.ref(seen)
    loop_watch._sample(None, sys._getframe())
    del seen
    assert garbage() is None


async def test_a_request_that_keeps_the_interpreters_lock_is_named(server: Server) -> None:
    """It can be seen only once, when it releases the lock: on a busy machine this does not always succeed."""
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
    """The task did not compute: the machine was busy with other things, or a disk was slow."""
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
    """The loop reaches its timer late, but none of them is the cause."""

    async def short() -> None:
        compute(0.015)

    await asyncio.gather(*(short() for _ in range(40)))
    await asyncio.sleep(0.1)
    assert server.count() == 1
    assert [(line["route"], line["code"]) for line in server.held] == [(None, None)]


@pytest.mark.parametrize(("other", "named"), [(7.0, "GET /other"), (0.2, "GET /ours")])
async def test_the_longest_of_all_workers_is_named(
    server: Server, monkeypatch: pytest.MonkeyPatch, other: float, named: str
) -> None:
    """It does not matter which worker answers."""
    elsewhere, now = LoopWatch(CollectorRegistry()), time.monotonic()
    elsewhere._record(LoopStall(now, other, other, route="GET /other"))
    assert server.client.app is not None
    server.client.app[LOOP_WATCH]._record(LoopStall(now, 2.0, 2.0, route="GET /ours"))
    line = Line(0)

    async def others(_own: Figures) -> list[Figures]:
        return json.loads(json.dumps([elsewhere.longest()]))  # type: ignore[no-any-return]

    monkeypatch.setattr(line, "others", others)
    monkeypatch.setattr(operations, "supervisor_line", lambda: line)
    answer = await server.client.get("/-/readiness")
    seconds = max(other, 2.0)
    assert (await answer.json())["event_loop"] == {
        "status": "ok",
        "message": f"0 minutes ago {named} held the event loop for {seconds} s",
    }
    assert LONGEST not in await (await server.client.get("/-/metrics")).text()


async def test_a_worker_that_does_not_answer_makes_no_other_unready(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "OTHERS_SECONDS", 0.05)
    monkeypatch.setattr(operations, "supervisor_line", lambda: Line(0))
    monkeypatch.setattr(Line, "others", lambda *_: asyncio.sleep(60))
    answer = await server.client.get("/-/readiness")
    assert (answer.status, (await answer.json())["event_loop"]) == (200, {"status": "ok"})


def test_the_longest_of_the_last_hour_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 10_000.0
    monkeypatch.setattr(loop_watch.time, "monotonic", lambda: now)
    watch = LoopWatch(CollectorRegistry())
    for minute, seconds in ((0, 9.0), (10, 2.0), (20, 5.0), (30, 1.0)):
        watch._record(LoopStall(10_000.0 + 60 * minute, seconds, seconds, route="GET /a"))
    said = []
    for minute in (59, 61, 79, 81, 91):
        now = 10_000.0 + 60 * minute
        said.append(longest_step([watch.longest()]))
    assert said == [
        "59 minutes ago GET /a held the event loop for 9.0 s",
        "41 minutes ago GET /a held the event loop for 5.0 s",
        "59 minutes ago GET /a held the event loop for 5.0 s",
        "51 minutes ago GET /a held the event loop for 1.0 s",
        None,
    ]


async def test_large_computations_go_on_one_after_the_other() -> None:
    """Several at once would take as long, and the event loop would wait for each of them."""
    lock, loops = threading.Lock(), threading.get_ident()

    def compute() -> bool:
        alone = lock.acquire(blocking=False)
        time.sleep(0.02)
        if alone:
            lock.release()
        return alone and threading.get_ident() != loops

    assert await asyncio.gather(*(aside(True, compute) for _ in range(3))) == [True] * 3
    assert await aside(False, threading.get_ident) == loops
