"""What the platform keeps in the application."""

import aiohttp
from aiohttp import web

from api_server.git.repositories import Repositories
from api_server.state.objects import Objects
from api_server.state.queue import Queue

REPOSITORIES = web.AppKey("repositories", Repositories)
QUEUE = web.AppKey("queue", Queue)
OBJECTS = web.AppKey("objects", Objects)
#: The session for calls to our own parts (edges); calls to addresses that users name go through `outbound`.
INTERNAL_SESSION = web.AppKey("internal_session", aiohttp.ClientSession)


def repositories(request: web.Request) -> Repositories:
    return request.config_dict[REPOSITORIES]
