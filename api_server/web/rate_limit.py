"""How often somebody may ask: counts per key in windows of a minute, in this process or in all workers together."""

import time
from collections.abc import Callable, Hashable

from cachetools import TTLCache

from common.workers import shared_windows

WINDOW = 60.0


class RateLimiter:
    """Allows `limit()` requests a minute for each key; 0 allows all. Among workers, those of one `name` count
    together."""

    def __init__(self, name: str, limit: Callable[[], int]) -> None:
        self._name = name
        self._limit = limit
        self._started: TTLCache[Hashable, list[float]] = TTLCache(maxsize=100_000, ttl=WINDOW)

    def forget(self) -> None:
        """Nobody has asked this process yet."""
        self._started.clear()

    def retry_after(self, key: Hashable) -> int:
        """Counts one request: 0 where it may go on, else the seconds until the next may."""
        limit = self._limit()
        if not limit:
            return 0
        shared = shared_windows()
        if shared is None:
            age, count = self._count(key)
        else:
            age, count = shared.count(repr((self._name, key)).encode(), WINDOW)
        return 0 if count <= limit else max(1, round(WINDOW - age))

    def _count(self, key: Hashable) -> tuple[float, float]:
        """As `SharedWindows.count`."""
        window = self._started.get(key)
        if window is None:
            window = self._started[key] = [time.monotonic(), 0]
        window[1] += 1
        return time.monotonic() - window[0], window[1]
