"""Joins the controls to the application, where it is a server for tests."""

from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Middleware

from api_server.settings import Settings
from api_server.state.database import Clock
from api_server.testing import (
    failing,
    handlers,
    recording,
    state_handlers,
    steering,
    table_queries,
    turnstile,
)
from api_server.testing.clock import MOVABLE_CLOCK, MovableClock
from api_server.testing.failures import FAILURES_TO_COME, Failures
from api_server.testing.journal import JOURNAL, Filter, Journal
from api_server.testing.snapshots import SNAPSHOTS, Snapshots
from api_server.testing.turnstile import TURNSTILE, Turnstile
from api_server.web.context import SETTINGS


def middlewares(settings: Settings) -> list[Middleware]:
    """What stands before everything else, in this order."""
    if not settings.testing:
        return []
    return [steering.steering, turnstile.one_state_at_a_time, recording.recorded, failing.failing]


def clock_of(app: web.Application, clock: Clock) -> Clock:
    """The clock that the application goes by."""
    if not app[SETTINGS].testing:
        return clock
    movable = app[MOVABLE_CLOCK] = MovableClock(clock)
    return movable


def search_path(settings: Settings) -> str:
    """Where PostgreSQL finds the clock of the queue, where that is not its own."""
    return f'{table_queries.SCHEMA},pg_catalog,"$user",public' if settings.testing else ""


def setup(app: web.Application, settings: Settings) -> None:
    """Adds the routes below /-/testing, which do not exist elsewhere."""
    if not settings.testing:
        return
    journal = app[JOURNAL] = Journal()
    failures = app[FAILURES_TO_COME] = Failures()
    app[TURNSTILE] = Turnstile()
    app[SNAPSHOTS] = Snapshots(app)
    app[state_handlers.ON_RESET] = [lambda: journal.forget(Filter()), failures.clear]
    app.on_response_prepare.append(failing.add_headers)
    app.on_response_prepare.append(recording.note_begun_answer)
    app.add_routes(handlers.ROUTES)
    app.add_routes(state_handlers.ROUTES)


async def snapshots(app: web.Application) -> AsyncIterator[None]:
    """Keeps the state of the start before anything can change it; and what snapshots need while the server runs."""
    if not app[SETTINGS].testing:
        yield
        return
    async with app[SNAPSHOTS].working():
        yield
