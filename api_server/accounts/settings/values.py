"""The settings of the instance: one attrs value with every key, remembered for a moment."""

from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.accounts.settings import queries
from api_server.accounts.settings.queries import Stored
from api_server.settings import Settings
from api_server.state.database import Executor, LookupCache
from api_server.state.secrets import Vault
from api_server.web.context import DATABASE, SETTINGS, VAULT, App
from api_server.web.rate_limits import MOST_REQUESTS, PERIOD_SECONDS


@attrs.frozen(kw_only=True)
class InstanceSettings:
    """Every setting with its default; the fields are the keys of `/application/settings`."""

    static_objects_external_storage_url: str | None = None
    static_objects_external_storage_auth_token: str | None = attrs.field(default=None, repr=False)
    allow_local_requests_from_web_hooks_and_services: bool = False
    allow_local_requests_from_system_hooks: bool = True
    deny_all_requests_except_allowed: bool = False
    #: Addresses, networks and host names (with a port, perhaps) that may be called though they are local.
    outbound_local_requests_whitelist: list[str] = attrs.Factory(list)
    default_projects_limit: int = 100_000
    #: How often a user may ask the API.
    throttle_authenticated_api_enabled: bool = False
    throttle_authenticated_api_requests_per_period: int = MOST_REQUESTS
    throttle_authenticated_api_period_in_seconds: int = PERIOD_SECONDS


#: What fits GitLab's columns of them.
MAX_INTEGER = 2**31 - 1
#: Kept encrypted in a column of its own.
SECRET = "static_objects_external_storage_auth_token"


def defaults(settings: Settings) -> InstanceSettings:
    """What holds where nothing is set: the process settings of the same meaning."""
    return InstanceSettings(allow_local_requests_from_web_hooks_and_services=settings.allow_local_requests)


async def read(database: Executor, vault: Vault, unset: InstanceSettings) -> InstanceSettings:
    """As they are in the database now, `unset` where nothing is set."""
    return opened(await queries.read_settings(database), vault, unset)


def opened(stored: Stored, vault: Vault, unset: InstanceSettings) -> InstanceSettings:
    """As they are stored, `unset` where nothing is set."""
    values: dict[str, Any] = orjson.loads(stored.values)
    if stored.sealed_token is not None:
        values[SECRET] = vault.decrypt(stored.sealed_token)
    return attrs.evolve(unset, **values)


CURRENT: web.AppKey[LookupCache[InstanceSettings]] = web.AppKey("instance_settings", LookupCache)


async def current(app: App) -> InstanceSettings:
    """As they were a moment ago at most; a change made by this process is seen at once."""
    unset = defaults(app[SETTINGS])
    return await app[CURRENT].get("all", lambda: read(app[DATABASE], app[VAULT], unset)) or unset
