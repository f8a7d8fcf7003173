"""What handlers find in the application: settings, database, vault, clock; and how it hears of changed rights.

Triggers send the notices of changed rights (migration 0231), so that it does not matter who writes. While nobody
listens (a broken connection, a listener that is to be started again) what is remembered is as old as
`database.REMEMBERED_FOR` at most.
"""

import datetime
from collections.abc import AsyncIterator, Callable

from aiohttp import web
from aiohttp.helpers import ChainMapProxy

from api_server.settings import Settings
from api_server.state.database import Clock, Database
from api_server.state.driver import listening_connection
from api_server.state.secrets import Vault
from api_server.web.grounds import held_by
from common.lifecycle import BACKGROUND

_READS = frozenset({"GET", "HEAD"})
#: The application, or what a request within it sees of it (`request.config_dict`).
App = web.Application | ChainMapProxy

SETTINGS = web.AppKey("settings", Settings)
DATABASE = web.AppKey("database", Database)
VAULT = web.AppKey("vault", Vault)
CLOCK: web.AppKey[Clock] = web.AppKey("clock", Callable[[], datetime.datetime])  # type: ignore[arg-type]


def settings(request: web.Request) -> Settings:
    return _outermost(request)[SETTINGS]


def database(request: web.Request) -> Database:
    """Its transactions begin with making sure of what the request has been judged on (`web/grounds.py`). What requests
    show that only read may come from a replica."""
    database = held_by(request, _outermost(request)[DATABASE])
    return database.showing() if request.method in _READS else database


def forget(request: web.Request) -> None:
    """What was remembered of the database may be old, since another process has changed it."""
    _outermost(request)[DATABASE].note_change()


def vault(request: web.Request) -> Vault:
    return _outermost(request)[VAULT]


def now(request: web.Request) -> datetime.datetime:
    return _outermost(request)[CLOCK]()


def _outermost(request: web.Request) -> web.Application:
    """Where everything stands; `request.config_dict` finds it too, by looking through all applications each time."""
    return request.match_info.apps[0]


RIGHTS_CHANNEL = "rights_changed"
RIGHTS_LISTENER = "listening for changed rights"
#: Seconds until a lost connection is made again, at most.
RECONNECT_AFTER = 1.0


async def hear_of_changed_rights(app: web.Application) -> AsyncIterator[None]:
    """While the application runs."""
    database, url = app[DATABASE], app[SETTINGS].unpooled_url

    async def listen() -> None:
        """Raises `Unavailable` when the connection is lost."""
        async with listening_connection(url, RIGHTS_CHANNEL) as connection:
            database.note_change()  # whatever happened while nobody listened
            while True:
                await connection.notification()
                database.note_change()

    app[BACKGROUND].start(RIGHTS_LISTENER, listen, longest_pause=RECONNECT_AFTER)
    yield
    await app[BACKGROUND].finish(RIGHTS_LISTENER, 0)
