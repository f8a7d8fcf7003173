"""A server with a clock that tests set."""

import contextlib
import datetime
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import attrs

from api_server.web.context import SERVICES
from tests.support.forge import Forge, SharedForges, running_forge


@attrs.define
class MovedClock:
    """A clock that shows `now` until a test moves it."""

    now: datetime.datetime = datetime.datetime(2031, 3, 31, tzinfo=datetime.UTC)

    def __call__(self) -> datetime.datetime:
        return self.now

    @property
    def today(self) -> datetime.date:
        return self.now.date()

    def move(self, **by: float) -> None:
        """Move the clock by arguments of `timedelta`."""
        self.now += datetime.timedelta(**by)


def _install(app: Any) -> None:
    app[SERVICES].clock = MovedClock()


@contextlib.asynccontextmanager
async def forge_with_clock(
    database_url: str, data_dir: Path, **settings: Any
) -> AsyncIterator[tuple[Forge, MovedClock]]:
    """Yield a server without background work, and its clock."""
    async with running_forge(database_url, data_dir, _install, work=False, **settings) as forge:
        yield forge, forge.server.app[SERVICES].clock


async def shared_forge_with_clock(shared_forge: SharedForges) -> tuple[Forge, MovedClock]:
    """Return a shared server without background work, and its clock, which begins on the day after the one that it
    shows."""
    forge = await shared_forge(change_app=_install)
    clock = forge.server.app[SERVICES].clock
    clock.now = datetime.datetime.combine(clock.today, datetime.time(), datetime.UTC)
    clock.move(days=1)
    return forge, clock
