"""How often somebody may ask: counts per key in windows of a minute, in this process."""

import time
from collections.abc import Callable, Hashable

from cachetools import TTLCache

WINDOW = 60.0


class RateLimiter:
    """Allows `limit()` requests a minute for each key; 0 allows all."""

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._started: TTLCache[Hashable, list[float]] = TTLCache(maxsize=100_000, ttl=WINDOW)

    def forget(self) -> None:
        """Nobody has asked yet."""
        self._started.clear()

    def retry_after(self, key: Hashable) -> int:
        """Counts one request: 0 where it may go on, else the seconds until the next may."""
        limit = self._limit()
        if not limit:
            return 0
        window = self._started.get(key)
        if window is None:
            window = self._started[key] = [time.monotonic(), 0]
        window[1] += 1
        if window[1] <= limit:
            return 0
        return max(1, round(WINDOW - (time.monotonic() - window[0])))
