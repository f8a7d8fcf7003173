"""`/application/settings` (decision D1, settings of static objects), `/version`, `/metadata` (supporting
resources)."""

from importlib import metadata
from typing import Any

import attrs
from aiohttp import web

from api_server.accounts import instance_queries, instance_settings
from api_server.services import Services
from api_server.state.database import Executor
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.auth import READ_USER_SCOPES, Actor
from api_server.web.errors import invalid
from api_server.web.params import UNSET, CommaList, Unset
from api_server.web.routes import ADMINISTRATOR, SIGNED_IN, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class UpdateSettings:
    """GitLab's settings that this service supports."""

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


# Never throttled, so that a rate limit that is too low can be raised here.
@routes.get(
    "/application/settings", access=ADMINISTRATOR, never_throttled=True, answers="200 ApplicationSettings"
)
async def show_settings(services: Services) -> web.Response:
    """Show the instance's settings, including the storage's token, which administrators have to give to the
    storage as well."""
    return json_value(await _entity(services, services.database))


@routes.put(
    "/application/settings", access=ADMINISTRATOR, never_throttled=True, answers="200 ApplicationSettings"
)
async def update_settings(services: Services, actor: Actor, params: UpdateSettings) -> web.Response:
    """Change the settings that are sent; blank texts unset them. The external storage needs both its URL and
    its token."""
    unset = instance_settings.defaults(services.settings)
    async with services.database.transaction() as transaction:
        if problems := await instance_settings.update(
            transaction, services.vault, unset, _submitted(params), actor.author
        ):
            raise invalid(problems)
        entity = await _entity(services, transaction)
    return json_value(entity)


def _submitted(params: UpdateSettings) -> dict[str, Any]:
    values = attrs.asdict(params, filter=lambda _, value: value is not UNSET)
    return {name: value or None if isinstance(value, str) else value for name, value in values.items()}


async def _entity(services: Services, database: Executor) -> dict[str, Any]:
    stored = await instance_queries.read_settings(database)
    settings = instance_settings.opened(stored, services.vault, instance_settings.defaults(services.settings))
    return {"id": 1, "created_at": stored.created_at, "updated_at": stored.updated_at} | attrs.asdict(
        settings
    )


version_routes = Routes()

_REVISION = f"forgelet {metadata.version('forgelet')}"


@version_routes.get("/version", access=SIGNED_IN, scopes=READ_USER_SCOPES, answers="200 Metadata")
@version_routes.get("/metadata", access=SIGNED_IN, scopes=READ_USER_SCOPES, answers="200 Metadata")
async def show_version(request: web.Request) -> web.Response:
    """Show the version. It is that of GitLab, because clients disable features for older versions; `revision`
    is forgelet's."""
    settings = context.services(request).settings
    return json_value(
        {
            "version": settings.dialect,
            "revision": _REVISION,
            "kas": {"enabled": False, "externalUrl": None, "externalK8sProxyUrl": None, "version": None},
            "enterprise": settings.tier != "free",
        }
    )
