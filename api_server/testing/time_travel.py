"""Moving the clock: what has become due by then is done before anybody sees the later time."""

import datetime

from aiohttp import web

from api_server.operations.figures import FIGURES
from api_server.outbound.edges import EDGES
from api_server.state.queue import QUEUE
from api_server.testing import memory, time_queries
from api_server.testing.clock import MOVABLE_CLOCK
from api_server.testing.snapshots import SNAPSHOTS
from api_server.testing.steering import refused
from api_server.web.context import CLOCK, DATABASE, SETTINGS
from api_server.web.rate_limits import WINDOW

#: How far the clock may be ahead of the machine's.
FURTHEST = datetime.timedelta(days=365 * 100)


async def move(app: web.Application, by: datetime.timedelta) -> list[str]:
    """Moves the clock forward; what is due by then is done, but for what these names say, which takes longer. Raises
    400, 409 and 503."""
    if by < datetime.timedelta():
        raise refused("The clock moves forward only; POST /-/testing/reset sets it back.")
    clock = app[MOVABLE_CLOCK]
    if clock.ahead + by > FURTHEST:
        raise refused(f"The clock may be ahead by {FURTHEST.days} days at most.")
    async with app[SNAPSHOTS].alone(cut=False):
        since = app[CLOCK]()
        ahead = clock.ahead + by
        if problems := await app[EDGES].set_clock(ahead.total_seconds()):
            raise refused(
                f"The clock of an edge cannot be moved: {'; '.join(problems)}", web.HTTPServiceUnavailable
            )
        clock.ahead = ahead
        await app[SNAPSHOTS].tables.run(time_queries.MOVE_CLOCK, ahead=ahead)
        if by.total_seconds() >= WINDOW:  # by a clock that cannot be moved
            memory.forget_who_asked(app)
        app[DATABASE].note_change()
        app[FIGURES].forget()
    if app[SETTINGS].work:
        await app[QUEUE].defer_periodic(since, app[CLOCK]())
    return await app[SNAPSHOTS].settle()
