"""What a request finds in the application: its services; and how the application hears of changed rights.

Triggers send the notices of changed rights (`tell_of_rights`), so that it does not matter who writes. While nobody
listens (a broken connection, a listener that is to be started again) what is remembered is as old as
`database.REMEMBERED_FOR` at most.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.services import Services
from api_server.state.driver import listening_connection
from api_server.state.errors import LockNotAvailable
from api_server.state.preconditions import ChangedMeanwhile, Preconditions

_READS = frozenset({"GET", "HEAD"})
#: How often a request is judged before it is told (409) that others were always faster.
_ATTEMPTS = 4
SERVICES = web.AppKey("services", Services)
_OF_REQUEST = web.RequestKey("services_of_request", Services)


def services(request: web.Request) -> Services:
    """The server's services as the request uses them: see `Services.for_request`."""
    own = request.get(_OF_REQUEST)
    if own is None:
        shared = request.match_info.apps[0][SERVICES]  # `request.config_dict` looks through all applications
        own = request[_OF_REQUEST] = shared.for_request(None, reads=request.method in _READS)
    return own


def with_services(handler: Callable[[web.Request, Services], Awaitable[web.StreamResponse]]) -> Handler:
    """Return a handler that gives `handler` the request and its services."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, services(request))

    return handle


def judging_again(answer: Handler) -> Handler:
    """`answer` to requests that write, judged again where what they were judged on has changed. Raises
    `LockNotAvailable` where it always changes."""

    async def answered(request: web.Request) -> web.StreamResponse:
        shared = services(request).shared
        for _ in range(_ATTEMPTS):
            request[_OF_REQUEST] = shared.for_request(Preconditions(), reads=False)
            try:
                return await answer(request)
            except ChangedMeanwhile:
                shared.database.note_change()  # lookups read anew what another process has changed
        raise LockNotAvailable

    return answered


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
