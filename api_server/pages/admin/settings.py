"""What administrators set for the instance, what its operator has set, and the external storage of static objects."""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import attrs
from aiohttp import web

from api_server.accounts import instance_settings
from api_server.accounts.instance_settings import InstanceSettings
from api_server.outbound.client import OUTGOING_POLICY, RESOLVER, TIMEOUT, USER_AGENT, create_session
from api_server.outbound.destinations import HTTP_SCHEMES, parse_destination
from api_server.outbound.policy import AllowList, Policy
from api_server.pages import page
from api_server.pages.admin import operating, storage_check
from api_server.pages.admin.storage_check import Finding, Storage, check
from api_server.pages.lists import Refused
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.settings import Settings
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()
SETTINGS_PATH = "/admin/settings"

_SWITCHES = {
    "allow_local_requests_from_web_hooks_and_services": "Deliveries and mirrors may call local addresses",
    "allow_local_requests_from_system_hooks": "System hooks may call local addresses",
    "deny_all_requests_except_allowed": "Only what is on the allow list may be called",
}
_LIST, _LIMIT = "outbound_local_requests_whitelist", "default_projects_limit"
_LABELS = {_LIST: "Allow list", _LIMIT: "Projects that a new user may have"}


@attrs.frozen
class ProcessSetting:
    """A setting of the process as a page shows it: a secret's value is not in it."""

    name: str
    variable: str
    value: str
    help: str
    is_default: bool
    is_reloaded: bool


@pages.get(SETTINGS_PATH, access=ADMINISTRATOR)
async def show_settings(request: web.Request, visitor: Visitor) -> web.Response:
    return _page(request, visitor, _entered(await instance_settings.current(context.services(request))))


@pages.post(SETTINGS_PATH, access=ADMINISTRATOR)
async def save_settings(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Changes what the form has; each change is an audit event. What is refused stays in the form."""
    services = context.services(request)
    entered: dict[str, Any] = {name: str(form.get(name, "")) for name in (_LIST, _LIMIT)}
    entered |= {name: name in form for name in _SWITCHES}
    if not entered[_LIMIT].strip().isdecimal():
        return _page(request, visitor, entered, [f"{_LABELS[_LIMIT]} has to be a whole number."], 400)
    wanted: dict[str, Any] = {name: entered[name] for name in _SWITCHES}
    wanted |= {_LIMIT: int(entered[_LIMIT]), _LIST: _entries(entered[_LIST])}
    unset = instance_settings.defaults(services.settings)
    async with services.database.transaction() as transaction:
        problems = await instance_settings.update(
            transaction, services.vault, unset, wanted, visitor.author()
        )
    if problems:
        sentences = [
            f"{_LABELS.get(name, name)}: {text}." for name, texts in problems.items() for text in texts
        ]
        return _page(request, visitor, entered, sentences, 400)
    return page.see_other(request, visitor, SETTINGS_PATH, "The settings are saved.")


def _entries(text: str) -> list[str]:
    """One a line, or with commas between them."""
    return [entry.strip() for entry in text.replace(",", "\n").splitlines() if entry.strip()]


def _entered(settings: InstanceSettings) -> dict[str, Any]:
    """The present settings as the form has them."""
    shown = {name: getattr(settings, name) for name in _SWITCHES}
    return shown | {
        _LIST: "\n".join(settings.outbound_local_requests_whitelist),
        _LIMIT: str(settings.default_projects_limit),
    }


def _page(
    request: web.Request,
    visitor: Visitor,
    entered: dict[str, Any],
    problems: list[str] | None = None,
    status: int = 200,
) -> web.Response:
    return page.answer(
        request,
        visitor,
        "admin/settings.html",
        status,
        entered=entered,
        switches=_SWITCHES,
        problems=problems or [],
        process=[_shown(context.services(request).settings, field) for field in attrs.fields(Settings)],
    )


def _shown(settings: Settings, field: "attrs.Attribute[Any]") -> ProcessSetting:
    value = getattr(settings, field.name)
    is_secret = field.repr is not True
    default: Any = field.default
    if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
        default = default.factory()
    return ProcessSetting(
        name=field.name,
        variable=f"FORGELET_API_{field.name.upper()}",
        value=("set, not shown" if value else "not set") if is_secret else _text(value),
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
_REPOSITORY_LABELS = {_URL: "External storage URL", _TOKEN: "External storage authentication token"}


@pages.get(REPOSITORY_SETTINGS, access=ADMINISTRATOR)
async def show_repository_settings(request: web.Request, visitor: Visitor) -> web.Response:
    return await _repository_page(request, visitor)


@pages.post(REPOSITORY_SETTINGS, access=ADMINISTRATOR)
async def save_repository_settings(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """An empty token leaves the present one, which is never shown; an empty URL serves objects directly again."""
    services = context.services(request)
    wanted = {_URL: _repository_text(form, _URL) or None}
    if token := _repository_text(form, _TOKEN):
        wanted[_TOKEN] = token
    unset = instance_settings.defaults(services.settings)
    async with services.database.transaction() as transaction:
        problems = await instance_settings.update(
            transaction, services.vault, unset, wanted, visitor.author()
        )
    if problems:
        return await _repository_page(
            request, visitor, url=wanted[_URL] or "", problems=_in_words(problems), status=400
        )
    return page.see_other(request, visitor, REPOSITORY_SETTINGS, "The settings are saved.")


@pages.post(f"{REPOSITORY_SETTINGS}/check", access=ADMINISTRATOR)
async def check_storage(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Asks through the storage for a real object, twice, purges it, and tells what was seen."""
    services = context.services(request)
    named = _repository_text(form, "object")
    settings = await instance_settings.current(services)
    url, token = (
        settings.static_objects_external_storage_url,
        settings.static_objects_external_storage_auth_token,
    )
    try:
        if not url or not token:
            raise Refused("Save the URL and the token of the storage first.")
        wanted = await (
            storage_check.named_object(request, named) if named else storage_check.find_object(request)
        )
    except Refused as problem:
        return await _repository_page(request, visitor, named=named, problems=[str(problem)], status=400)
    storage = Storage(url, services.settings.base_url, token, _purging(request))
    async with _session(request) as session:
        findings = await check(session, storage, wanted)
    return await _repository_page(request, visitor, named=named, findings=findings, asked=wanted.path)


def _session(request: web.Request) -> aiohttp.ClientSession:
    """Of its own, so that each check makes its own connections, under the policy for what the service sends out: the
    storage is an administrator's choice, and so is that policy. The edges that the operator has named may be called
    wherever they are."""
    services = context.services(request)
    policy, named = services[OUTGOING_POLICY], _places(services.settings.edge_urls)

    async def allowed() -> Policy:
        now = await policy()
        listed = AllowList(
            networks=(*now.allow_list.networks, *named.networks),
            domains=(*now.allow_list.domains, *named.domains),
        )
        return attrs.evolve(now, allow_list=listed)

    return create_session(allowed, services[RESOLVER], timeout=TIMEOUT, user_agent=USER_AGENT)


def _places(urls: list[str]) -> AllowList:
    """Host and port of each."""
    found = [parse_destination(url, HTTP_SCHEMES) for url in urls]
    return AllowList.parse(
        f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}" for at in found
    )


