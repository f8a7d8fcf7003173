"""Ending asyncio tasks for certain, and not before the threads that work for them."""

import asyncio
from collections.abc import Iterable
from typing import Any, TypeVar

T = TypeVar("T")

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


async def ended(work: "asyncio.Future[T]") -> T:
    """The result of `work`. Who is cancelled meanwhile, however often, is so only after its end.

    For a thread, which cannot be cancelled and works on with what the caller would let go of (files, and their
    numbers), and for what has to be let go of to the end.
    """
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait([work])
        except asyncio.CancelledError as error:
            cancelled = error
    try:
        if cancelled is None:
            return work.result()
        work.exception()
        raise cancelled
    finally:
        del work, cancelled  # an error holds this frame, which must not hold the error
