"""How much may go on at once: places that are held while work lasts, in all and for each of those who ask."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import ParamSpec, TypeVar

import attrs

P = ParamSpec("P")
T = TypeVar("T")


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

    Who finds none waits for up to `patience` seconds: first come, first served, but nobody waits for a place of a key
    that is not her own. No more than `queue` wait, so that waiting is bounded as well.
    """

    def __init__(self, total: int, each: int, *, patience: float = 0.0, queue: int = 1000) -> None:
        self._total = total
        self._each = each
        self._patience = patience
        self._queue = queue
        self._held = 0
        self._held_by: Counter[Hashable] = Counter()
        self._waiting: list[_Waiting] = []

    @property
    def held(self) -> int:
        """How many places are taken."""
        return self._held

    def resize(self, total: int, each: int, patience: float) -> None:
        """Other limits from now on; who holds a place keeps it."""
        self._total, self._each, self._patience = total, each, patience
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
        if not self._patience or len(self._waiting) >= self._queue:
            raise self._refusal()
        mine = _Waiting(keys, asyncio.get_running_loop().create_future())
        self._waiting.append(mine)
        try:
            await asyncio.wait({mine.admitted}, timeout=self._patience)
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
        """Ends what `take` began."""
        self._held -= 1
        self._held_by -= Counter(keys)
        self._admit()

    def _admit(self) -> None:
        for waiting in list(self._waiting):
            if self._fits(waiting.keys):
                self._waiting.remove(waiting)
                self._hold(waiting.keys)
                waiting.admitted.set_result(None)
