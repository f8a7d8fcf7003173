"""The services of a request, and notifications about changed rights.

Triggers send a notification whenever rights change (`tell_of_rights`), no matter which process writes. While
no listener is connected, caches are at most `database.REMEMBERED_FOR` seconds old.
"""

from collections.abc import AsyncIterator, Awaitable, Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.services import Services
from api_server.state.driver import listening_connection
from api_server.state.errors import LockNotAvailable
from api_server.state.preconditions import ChangedMeanwhile, Preconditions

_READS = frozenset({"GET", "HEAD"})
#: Attempts to judge a request before it gets a 409 because other requests were always faster.
_ATTEMPTS = 4
SERVICES = web.AppKey("services", Services)
_OF_REQUEST = web.RequestKey("services_of_request", Services)


def services(request: web.Request) -> Services:
    """Return the server's services as the request uses them: see `Services.for_request`."""
    own = request.get(_OF_REQUEST)
    if own is None:
        shared = request.match_info.apps[0][SERVICES]  # `request.config_dict` would search all applications
        own = request[_OF_REQUEST] = shared.for_request(None, reads=request.method in _READS)
    return own


def with_services(handler: Callable[[web.Request, Services], Awaitable[web.StreamResponse]]) -> Handler:
    """Return a handler that gives `handler` the request and its services."""

    async def handle(request: web.Request) -> web.StreamResponse:
        return await handler(request, services(request))

    return handle


def judging_again(answer: Handler) -> Handler:
    """Return a handler that runs `answer` for requests that write, and runs it again if the data on which it
    was judged has changed. Raise `LockNotAvailable` if that happens every time."""

    async def answered(request: web.Request) -> web.StreamResponse:
        shared = services(request).shared
        for _ in range(_ATTEMPTS):
            request[_OF_REQUEST] = shared.for_request(Preconditions(), reads=False)
            try:
                return await answer(request)
            except ChangedMeanwhile:
                shared.database.note_change()  # caches read again what another process has changed
        raise LockNotAvailable

    return answered


RIGHTS_CHANNEL = "rights_changed"
RIGHTS_LISTENER = "listening for changed rights"
#: Maximum seconds until a lost connection is opened again.
RECONNECT_AFTER = 1.0


async def follow_changed_rights(services: Services) -> AsyncIterator[None]:
    """Listen for changed rights while the server runs."""
    database, url = services.database, services.settings.unpooled_url

    async def listen() -> None:
        """Listen until the connection is lost, then raise `Unavailable`."""
        async with listening_connection(url, RIGHTS_CHANNEL) as connection:
            database.note_change()  # rights may have changed while nobody listened
            while True:
                await connection.notification()
                database.note_change()

    services.background.start(RIGHTS_LISTENER, listen, longest_pause=RECONNECT_AFTER)
    yield
    await services.background.finish(RIGHTS_LISTENER, 0)
