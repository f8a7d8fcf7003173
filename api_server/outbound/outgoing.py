"""The application's one session for requests to addresses that users name, and the settings that bound it."""

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractResolver

from api_server.outbound.client import PolicySource, create_session

#: Tests set it; without it names are resolved as this machine does.
RESOLVER = web.AppKey("resolver", AbstractResolver)
OUTGOING_SESSION = web.AppKey("outgoing_session", aiohttp.ClientSession)
#: What is allowed at this moment; `check_url` and every new connection ask for it.
OUTGOING_POLICY: web.AppKey[PolicySource] = web.AppKey("outgoing_policy")

#: Deliveries are small: who has not taken one in this time (seconds) is slow.
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)
USER_AGENT = "forgelet"


async def outgoing(app: web.Application) -> AsyncIterator[None]:
    """Opens the session under the application's OUTGOING_POLICY, and closes it with the application."""
    resolver = app.get(RESOLVER) or aiohttp.ThreadedResolver()
    app[RESOLVER] = resolver

    async with create_session(
        app[OUTGOING_POLICY], resolver, timeout=TIMEOUT, user_agent=USER_AGENT
    ) as session:
        app[OUTGOING_SESSION] = session
        yield
