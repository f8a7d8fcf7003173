"""Adding the controls to the application if it is a server for tests."""

import typing
from collections.abc import AsyncIterator

from aiohttp import web
from aiohttp.typedefs import Middleware

from api_server.services import Services
from api_server.settings import Settings
from api_server.state.database import Clock
from api_server.testing import failures, handlers, journal, queries, quiet, steering
from api_server.testing.clock import MOVABLE_CLOCK, MovableClock
from api_server.testing.failures import FAILURES_TO_COME, Failures
from api_server.testing.journal import JOURNAL, Filter, Journal
from api_server.testing.quiet import REQUEST_GATE, RequestGate
from api_server.testing.snapshots import SNAPSHOTS, Snapshots
from api_server.web.context import SERVICES


def middlewares(settings: Settings) -> list[Middleware]:
    """Return the middlewares that run before all others, in this order."""
    if not settings.testing:
        return []
    return [steering.steering, quiet.one_state_at_a_time, journal.recorded, failures.failing]


def clock_of(settings: Settings, clock: Clock) -> Clock:
    """Return the application's clock, which can be moved on a server for tests."""
    return MovableClock(clock) if settings.testing else clock


def search_path(settings: Settings) -> str:
    """Return the search path with which PostgreSQL finds the queue's movable clock, or an empty text."""
    return f'{queries.SCHEMA},pg_catalog,"$user",public' if settings.testing else ""


def setup(app: web.Application, settings: Settings) -> None:
    """Add the routes below /-/testing, which exist only on a server for tests."""
    services = app[SERVICES]
    if not settings.testing:
        return
    services[MOVABLE_CLOCK] = typing.cast("MovableClock", services.clock)
    requests = services[JOURNAL] = Journal()
    ordered = services[FAILURES_TO_COME] = Failures()
    services[REQUEST_GATE] = RequestGate()
    services[SNAPSHOTS] = Snapshots(services)
    services[handlers.ON_RESET] = [lambda: requests.forget(Filter()), ordered.clear]
    app.on_response_prepare.append(failures.add_headers)
    app.on_response_prepare.append(journal.note_begun_answer)
    app.add_routes(handlers.ROUTES)


async def snapshots(services: Services) -> AsyncIterator[None]:
    """Store the state of the start before anything can change it, and keep snapshots usable while the server
    runs."""
    if not services.settings.testing:
        yield
        return
    async with services[SNAPSHOTS].working():
        yield
