"""When a delivery that failed is tried again (decision D5); pure."""

import datetime

from common import http_fields

_SECOND = datetime.timedelta(seconds=1)
_MINUTE = 60 * _SECOND
_HOUR = 60 * _MINUTE

#: The waits after the first, second, ... failed try; after the last one a delivery has failed.
WAITS = (5 * _SECOND, 30 * _SECOND, 2 * _MINUTE, 10 * _MINUTE, _HOUR, 6 * _HOUR, 24 * _HOUR)
#: A wait grows by up to this share of itself, so that what failed together does not come back together.
JITTER = 0.1
#: A receiver that asks for more patience gets this much.
LONGEST_RETRY_AFTER = 24 * _HOUR


def wait_after(
    tries: int, random: float, retry_after: datetime.timedelta | None = None
) -> datetime.timedelta | None:
    """How long to wait after the `tries`-th try (from 1) has failed; None when it was the last.

    `random` is from [0, 1). `retry_after`, the receiver's wish, can only make the wait longer.
    """
    if tries > len(WAITS):
        return None
    wait = WAITS[tries - 1] * (1 + JITTER * random)
    return max(wait, min(retry_after, LONGEST_RETRY_AFTER)) if retry_after is not None else wait


def retry_after(header: str | None, now: datetime.datetime) -> datetime.timedelta | None:
    """The wait that a `Retry-After` header asks for (RFC 9110 10.2.3): seconds or a date; None for anything else."""
    text = (header or "").strip()
    if text.isascii() and text.isdecimal():
        return min(int(text[:10]) * _SECOND, LONGEST_RETRY_AFTER)
    moment = http_fields.parse_date(text, now.timestamp())
    return None if moment is None else max(0.0, moment - now.timestamp()) * _SECOND
