"""Tasks are ended for certain."""

import asyncio
import contextlib
import threading

import pytest

from common.concurrency import end, ended


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
