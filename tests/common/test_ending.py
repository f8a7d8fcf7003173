"""Tasks are ended for certain."""

import asyncio
import contextlib

from common.ending import end


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
    async with asyncio.timeout(10):
        await end(*tasks)
    assert lost
    assert all(task.done() for task in tasks)


async def test_ending_nothing_is_fine() -> None:
    await end()
