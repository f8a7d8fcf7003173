"""`/application/settings` (decision D1, and the settings of static objects)."""

from typing import Any

import attrs
from aiohttp import web

from api_server.accounts.settings import changes, queries, unsupported, values
from api_server.state.database import Executor
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.errors import invalid
from api_server.web.params import UNSET, CommaList, Unset
from api_server.web.routes import ADMINISTRATOR, Routes, author

routes = Routes()


@attrs.frozen(kw_only=True)
class UpdateSettings:
    """What has a meaning here of GitLab's keys."""

    static_objects_external_storage_url: str | Unset | None = UNSET
    static_objects_external_storage_auth_token: str | Unset | None = UNSET
    allow_local_requests_from_web_hooks_and_services: bool | Unset = UNSET
    allow_local_requests_from_system_hooks: bool | Unset = UNSET
    deny_all_requests_except_allowed: bool | Unset = UNSET
    outbound_local_requests_whitelist: CommaList[str] | Unset = UNSET
    default_projects_limit: int | Unset = UNSET
    throttle_authenticated_api_enabled: bool | Unset = UNSET
    throttle_authenticated_api_requests_per_period: int | Unset = UNSET
    throttle_authenticated_api_period_in_seconds: int | Unset = UNSET


# Who has set the bound of requests too low sets it higher here.
@routes.get("/application/settings", access=ADMINISTRATOR, never_throttled=True)
async def show_settings(request: web.Request) -> web.Response:
    """The storage's token is shown, as administrators have to give it to the storage as well."""
    return json_value(await _shown(request, context.database(request)))


@routes.put(
    "/application/settings", access=ADMINISTRATOR, ignores=unsupported.OfSettings, never_throttled=True
)
async def update_settings(request: web.Request, wanted: UpdateSettings) -> web.Response:
    """Changes what is sent; blank texts unset. The external storage needs its URL and its token together."""
    unset = values.defaults(context.settings(request))
    async with context.database(request).transaction() as transaction:
        if problems := await changes.update(
            transaction, context.vault(request), unset, _sent(wanted), author(request)
        ):
            raise invalid(problems)
        shown = await _shown(request, transaction)
    return json_value(shown)


def _sent(wanted: UpdateSettings) -> dict[str, Any]:
    sent = attrs.asdict(wanted, filter=lambda _, value: value is not UNSET)
    return {name: value or None if isinstance(value, str) else value for name, value in sent.items()}


async def _shown(request: web.Request, database: Executor) -> dict[str, Any]:
    stored = await queries.read_settings(database)
    shown = values.opened(stored, context.vault(request), values.defaults(context.settings(request)))
    return {"id": 1, "created_at": stored.created_at, "updated_at": stored.updated_at} | attrs.asdict(shown)
