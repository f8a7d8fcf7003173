"""Rate limits: counts by key in time windows, of this process or of all workers together."""

import datetime
import time
from collections.abc import Callable, Hashable, Mapping
from email.utils import format_datetime
from math import ceil

import attrs
from cachetools import TLRUCache

from api_server.services import Key
from common.workers import shared_windows

#: The length of the window of `RateLimiter` in seconds.
WINDOW = 60.0
#: Maximum number of keys of one kind that are remembered.
_MAX_KEYS = 100_000


class Windows:
    """Counts by key in time windows: of this process, or of all workers together, which share the counts of
    one `name`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._windows: TLRUCache[Hashable, _Window] = TLRUCache(_MAX_KEYS, lambda _, window, __: window.end)

    def forget(self) -> None:
        """Forget all counts of this process."""
        self._windows.clear()

    def count(self, key: Hashable, seconds: float) -> tuple[float, int]:
        """Count one more request for `key` in a window of `seconds`. Return for how many seconds the window
        has been open, and the number of requests in it."""
        shared = shared_windows()
        if shared is not None:
            return shared.count(repr((self._name, key)).encode(), seconds)
        now = time.monotonic()
        window = self._windows.get(key)
        if window is None:
            window = self._windows[key] = _Window(now, now + seconds)
        window.count += 1
        return now - window.start, window.count


@attrs.define
class _Window:
    start: float
    end: float
    count: int = 0


class RateLimiter:
    """Allows `limit()` requests a minute for each key; 0 allows all. Limiters with the same `name` share
    their counts among workers."""

    def __init__(self, name: str, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._windows = Windows(name)

    def forget(self) -> None:
        """Forget all counts of this process."""
        self._windows.forget()

    def retry_after(self, key: Hashable) -> int:
        """Count one request. Return 0 if it is allowed, otherwise the seconds until the next may be."""
        limit = self._limit()
        if not limit:
            return 0
        age, count = self._windows.count(key, WINDOW)
        return 0 if count <= limit else max(1, round(WINDOW - age))


#: The defaults if the limit is merely switched on, as in GitLab.
MAX_REQUESTS = 7_200
PERIOD_SECONDS = 3_600

_NAME = "throttle_authenticated_api"


@attrs.frozen
class Rate:
    """A limit of `requests` in each period of `seconds`. All periods begin at the same moments."""

    requests: int
    seconds: int


class TooOften(Exception):
    """The request is refused until the next period: 429 with GitLab's `headers`."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        super().__init__(headers)
        self.headers = headers


class Throttle:
    """The requests of each user in the current period, of this process or of all workers together."""

    def __init__(self) -> None:
        self._windows = Windows(_NAME)

    def forget(self) -> None:
        """Forget all counts of this process."""
        self._windows.forget()

    def count(self, user_id: int, rate: Rate, now: datetime.datetime) -> None:
        """Count one request. Raise `TooOften` if it exceeds the limit."""
        period = int(now.timestamp()) // rate.seconds
        _, observed = self._windows.count((user_id, rate.seconds, period), rate.seconds)
        if observed > rate.requests:
            raise TooOften(_throttle_headers(rate, observed, (period + 1) * rate.seconds, now))


THROTTLE = Key[Throttle]("throttle")


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
