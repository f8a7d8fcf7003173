"""How often somebody may ask: counts for each key in windows of time, of this process or of all workers together."""

import datetime
import time
from collections.abc import Callable, Hashable, Mapping
from email.utils import format_datetime
from math import ceil

import attrs
from aiohttp import web
from cachetools import LRUCache, TTLCache

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


#: What holds where it is only switched on, as in GitLab.
MOST_REQUESTS = 7_200
PERIOD_SECONDS = 3_600

_NAME = "throttle_authenticated_api"
_MOST_USERS = 100_000


@attrs.frozen
class Rate:
    """So many requests in each period of so many seconds, which all begin at the same moments."""

    requests: int
    seconds: int


class TooOften(Exception):
    """Refused until the next period: 429 with GitLab's `headers`."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.headers = headers


class Throttle:
    """The requests of each user in the present period: of this process, or of all workers together."""

    def __init__(self) -> None:
        self._seen: LRUCache[int, tuple[int, int]] = LRUCache(maxsize=_MOST_USERS)

    def forget(self) -> None:
        """Nobody has asked this process yet."""
        self._seen.clear()

    def count(self, user_id: int, rate: Rate, now: datetime.datetime) -> None:
        """Counts one request. Raises `TooOften` where it is one too many."""
        period = int(now.timestamp()) // rate.seconds
        shared = shared_windows()
        if shared is None:
            observed = self._observe(user_id, period)
        else:
            key = f"{_NAME} {user_id} {rate.seconds} {period}"
            _, observed = shared.count(key.encode(), rate.seconds)
        if observed > rate.requests:
            raise TooOften(_throttle_headers(rate, observed, (period + 1) * rate.seconds, now))

    def _observe(self, user_id: int, period: int) -> int:
        """How many there are with this one."""
        then, before = self._seen.get(user_id, (period, 0))
        observed = before + 1 if then == period else 1
        self._seen[user_id] = period, observed
        return observed


THROTTLE = web.AppKey("throttle", Throttle)


def _throttle_headers(rate: Rate, observed: int, reset: int, now: datetime.datetime) -> dict[str, str]:
    moment = datetime.datetime.fromtimestamp(reset, datetime.UTC)
    return {
        "Retry-After": str(max(1, ceil(reset - now.timestamp()))),
        "RateLimit-Limit": str(ceil(rate.requests * 60 / rate.seconds)),
        "RateLimit-Name": _NAME,
        "RateLimit-Observed": str(observed),
        "RateLimit-Remaining": "0",
        "RateLimit-Reset": str(reset),
        "RateLimit-ResetTime": format_datetime(moment, usegmt=True),
    }
