"""Settings that administrators change, settings of the process, and the external storage of static objects."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from aiohttp import web

from api_server.accounts import instance_handlers, instance_settings
from api_server.outbound.client import OUTGOING_POLICY, RESOLVER, TIMEOUT, USER_AGENT, create_session
from api_server.outbound.destinations import HTTP_SCHEMES, parse_destination
from api_server.outbound.policy import AllowList, Policy
from api_server.pages import page
from api_server.pages.admin import operating, storage_check
from api_server.pages.admin.storage_check import Finding, Storage, check
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.settings import Settings
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR, ask

pages = Pages()
SETTINGS_PATH = "/admin/settings"

_LIST = "outbound_local_requests_whitelist"


@attrs.frozen
class ProcessSetting:
    """A setting of the process as the page shows it, without the values of secrets."""

    name: str
    variable: str
    value: str
    help: str
    is_default: bool
    is_reloaded: bool


@pages.get(SETTINGS_PATH, access=ADMINISTRATOR)
async def show_settings(request: web.Request, visitor: Visitor) -> web.Response:
    return page.answer(
        request,
        visitor,
        "admin/settings.html",
        settings=await page.read(request, instance_handlers.show_settings),
        process=[
            _process_setting(context.services(request).settings, field) for field in attrs.fields(Settings)
        ],
    )


@pages.post(SETTINGS_PATH, access=ADMINISTRATOR, form_page=show_settings)
async def save_settings(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Save the settings. Entries of the allow list are separated by line breaks or commas."""
    entries = str(form.get(_LIST, "")).replace(",", "\n").splitlines()
    fields = {**form, _LIST: [entry.strip() for entry in entries if entry.strip()]}
    await ask(request, instance_handlers.update_settings, **fields)
    return page.see_other(request, visitor, SETTINGS_PATH, "Settings saved.")


def _process_setting(settings: Settings, field: "attrs.Attribute[Any]") -> ProcessSetting:
    value = getattr(settings, field.name)
    is_secret = field.repr is not True
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default = default.factory()
    return ProcessSetting(
        name=field.name,
        variable=f"FORGELET_API_{field.name.upper()}",
        value=("set, hidden" if value else "not set") if is_secret else _text(value),
        help=field.metadata["typed-settings"]["help"],
        is_default=value == default,
        is_reloaded=field.name in Settings.reloaded,
    )


def _text(value: Any) -> str:
    if value is None or value == "" or value == []:
        return "not set"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(Path(value) if isinstance(value, Path) else value)


REPOSITORY_SETTINGS = "/admin/application_settings/repository"

_URL = "static_objects_external_storage_url"
_TOKEN = "static_objects_external_storage_auth_token"


@pages.get(REPOSITORY_SETTINGS, access=ADMINISTRATOR)
async def show_repository_settings(request: web.Request, visitor: Visitor) -> web.Response:
    return await _repository_page(request, visitor)


@pages.post(REPOSITORY_SETTINGS, access=ADMINISTRATOR, form_page=show_repository_settings)
async def save_repository_settings(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Save the external storage. An empty token keeps the present one; an empty URL serves objects directly again."""
    fields = {name: str(form.get(name, "")).strip() for name in (_URL, _TOKEN)}
    if not fields[_TOKEN]:
        del fields[_TOKEN]
    await ask(request, instance_handlers.update_settings, **fields)
    return page.see_other(request, visitor, REPOSITORY_SETTINGS, "Settings saved.")


@pages.post(f"{REPOSITORY_SETTINGS}/check", access=ADMINISTRATOR, form_page=show_repository_settings)
async def check_storage(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Request a real object through the storage twice, purge it, and show the findings."""
    services = context.services(request)
    name = str(form.get("object", "")).strip()
    settings = await instance_settings.current(services)
    url, token = (
        settings.static_objects_external_storage_url,
        settings.static_objects_external_storage_auth_token,
    )
    if not url or not token:
        raise storage_check.no_object("Save the URL and the token of the external storage first.")
    target = await (storage_check.named_object(request, name) if name else storage_check.find_object(request))
    storage = Storage(url, services.settings.base_url, token, _purging(request))
    async with _session(request) as session:
        findings = await check(session, storage, target)
    return await _repository_page(request, visitor, name, findings, target.path)


def _session(request: web.Request) -> aiohttp.ClientSession:
    """Return a client session for one check, which opens its own connections. It obeys the policy for outgoing
    requests: administrators choose the storage, and also that policy. It may call the edges that the operator has
    named, wherever they are."""
    services = context.services(request)
    policy, edge_destinations = services[OUTGOING_POLICY], _destinations(services.settings.edge_urls)

    async def outgoing_policy() -> Policy:
        current = await policy()
        allow_list = AllowList(
            networks=(*current.allow_list.networks, *edge_destinations.networks),
            domains=(*current.allow_list.domains, *edge_destinations.domains),
        )
        return attrs.evolve(current, allow_list=allow_list)

    return create_session(outgoing_policy, services[RESOLVER], timeout=TIMEOUT, user_agent=USER_AGENT)


def _destinations(urls: list[str]) -> AllowList:
    """Return an allow list with the host and port of each URL."""
    destinations = [parse_destination(url, HTTP_SCHEMES) for url in urls]
    return AllowList.parse(
        f"[{edge.host}]:{edge.port}" if ":" in edge.host else f"{edge.host}:{edge.port}"
        for edge in destinations
    )


def _purging(request: web.Request) -> Callable[[str], Awaitable[Finding]] | None:
    if not context.services(request).settings.edge_urls:
        return None

    async def purge(surrogate_key: str) -> Finding:
        _, problems = await operating.purge(request, {"keys": [surrogate_key]})
        if problems:
            return Finding(
                "Purge",
                "failed",
                " ".join(problems),
                "Until the purge succeeds, edges can serve outdated content.",
            )
        return Finding("Purge", "passed", "The edges no longer serve stored responses of the project.")

    return purge


async def _repository_page(
    request: web.Request,
    visitor: Visitor,
    object_name: str = "",
    findings: Sequence[Finding] = (),
    checked_path: str = "",
) -> web.Response:
    """Return the page. `findings` are those of the check with the object at the path `checked_path`."""
    services = context.services(request)
    settings = await instance_settings.current(services)
    return page.answer(
        request,
        visitor,
        "admin/repository_settings.html",
        settings_path=REPOSITORY_SETTINGS,
        url=settings.static_objects_external_storage_url or "",
        has_token=bool(settings.static_objects_external_storage_auth_token),
        edges=services.settings.edge_urls,
        named=object_name,
        findings=findings,
        asked=checked_path,
    )
