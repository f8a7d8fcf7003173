"""The application's clock if it can be moved: forward, and back when the state is restored."""

import datetime

import attrs

from api_server.services import Key
from api_server.state.database import Clock


@attrs.define
class MovableClock:
    """A clock that runs `ahead` of the clock below it."""

    _machine: Clock
    ahead: datetime.timedelta = datetime.timedelta()

    def __call__(self) -> datetime.datetime:
        return self._machine() + self.ahead


def formatted(moment: datetime.datetime) -> str:
    """Return a moment in the format of the controls: `2027-01-01T00:00:00.000Z`."""
    return moment.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


MOVABLE_CLOCK = Key[MovableClock]("movable_clock")
