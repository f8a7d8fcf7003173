"""The application's clock where it can be moved: forward only, and back with the state."""

import datetime

import attrs

from api_server.services import Key
from api_server.state.database import Clock


@attrs.define
class MovableClock:
    """Goes on as the clock below it does, `ahead` of it."""

    _machine: Clock
    ahead: datetime.timedelta = datetime.timedelta()

    def __call__(self) -> datetime.datetime:
        return self._machine() + self.ahead


def written(moment: datetime.datetime) -> str:
    """As the controls show it: `2027-01-01T00:00:00.000Z`."""
    return moment.astimezone(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


MOVABLE_CLOCK = Key[MovableClock]("movable_clock")
