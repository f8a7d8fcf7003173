"""What other processes, and people with psql, have changed of rights and settings: PostgreSQL tells of it, and nothing
that was remembered before counts any more.

Triggers send the notices (migration 0231), so that it does not matter who writes. While nobody listens (a broken
connection, a listener that is to be started again) what is remembered is as old as `counts.REMEMBERED_FOR` at
most.
"""

from collections.abc import AsyncIterator

from aiohttp import web

from api_server.state.listening import listening_connection
from api_server.web.context import DATABASE, SETTINGS
from common.lifecycle import BACKGROUND

CHANNEL = "rights_changed"
LISTENER = "listening for changed rights"
#: Seconds until a lost connection is made again, at most.
RECONNECT_AFTER = 1.0


async def heeded(app: web.Application) -> AsyncIterator[None]:
    """While the application runs."""
    database, url = app[DATABASE], app[SETTINGS].unpooled_url

    async def listen() -> None:
        """Raises `Unavailable` when the connection is lost."""
        async with listening_connection(url, CHANNEL) as connection:
            database.note_change()  # whatever happened while nobody listened
            while True:
                await connection.notification()
                database.note_change()

    app[BACKGROUND].start(LISTENER, listen, longest_pause=RECONNECT_AFTER)
    yield
    await app[BACKGROUND].finish(LISTENER, 0)
