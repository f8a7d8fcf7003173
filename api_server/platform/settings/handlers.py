"""`/application/settings` (decision D1, and the settings of static objects)."""

from typing import Any
from urllib.parse import urlsplit

import attrs
import orjson
from aiohttp import web

from api_server.platform.settings import queries, values
from api_server.platform.settings.values import SECRET, InstanceSettings
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE
from api_server.state.database import Transaction
from api_server.web import context
from api_server.web.access import ADMINISTRATOR
from api_server.web.answers import json_value
from api_server.web.authorship import author
from api_server.web.errors import invalid
from api_server.web.params import UNSET, CommaList, Unset, parse
from api_server.web.routes import Routes

routes = Routes()

MAX_LENGTH = 255


@attrs.frozen(kw_only=True)
class UpdateSettings:
    static_objects_external_storage_url: str | Unset | None = UNSET
    static_objects_external_storage_auth_token: str | Unset | None = UNSET
    allow_local_requests_from_web_hooks_and_services: bool | Unset = UNSET
    allow_local_requests_from_system_hooks: bool | Unset = UNSET
    outbound_local_requests_whitelist: CommaList[str] | Unset = UNSET
    default_projects_limit: int | Unset = UNSET


@routes.get("/application/settings", access=ADMINISTRATOR)
async def show_settings(request: web.Request) -> web.Response:
    """The storage's token is shown, as administrators have to give it to the storage as well."""
    return json_value(attrs.asdict(await values.read(context.database(request), context.vault(request))))


@routes.put("/application/settings", access=ADMINISTRATOR)
async def update_settings(request: web.Request) -> web.Response:
    """Changes what is sent. The external storage's URL and token are set together."""
    wanted = await parse(request, UpdateSettings)
    async with context.database(request).transaction() as transaction:
        await queries.lock_settings(transaction)
        before = await values.read(transaction, context.vault(request))
        after = _merged(before, wanted)
        _check(after)
        await _write(request, transaction, after)
        await _record(request, transaction, before, after)
    return json_value(attrs.asdict(after))


def _merged(before: InstanceSettings, wanted: UpdateSettings) -> InstanceSettings:
    """Blank texts unset what they are sent for."""
    sent = {
        name: value or None if isinstance(value, str) else value
        for name, value in attrs.asdict(wanted).items()
    }
    return InstanceSettings(**attrs.asdict(before) | {k: v for k, v in sent.items() if v is not UNSET})


def _check(settings: InstanceSettings) -> None:
    """Raises 400 for values that cannot work."""
    problems: dict[str, list[str]] = {}
    url = settings.static_objects_external_storage_url
    if url:
        if not _is_base_url(url):
            problems["static_objects_external_storage_url"] = [
                "is blocked: Only allowed schemes are http, https"
            ]
        elif len(url) > MAX_LENGTH:
            problems["static_objects_external_storage_url"] = [
                f"is too long (maximum is {MAX_LENGTH} characters)"
            ]
        if not settings.static_objects_external_storage_auth_token:
            problems[SECRET] = ["can't be blank"]
    if len(settings.static_objects_external_storage_auth_token or "") > MAX_LENGTH:
        problems[SECRET] = [f"is too long (maximum is {MAX_LENGTH} characters)"]
    if settings.default_projects_limit < 0:
        problems["default_projects_limit"] = ["must be greater than or equal to 0"]
    if problems:
        raise invalid(problems)


def _is_base_url(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return (
            parts.scheme in ("http", "https") and bool(parts.hostname) and not (parts.query or parts.fragment)
        )
    except ValueError:
        return False


async def _write(request: web.Request, transaction: Transaction, settings: InstanceSettings) -> None:
    kept: dict[str, Any] = attrs.asdict(settings)
    token = kept.pop(SECRET)
    sealed = context.vault(request).encrypt(token) if token else None
    await queries.write_settings(transaction, orjson.dumps(kept).decode(), sealed)


async def _record(
    request: web.Request, transaction: Transaction, before: InstanceSettings, after: InstanceSettings
) -> None:
    """One event for each setting that changed; the token's value is in none."""
    for field in attrs.fields(InstanceSettings):
        old, new = getattr(before, field.name), getattr(after, field.name)
        if old == new:
            continue
        secret = field.name == SECRET
        await audit_trail.record(
            transaction,
            "application_setting_updated",
            author=author(request),
            entity=INSTANCE,
            target_type="ApplicationSetting",
            target_id=1,
            target_details=field.name,
            message=f"Changed {field.name}" if secret else f"Changed {field.name} from {old} to {new}",
            change=field.name,
            **({} if secret else {"from": str(old), "to": str(new)}),
        )
