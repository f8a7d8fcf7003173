"""How much may go on at once and how often, and how tasks are ended."""

import asyncio
import contextlib
import math
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Iterator
from contextlib import asynccontextmanager
from typing import Any, ParamSpec, TypeVar

import attrs
import cachetools

T = TypeVar("T")

#: Seconds until a task that goes on is cancelled again.
_CANCEL_AGAIN_SECONDS = 1.0


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancels the tasks, again and again until all have ended; what they return or raise is of no interest.

    One cancellation is not enough: asyncio.wait_for of Python 3.11, which the database driver uses, loses one that
    comes together with the answer that is waited for.
    """
    pending: Iterable[asyncio.Task[Any]] = tasks
    while pending:
        for task in pending:
            task.cancel()
        _, pending = await asyncio.wait(pending, timeout=_CANCEL_AGAIN_SECONDS)
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


P = ParamSpec("P")


async def aside(large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work` in a thread where it is large, else here: going to a thread takes a tenth of a millisecond itself."""
    return await asyncio.to_thread(work, *args, **kwargs) if large else work(*args, **kwargs)


class TooBusy(Exception):
    """No place became free in time; it is worth another try after a while."""


class ShareTaken(TooBusy):
    """There would have been a place, but not under one of these keys."""


@attrs.frozen
class _Waiting:
    keys: tuple[Hashable, ...]
    admitted: asyncio.Future[None]


class ConcurrencyLimiter:
    """At most `total` holders of a place at once, and at most `each` of them with the same key.

    Who finds none waits for up to `timeout` seconds: first come, first served, but nobody waits for a place of a key
    that is not her own. No more than `queue` wait, so that waiting is bounded as well.
    """

    def __init__(self, total: int, each: int, *, timeout: float = 0.0, queue: int = 1000) -> None:
        self._total = total
        self._each = each
        self._timeout = timeout
        self._queue = queue
        self._held = 0
        self._held_by: Counter[Hashable] = Counter()
        self._waiting: list[_Waiting] = []

    @property
    def held(self) -> int:
        """How many places are taken."""
        return self._held

    def resize(self, total: int, each: int, timeout: float) -> None:
        """Set other limits from now on; whoever holds a place keeps it."""
        self._total, self._each, self._timeout = total, each, timeout
        self._admit()

    @asynccontextmanager
    async def place(self, *keys: Hashable) -> AsyncIterator[None]:
        """A place under all of these keys for the length of the block. Raises `TooBusy`, `ShareTaken`."""
        await self.take(*keys)
        try:
            yield
        finally:
            self.give_back(*keys)

    async def take(self, *keys: Hashable) -> None:
        """A place until `give_back` with the same keys, for what no block encloses. Raises `TooBusy`, `ShareTaken`."""
        if self._fits(keys):
            self._hold(keys)
            return
        if not self._timeout or len(self._waiting) >= self._queue:
            raise self._refusal()
        mine = _Waiting(keys, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            await asyncio.wait({mine.admitted}, timeout=self._timeout)
        except asyncio.CancelledError:
            if mine.admitted.done():
                self.give_back(*keys)
            raise
        finally:
            if not mine.admitted.done():
                self._waiting.remove(mine)
        if not mine.admitted.done():
            raise self._refusal()

    def _refusal(self) -> TooBusy:
        return TooBusy() if self._held >= self._total else ShareTaken()

    def _fits(self, keys: tuple[Hashable, ...]) -> bool:
        return self._held < self._total and all(self._held_by[key] < self._each for key in keys)

    def _hold(self, keys: tuple[Hashable, ...]) -> None:
        self._held += 1
        self._held_by.update(keys)

    def give_back(self, *keys: Hashable) -> None:
        """Give back the place that `take` took."""
        self._held -= 1
        self._held_by -= Counter(keys)
        self._admit()

    def _admit(self) -> None:
        for waiting in list(self._waiting):
            if self._fits(waiting.keys):
                self._waiting.remove(waiting)
                self._hold(waiting.keys)
                waiting.admitted.set_result(None)


class Gate:
    """Open, until somebody closes it."""

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
        """Let nobody in for the length of the block; one block at a time."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def empty(self) -> None:
        """Wait until nobody is inside."""
        await self._empty.wait()


#: Clients of which it is remembered what they have done; of others, the longest unseen, it is forgotten.
REMEMBERED = 65_536


class Rates:
    """A bucket for each client, which holds `burst` and refills at `rate` a second (generic cell rate algorithm: it is
    one number). Nothing is limited before `limit` says what.
    """

    def __init__(self) -> None:
        self._interval = self._tolerance = 0.0
        #: When each client's bucket will be full again.
        self._full_at: cachetools.LRUCache[str, float] = cachetools.LRUCache(REMEMBERED)

    def limit(self, rate: float, burst: int) -> None:
        """Set the limit from now on; a rate of 0 limits nothing."""
        self._interval = 1 / rate if rate else 0.0
        self._tolerance = self._interval * (max(burst, 1) - 1)

    def forget(self) -> None:
        """Forget what clients have done so far."""
        self._full_at.clear()

    @property
    def is_on(self) -> bool:
        """Whether anything is limited."""
        return self._interval > 0

    def wait(self, client: str, now: float) -> int:
        """0 where the client may, which counts; otherwise whole seconds until it may, at least one. `now` is seconds
        that never go back."""
        if not self._interval:
            return 0
        full_at = max(self._full_at.get(client, now), now)
        early = full_at - now - self._tolerance
        if early > 1e-9:
            return max(1, math.ceil(early))
        self._full_at[client] = full_at + self._interval
        return 0