def _purging(request: web.Request) -> Callable[[str], Awaitable[Finding]] | None:
    if not context.services(request).settings.edge_urls:
        return None

    async def purge(surrogate_key: str) -> Finding:
        _, problems = await operating.purge(request, {"keys": [surrogate_key]})
        if problems:
            return Finding(
                "Purge", "failed", " ".join(problems), "Until then edges may serve what was closed."
            )
        return Finding("Purge", "passed", "What edges kept of that project they serve no more.")

    return purge


async def _repository_page(
    request: web.Request,
    visitor: Visitor,
    *,
    url: str | None = None,
    named: str = "",
    problems: Sequence[str] = (),
    findings: Sequence[Finding] = (),
    asked: str = "",
    status: int = 200,
) -> web.Response:
    """`url` is what was entered, where that is not what is set; `asked` the path whose check has the `findings`."""
    services = context.services(request)
    settings = await instance_settings.current(services)
    return page.answer(
        request,
        visitor,
        "admin/repository_settings.html",
        status,
        settings_path=REPOSITORY_SETTINGS,
        url=(settings.static_objects_external_storage_url or "") if url is None else url,
        is_set=bool(settings.static_objects_external_storage_url),
        has_token=bool(settings.static_objects_external_storage_auth_token),
        edges=services.settings.edge_urls,
        named=named,
        problems=problems,
        findings=findings,
        asked=asked,
    )


def _in_words(problems: dict[str, list[str]]) -> list[str]:
    return [
        f"{_REPOSITORY_LABELS.get(name, name)} {text}." for name, texts in problems.items() for text in texts
    ]


def _repository_text(form: Form, name: str) -> str:
    return str(form.get(name, "")).strip()
