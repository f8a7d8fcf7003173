"""Long-running tasks are started again whatever ends them."""

import asyncio

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from common import lifecycle
from common.lifecycle import BackgroundTasks, TaskDown


class Listener:
    """Work that ends in another way each time, then goes on."""

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
    lost = asyncio.CancelledError()  # as when something that was awaited had been cancelled by others
    work = Listener(RuntimeError("UVPoll closed"), None, OSError(), lost)
    with capture_logs() as lines:
        tasks.start("listen", work)
        async with asyncio.timeout(20):
            await work.goes_on.wait()
    assert [line["task"] for line in lines if "task" in line] == ["listen"] * 4
    assert registry.get_sample_value("background_task_restarts_total", {"task": "listen"}) == 4
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
