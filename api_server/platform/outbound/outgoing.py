"""The application's one session for requests to addresses that users name, and the settings that bound it."""

from collections.abc import AsyncIterator

import aiohttp
from aiohttp import web
from aiohttp.abc import AbstractResolver

from api_server.platform.outbound.client import PolicySource, create_session
from api_server.platform.outbound.destinations import MIRROR_SCHEMES, parse_destination
from api_server.platform.outbound.policy import AllowList, Policy
from api_server.platform.settings.values import InstanceSettings, current
from api_server.settings import Settings
from api_server.web.context import SETTINGS

#: Tests set it; without it names are resolved as this machine does.
RESOLVER = web.AppKey("resolver", AbstractResolver)
OUTGOING_SESSION = web.AppKey("outgoing_session", aiohttp.ClientSession)
#: What is allowed at this moment; `check_url` and every new connection ask for it.
OUTGOING_POLICY: web.AppKey[PolicySource] = web.AppKey("outgoing_policy")

#: Deliveries are small: who has not taken one in this time (seconds) is slow.
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)
USER_AGENT = "forgelet"


async def outgoing(app: web.Application) -> AsyncIterator[None]:
    """Opens the session, and closes it with the application."""
    resolver = app.get(RESOLVER) or aiohttp.ThreadedResolver()
    app[RESOLVER] = resolver

    async def policy() -> Policy:
        return policy_of(app[SETTINGS], await current(app))

    app[OUTGOING_POLICY] = policy
    async with create_session(policy, resolver, timeout=TIMEOUT, user_agent=USER_AGENT) as session:
        app[OUTGOING_SESSION] = session
        yield


def policy_of(operator: Settings, instance: InstanceSettings) -> Policy:
    """What the operator's and the administrators' settings allow together."""
    return Policy(
        instance=parse_destination(operator.base_url, MIRROR_SCHEMES),
        allow_local_requests=operator.allow_local_requests
        or instance.allow_local_requests_from_web_hooks_and_services,
        allow_list=AllowList.parse(instance.outbound_local_requests_whitelist),
    )
