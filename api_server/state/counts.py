"""How long lists are, as counted a moment ago: counting a long one takes as long as reading a page of it."""

import time
from collections.abc import Callable, Hashable

from cachetools import TTLCache

#: Up to here it is counted each time, and is exact.
COUNTED_ANEW = 1_000
#: Seconds after which what other processes have done is seen at the latest, here and wherever something is remembered.
REMEMBERED_FOR = 0.9


class Counts:
    """By list and parameters; forgotten whenever this process commits anything."""

    def __init__(self, timer: Callable[[], float] = time.monotonic) -> None:
        self._counts: TTLCache[Hashable, tuple[int, int]] = TTLCache(10_000, REMEMBERED_FOR, timer)

    def get(self, key: Hashable, generation: int) -> int | None:
        """What was counted, if nothing has been committed since `generation` of the database."""
        known = self._counts.get(key)
        return known[1] if known is not None and known[0] == generation else None

    def keep(self, key: Hashable, generation: int, count: int) -> None:
        """Remembers what was counted when the database was of that generation, if that is long."""
        if count > COUNTED_ANEW:
            self._counts[key] = generation, count
