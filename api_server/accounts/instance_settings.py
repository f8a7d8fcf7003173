"""The instance's settings that administrators change while it runs, under GitLab's keys; cached for a
moment."""

from typing import Any
from urllib.parse import urlsplit

import attrs
import orjson

from api_server.accounts import instance_queries
from api_server.accounts.instance_queries import StoredSettings
from api_server.outbound.client import PolicySource
from api_server.outbound.destinations import MIRROR_SCHEMES, parse_destination
from api_server.outbound.policy import AllowList, Policy
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author
from api_server.state.database import Executor, LookupCache, Transaction
from api_server.state.secrets import Vault
from api_server.web.rate_limits import MAX_REQUESTS, PERIOD_SECONDS


@attrs.frozen(kw_only=True)
class InstanceSettings:
    """Every setting with its default; the fields are the keys of `/application/settings`."""

    static_objects_external_storage_url: str | None = None
    static_objects_external_storage_auth_token: str | None = attrs.field(default=None, repr=False)
    allow_local_requests_from_web_hooks_and_services: bool = False
    allow_local_requests_from_system_hooks: bool = True
    deny_all_requests_except_allowed: bool = False
    #: Addresses, networks and host names (optionally with a port) that may be called although they are local.
    outbound_local_requests_whitelist: list[str] = attrs.Factory(list)
    default_projects_limit: int = 100_000
    #: The limit of requests of a user to the API.
    throttle_authenticated_api_enabled: bool = False
    throttle_authenticated_api_requests_per_period: int = MAX_REQUESTS
    throttle_authenticated_api_period_in_seconds: int = PERIOD_SECONDS


#: The largest value of GitLab's columns for them.
MAX_INTEGER = 2**31 - 1
#: Stored encrypted in a column of its own.
SECRET = "static_objects_external_storage_auth_token"


def defaults(settings: Settings) -> InstanceSettings:
    """Return the default settings; some depend on the settings of the process."""
    return InstanceSettings(allow_local_requests_from_web_hooks_and_services=settings.allow_local_requests)


async def read(database: Executor, vault: Vault, unset: InstanceSettings) -> InstanceSettings:
    """Read the settings from the database, with the defaults in `unset`."""
    return opened(await instance_queries.read_settings(database), vault, unset)


def opened(stored: StoredSettings, vault: Vault, unset: InstanceSettings) -> InstanceSettings:
    """Return stored settings with their secret decrypted, with the defaults in `unset`."""
    values: dict[str, Any] = orjson.loads(stored.values)
    if stored.sealed_token is not None:
        values[SECRET] = vault.decrypt(stored.sealed_token)
    return attrs.evolve(unset, **values)


CURRENT = Key[LookupCache[InstanceSettings]]("instance_settings")


async def current(services: Services) -> InstanceSettings:
    """Return the settings, at most a moment old; changes by this process are included at once."""
    unset = defaults(services.settings)
    return await services[CURRENT].get("all", lambda: read(services.database, services.vault, unset)) or unset


def outbound_policy(services: Services) -> PolicySource:
    """Return a function that returns what the settings of the process and of the instance currently allow."""

    async def policy() -> Policy:
        operator, instance = services.settings, await current(services)
        return Policy(
            instance=parse_destination(operator.base_url, MIRROR_SCHEMES),
            allow_local_requests=operator.allow_local_requests
            or instance.allow_local_requests_from_web_hooks_and_services,
            deny_all_but_allowed=instance.deny_all_requests_except_allowed,
            allow_list=AllowList.parse(instance.outbound_local_requests_whitelist),
        )

    return policy


MAX_LENGTH = 255
MAX_ENTRIES = 1000

_URL = "static_objects_external_storage_url"
_ALLOW_LIST = "outbound_local_requests_whitelist"
#: Minimum values of numbers, 0 or 1.
_MINIMUMS = {
    "default_projects_limit": 0,
    "throttle_authenticated_api_requests_per_period": 1,
    "throttle_authenticated_api_period_in_seconds": 1,
}
_NEVER_IN_A_BASE_URL = frozenset(map(chr, range(33))) | {"\\", "\x7f", "?", "#"}


async def update(
    transaction: Transaction, vault: Vault, unset: InstanceSettings, values: dict[str, Any], author: Author
) -> dict[str, list[str]]:
    """Change the settings in `values`; `unset` holds the defaults. Return the errors by setting; if there are
    any, nothing is changed."""
    await instance_queries.lock_settings(transaction)
    before = await read(transaction, vault, unset)
    after = attrs.evolve(before, **values)
    if problems := _problems(after):
        return problems
    changed_values = attrs.asdict(after, filter=lambda field, value: value != getattr(unset, field.name))
    token = changed_values.pop(SECRET, None)
    await instance_queries.write_settings(
        transaction, orjson.dumps(changed_values).decode(), vault.encrypt(token) if token else None
    )
    for change in audit_trail.changes(
        before, after, [field.name for field in attrs.fields(InstanceSettings)]
    ):
        await _record(transaction, author, **change)
    return {}


def _problems(settings: InstanceSettings) -> dict[str, list[str]]:
    """Return the errors in the settings, by setting."""
    problems = {}
    url, token = (
        settings.static_objects_external_storage_url,
        settings.static_objects_external_storage_auth_token,
    )
    if url and (problem := _problem_with_url(url)):
        problems[_URL] = [problem]
    if url and not token:
        problems[SECRET] = ["can't be blank"]
    if len(token or "") > MAX_LENGTH:
        problems[SECRET] = [f"is too long (maximum is {MAX_LENGTH} characters)"]
    if problem := _problem_with_list(settings.outbound_local_requests_whitelist):
        problems[_ALLOW_LIST] = [problem]
    return problems | _problems_with_numbers(settings)


def _problems_with_numbers(settings: InstanceSettings) -> dict[str, list[str]]:
    problems = {}
    for name, minimum in _MINIMUMS.items():
        value = getattr(settings, name)
        if value < minimum:
            problems[name] = [f"must be greater than {'or equal to ' if minimum == 0 else ''}0"]
        if value > MAX_INTEGER:
            problems[name] = [f"must be less than or equal to {MAX_INTEGER}"]
    return problems


def _problem_with_url(url: str) -> str | None:
    if len(url) > MAX_LENGTH:
        return f"is too long (maximum is {MAX_LENGTH} characters)"
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "must be a valid URL"
    if parts.scheme not in ("http", "https"):
        return "is blocked: Only allowed schemes are http, https"
    if not host or parts.username is not None or set(url) & _NEVER_IN_A_BASE_URL:
        return "must be a valid URL"
    return None


def _problem_with_list(entries: list[str]) -> str | None:
    if len(entries) > MAX_ENTRIES:
        return f"is too long (maximum is {MAX_ENTRIES} entries)"
    if any(len(entry) > MAX_LENGTH for entry in entries):
        return f"is too long (maximum is {MAX_LENGTH} characters per entry)"
    try:
        AllowList.parse(entries)
    except ValueError as problem:
        return f"has an entry that cannot be used: {problem}"
    return None


async def _record(transaction: Transaction, author: Author, change: str, **values: Any) -> None:
    """Record the change of a setting; no event contains the token."""
    message = f"Changed {change}" if change == SECRET else None
    details = {} if change == SECRET else {name: audit_trail.as_text(value) for name, value in values.items()}
    target = INSTANCE.target(1, change)
    await audit_trail.record(
        transaction, "application_setting_updated", author, target, message, change=change, **details
    )
