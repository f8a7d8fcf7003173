"""What changing the settings of the instance means, in the caller's transaction."""

from typing import Any
from urllib.parse import urlsplit

import attrs
import orjson

from api_server.accounts.settings import queries
from api_server.accounts.settings.values import MAX_INTEGER, SECRET, InstanceSettings, read
from api_server.outbound.policy import AllowList
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author
from api_server.state.database import Transaction
from api_server.state.secrets import Vault

MAX_LENGTH = 255
MOST_ENTRIES = 1000

_URL = "static_objects_external_storage_url"
_ALLOW_LIST = "outbound_local_requests_whitelist"
#: Of numbers, 0 or 1.
_LEAST = {
    "default_projects_limit": 0,
    "throttle_authenticated_api_requests_per_period": 1,
    "throttle_authenticated_api_period_in_seconds": 1,
}
_NEVER_IN_A_BASE_URL = frozenset(map(chr, range(33))) | {"\\", "\x7f", "?", "#"}


async def update(
    transaction: Transaction, vault: Vault, unset: InstanceSettings, wanted: dict[str, Any], author: Author
) -> dict[str, list[str]]:
    """Sets what is in `wanted`; `unset` is what holds where nothing is set. Where there is something wrong with it,
    nothing is set, and the answer says what, by setting."""
    await queries.lock_settings(transaction)
    before = await read(transaction, vault, unset)
    after = attrs.evolve(before, **wanted)
    if problems := _problems(after):
        return problems
    kept = attrs.asdict(after, filter=lambda field, value: value != getattr(unset, field.name))
    token = kept.pop(SECRET, None)
    await queries.write_settings(
        transaction, orjson.dumps(kept).decode(), vault.encrypt(token) if token else None
    )
    for field in attrs.fields(InstanceSettings):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old != new:
            await _record(transaction, author, field.name, old, new)
    return {}


def _problems(settings: InstanceSettings) -> dict[str, list[str]]:
    """Why these cannot work, by setting."""
    found = {}
    url, token = (
        settings.static_objects_external_storage_url,
        settings.static_objects_external_storage_auth_token,
    )
    if url and (problem := _problem_with_url(url)):
        found[_URL] = [problem]
    if url and not token:
        found[SECRET] = ["can't be blank"]
    if len(token or "") > MAX_LENGTH:
        found[SECRET] = [f"is too long (maximum is {MAX_LENGTH} characters)"]
    if problem := _problem_with_list(settings.outbound_local_requests_whitelist):
        found[_ALLOW_LIST] = [problem]
    return found | _problems_with_numbers(settings)


def _problems_with_numbers(settings: InstanceSettings) -> dict[str, list[str]]:
    found = {}
    for name, least in _LEAST.items():
        value = getattr(settings, name)
        if value < least:
            found[name] = [f"must be greater than {'or equal to ' if least == 0 else ''}0"]
        if value > MAX_INTEGER:
            found[name] = [f"must be less than or equal to {MAX_INTEGER}"]
    return found


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
    if len(entries) > MOST_ENTRIES:
        return f"is too long (maximum is {MOST_ENTRIES} entries)"
    if any(len(entry) > MAX_LENGTH for entry in entries):
        return f"is too long (maximum is {MAX_LENGTH} characters per entry)"
    try:
        AllowList.parse(entries)
    except ValueError as problem:
        return str(problem)
    return None


async def _record(transaction: Transaction, author: Author, name: str, old: Any, new: Any) -> None:
    """One event for each setting that changed; the token's value is in none."""
    told = {"change": name}
    message = f"Changed {name}"
    if name != SECRET:
        told |= {"from": audit_trail.words(old), "to": audit_trail.words(new)}
        message += f" from {audit_trail.words(old)} to {audit_trail.words(new)}"
    await audit_trail.record(
        transaction,
        "application_setting_updated",
        author=author,
        entity=INSTANCE,
        target_id=1,
        target_details=name,
        message=message,
        **told,
    )
