"""Ending asyncio tasks for certain."""

import asyncio
from collections.abc import Iterable
from typing import Any

_PATIENCE = 1.0


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels the tasks, again and again until all have ended; what they return or raise is of no interest.

    One cancellation is not enough: asyncio.wait_for of Python 3.11, which the database driver uses, loses one that
    comes together with the answer that is waited for.
    """
    pending: Iterable[asyncio.Task[Any]] = tasks
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_PATIENCE)
    await asyncio.gather(*tasks, return_exceptions=True)
