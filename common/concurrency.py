"""Limits of concurrency and of rates, and the cancellation of tasks."""

import asyncio
import contextlib
import contextvars
import functools
import math
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import attrs
import cachetools

T = TypeVar("T")

#: Seconds until a task that has not ended is cancelled again.
_CANCEL_AGAIN_SECONDS = 1.0


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel the tasks again and again until all have ended. Their results and errors are ignored.

    One cancellation is not enough: asyncio.wait_for of Python 3.11, which the database driver uses, loses a
    cancellation that arrives together with the awaited result.
    """
    pending: Iterable[asyncio.Task[Any]] = tasks
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_SECONDS)
    await asyncio.gather(*tasks, return_exceptions=True)


async def ended(work: "asyncio.Future[T]") -> T:
    """Return the result of `work`. If the caller is cancelled in the meantime, raise that only after the end of `work`.

    This is for threads, which cannot be cancelled and go on to use what the caller would release (files and their
    descriptors), and for cleaning up completely.
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
        del work, cancelled  # an error keeps this frame alive, and the frame must not keep the error


P = ParamSpec("P")


#: The thread of `aside`. Python computes in one thread at a time: more threads would finish nothing earlier, and the
#: event loop would wait for each of them whenever it returns from a socket.
_COMPUTING = ThreadPoolExecutor(max_workers=1, thread_name_prefix="computing")


async def aside(large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the result of `work`, which only computes, for at most some ten milliseconds. Run it in the thread for
    such work if it is `large`, otherwise here, because changing to a thread costs a tenth of a millisecond."""
    if not large:
        return work(*args, **kwargs)
    run = functools.partial(contextvars.copy_context().run, work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_COMPUTING, run)


class TooBusy(Exception):
    """No slot became free in time. A later attempt may succeed."""


class ShareTaken(TooBusy):
    """There was a free slot, but one of these keys has its maximum already."""


@attrs.frozen
class _Waiting:
    keys: tuple[Hashable, ...]
    admitted: asyncio.Future[None]


class ConcurrencyLimiter:
    """A limiter that allows at most `total` holders of a slot at once, and at most `per_key` of them with the same key.

    A caller without a free slot waits for up to `timeout` seconds, first come, first served, but never because of
    another's key. At most `queue` callers wait.
    """

    def __init__(self, total: int, per_key: int, *, timeout: float = 0.0, queue: int = 1000) -> None:
        self._total = total
        self._per_key = per_key
        self._timeout = timeout
        self._queue = queue
        self._in_use = 0
        self._in_use_by: dict[Hashable, int] = {}
        self._waiting: list[_Waiting] = []

    @property
    def in_use(self) -> int:
        """The number of slots in use."""
        return self._in_use

    def resize(self, total: int, per_key: int, timeout: float) -> None:
        """Set other limits from now on. Holders of a slot keep it."""
        self._total, self._per_key, self._timeout = total, per_key, timeout
        self._admit()

    @asynccontextmanager
    async def slot(self, *keys: Hashable) -> AsyncIterator[None]:
        """Hold a slot for all of these keys during the block. Raise `TooBusy` or `ShareTaken`."""
        await self.acquire(*keys)
        try:
            yield
        finally:
            self.release(*keys)

    async def acquire(self, *keys: Hashable) -> None:
        """Take a slot until `release` is called with the same keys, if no block can hold it. Raise `TooBusy` or
        `ShareTaken`."""
        if self.try_acquire(*keys):
            return
        if not self._timeout or len(self._waiting) >= self._queue:
            raise self._refusal()
        waiter = _Waiting(keys, asyncio.get_running_loop().create_future())
        self._waiting.append(waiter)
        try:
            await asyncio.wait({waiter.admitted}, timeout=self._timeout)
        except asyncio.CancelledError:
            if waiter.admitted.done():
                self.release(*keys)
            raise
        finally:
            if not waiter.admitted.done():
                self._waiting.remove(waiter)
        if not waiter.admitted.done():
            raise self._refusal()

    def _refusal(self) -> TooBusy:
        return TooBusy() if self._in_use >= self._total else ShareTaken()

    def try_acquire(self, *keys: Hashable) -> bool:
        """Take a slot like `acquire` if there is one for all of these keys now. Return whether there was."""
        if self._in_use >= self._total:
            return False
        for key in keys:
            if self._in_use_by.get(key, 0) >= self._per_key:
                return False
        self._in_use += 1
        for key in keys:
            self._in_use_by[key] = self._in_use_by.get(key, 0) + 1
        return True

    def release(self, *keys: Hashable) -> None:
        """Release the slot that `acquire` has taken."""
        self._in_use -= 1
        for key in keys:
            self._in_use_by[key] -= 1
            if not self._in_use_by[key]:
                del self._in_use_by[key]
        if self._waiting:
            self._admit()

    def _admit(self) -> None:
        for waiting in list(self._waiting):
            if self._in_use >= self._total:
                break
            if self.try_acquire(*waiting.keys):
                self._waiting.remove(waiting)
                waiting.admitted.set_result(None)


class Gate:
    """A gate that is open except while a block keeps it closed."""

    def __init__(self) -> None:
        self._open = asyncio.Event()
        self._open.set()
        self._empty = asyncio.Event()
        self._empty.set()
        self._inside = 0

    @contextlib.asynccontextmanager
    async def passing(self) -> AsyncIterator[None]:
        """Enter as soon as the gate is open, and leave at the end of the block."""
        await self._open.wait()
        self._inside += 1
        self._empty.clear()
        try:
            yield
        finally:
            self._inside -= 1
            if not self._inside:
                self._empty.set()

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Keep the gate closed for the duration of the block. Blocks must not overlap."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()


#: Maximum number of clients with a bucket. The least recently seen ones are removed.
REMEMBERED = 65_536


class Rates:
    """A limit on how often each client may do something. A bucket for each client holds `burst` and refills at `rate`
    per second (generic cell rate algorithm: a bucket is one number). Nothing is limited before `limit` is called."""

    def __init__(self) -> None:
        self._interval = self._tolerance = 0.0
        #: The moment at which each client's bucket is full again.
        self._full_at: cachetools.LRUCache[str, float] = cachetools.LRUCache(REMEMBERED)

    def limit(self, rate: float, burst: int) -> None:
        """Set the limit from now on. A rate of 0 removes it."""
        self._interval = 1 / rate if rate else 0.0
        self._tolerance = self._interval * (max(burst, 1) - 1)

    def forget(self) -> None:
        """Fill all buckets again."""
        self._full_at.clear()

    @property
    def is_on(self) -> bool:
        """Return whether there is a limit."""
        return self._interval > 0

    def wait(self, client: str, now: float) -> int:
        """Count one use and return 0 if the client is within the limit. Otherwise return the whole seconds until it
        is, at least one. `now` is in seconds of a steady clock."""
        if not self._interval:
            return 0
        full_at = max(self._full_at.get(client, now), now)
        early = full_at - now - self._tolerance
        if early > 1e-9:
            return max(1, math.ceil(early))
        self._full_at[client] = full_at + self._interval
        return 0
