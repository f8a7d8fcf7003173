"""Functions that wait for a blocked statement or for a condition, so that a test can put one action exactly between
two others."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import Any

from api_server.state.database import Executor

WAITERS = """
    SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'
"""


async def until_somebody_waits(database: Executor, *, count: int = 1, seconds: float = 20) -> None:
    """Wait until this many statements in this database wait for locks."""
    async with asyncio.timeout(seconds):
        while await database.value(WAITERS) < count:
            await asyncio.sleep(0.01)


async def until(condition: Callable[[], Any], seconds: float = 30) -> Any:
    """Wait until the condition, which may be awaitable, is true; return its value. It is checked repeatedly."""
    async with asyncio.timeout(seconds):
        while not (found := (await said) if inspect.isawaitable(said := condition()) else said):
            await asyncio.sleep(0.01)
    return found


async def seconds_of(work: Callable[[], Awaitable[object]]) -> float:
    """Return the seconds that the work takes."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await work()
    return loop.time() - began
