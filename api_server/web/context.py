"""What handlers find in the application: settings, database, vault, clock; and how it hears of changed rights.

Triggers send the notices of changed rights (migration 0231), so that it does not matter who writes. While nobody
listens (a broken connection, a listener that is to be started again) what is remembered is as old as
`database.REMEMBERED_FOR` at most.
"""

import datetime
from collections.abc import AsyncIterator

from aiohttp import web

from api_server.services import Services
from api_server.settings import Settings
from api_server.state.database import Database
from api_server.state.driver import listening_connection
from api_server.state.secrets import Vault
from api_server.web.grounds import held_by

_READS = frozenset({"GET", "HEAD"})
SERVICES = web.AppKey("services", Services)


def services(request: web.Request) -> Services:
    """The server's services, whose database is the request's: transactions begin by checking what the request has been
    judged on (`web/grounds.py`), and what requests that only read show may come from a replica."""
    shared = request.match_info.apps[0][SERVICES]  # `request.config_dict` looks through all applications
    database = held_by(request, shared.database)
    return shared.for_request(database.showing() if request.method in _READS else database)


def settings(request: web.Request) -> Settings:
    return services(request).settings


def database(request: web.Request) -> Database:
    return services(request).database


def forget(request: web.Request) -> None:
    """What was remembered of the database may be old, since another process has changed it."""
    services(request).database.note_change()


def vault(request: web.Request) -> Vault:
    return services(request).vault


def now(request: web.Request) -> datetime.datetime:
    return services(request).now


RIGHTS_CHANNEL = "rights_changed"
RIGHTS_LISTENER = "listening for changed rights"
#: Seconds until a lost connection is made again, at most.
RECONNECT_AFTER = 1.0


async def hear_of_changed_rights(services: Services) -> AsyncIterator[None]:
    """While the server runs."""
    database, url = services.database, services.settings.unpooled_url

    async def listen() -> None:
        """Raises `Unavailable` when the connection is lost."""
        async with listening_connection(url, RIGHTS_CHANNEL) as connection:
            database.note_change()  # whatever happened while nobody listened
            while True:
                await connection.notification()
                database.note_change()

    services.background.start(RIGHTS_LISTENER, listen, longest_pause=RECONNECT_AFTER)
    yield
    await services.background.finish(RIGHTS_LISTENER, 0)
