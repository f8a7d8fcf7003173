"""How often each of many may do something: so many times a second, and so many at once."""

import math

import cachetools

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
        """From now on; a rate of 0 limits nothing."""
        self._interval = 1 / rate if rate else 0.0
        self._tolerance = self._interval * (max(burst, 1) - 1)

    def forget(self) -> None:
        """Nobody has done anything yet."""
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
