"""The application's one session for requests to addresses that users name, and the settings that bound it."""

from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import orjson
from aiohttp import web
from aiohttp.abc import AbstractResolver

from api_server.platform.outbound.client import PolicySource, create_session
from api_server.platform.outbound.destinations import MIRROR_SCHEMES, parse_destination
from api_server.platform.outbound.policy import AllowList, Policy
from api_server.settings import Settings
from api_server.state.database import Statement
from api_server.state.recent import Recent
from api_server.web.context import DATABASE, SETTINGS

#: Tests set it; without it names are resolved as this machine does.
RESOLVER = web.AppKey("resolver", AbstractResolver)
OUTGOING_SESSION = web.AppKey("outgoing_session", aiohttp.ClientSession)
#: What is allowed at this moment; `check_url` and every new connection ask for it.
OUTGOING_POLICY: web.AppKey[PolicySource] = web.AppKey("outgoing_policy")  # type: ignore[assignment]

#: Deliveries are small: who has not taken one in this time (seconds) is slow.
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)
USER_AGENT = "forgelet"

READ_SETTINGS = Statement("""
    SELECT application_settings.values FROM application_settings
""")


async def outgoing(app: web.Application) -> AsyncIterator[None]:
    """Opens the session, and closes it with the application."""
    resolver = app.get(RESOLVER) or aiohttp.ThreadedResolver()
    app[RESOLVER] = resolver
    remembered: Recent[Policy] = Recent(app[DATABASE])

    async def policy() -> Policy:
        found = await remembered.get("policy", read)
        return found or Policy()

    async def read() -> Policy:
        values = orjson.loads(await app[DATABASE].value(READ_SETTINGS) or "{}")
        return policy_of(app[SETTINGS], values)

    app[OUTGOING_POLICY] = policy
    async with create_session(policy, resolver, timeout=TIMEOUT, user_agent=USER_AGENT) as session:
        app[OUTGOING_SESSION] = session
        yield


def policy_of(settings: Settings, values: dict[str, Any]) -> Policy:
    """What the operator's settings and the administrators' (`values`, by GitLab's keys) allow together."""
    return Policy(
        instance=parse_destination(settings.base_url, MIRROR_SCHEMES),
        allow_local_requests=settings.allow_local_requests
        or bool(values.get("allow_local_requests_from_web_hooks_and_services")),
        deny_all_but_allowed=bool(values.get("deny_all_requests_except_allowed")),
        allow_list=AllowList.parse(values.get("outbound_local_requests_whitelist") or []),
    )
