"""How many git processes run at once for clients: in all, and for each user, address and project."""

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

from aiohttp import web

from api_server.namespaces.resources import Project
from api_server.settings import Settings
from api_server.web import context
from api_server.web.auth import Anonymous, Caller
from common.concurrency import ConcurrencyLimiter, TooBusy

#: Seconds after which a client that got no place should come again.
RETRY_AFTER = 30
#: Requests that wait for a place.
QUEUE = 200

_BUSY = "The server has too many git requests of yours or for this project at the moment, try again in a minute.\n"


class Places:
    """Strangers have places of their own, so that they leave those of users alone."""

    def __init__(self, settings: Settings) -> None:
        each, patience = settings.git_processes_each, settings.git_queue_timeout
        self._users = ConcurrencyLimiter(settings.git_processes, each, patience=patience, queue=QUEUE)
        self._strangers = ConcurrencyLimiter(
            settings.git_anonymous_processes, each, patience=patience, queue=QUEUE
        )

    @asynccontextmanager
    async def place(
        self, request: web.Request, project: Project, who: Caller | Anonymous
    ) -> AsyncIterator[None]:
        """Raises 429."""
        keys: tuple[Hashable, ...] = (("project", project.id), ("address", request.remote))
        limiter = self._strangers
        if isinstance(who, Caller):
            keys, limiter = (("project", project.id), ("user", who.user_id)), self._users
        try:
            async with limiter.place(*keys):
                yield
        except TooBusy:
            headers = {"Retry-After": str(RETRY_AFTER)}
            raise web.HTTPTooManyRequests(text=_BUSY, headers=headers) from None


PLACES: web.AppKey[Places] = web.AppKey("git_places", Places)


def setup(app: web.Application) -> None:
    app[PLACES] = Places(app[context.SETTINGS])
