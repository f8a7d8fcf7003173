"""When an invitation that nobody answers is brought to mind again: pure rules."""

import datetime

_DAYS = (2, 5, 10)
#: Invitations that last no longer get their reminders sooner, in the same proportion.
_FULL_LENGTH = 14
MOST = len(_DAYS)


def days(lifespan: int | None) -> tuple[int, ...]:
    """Days after its making on which an invitation of that many days (None: without end) is brought to mind."""
    if lifespan is None or lifespan >= _FULL_LENGTH:
        return _DAYS
    return tuple(-(-day * lifespan // _FULL_LENGTH) for day in _DAYS)


def due(created: datetime.date, expires: datetime.date | None, today: datetime.date) -> int:
    """How many reminders should have been sent by `today`; from the day of expiry on no further one is sent."""
    if expires is not None and today >= expires:
        return 0
    lifespan = (expires - created).days if expires else None
    return sum(today >= created + datetime.timedelta(days=day) for day in days(lifespan))
