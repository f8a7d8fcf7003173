"""`/admin/settings`: what administrators set for the instance, and what its operator has set for this process."""

from pathlib import Path
from typing import Any

import attrs
from aiohttp import web

from api_server.accounts import instance_settings
from api_server.accounts.instance_settings import InstanceSettings
from api_server.pages import page
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.settings import Settings
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()
PATH = "/admin/settings"

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


@pages.get(PATH, access=ADMINISTRATOR)
async def show(request: web.Request, who: Visitor) -> web.Response:
    return _page(request, who, _entered(await instance_settings.current(request.config_dict)))


@pages.post(PATH, access=ADMINISTRATOR)
async def save(request: web.Request, who: Visitor, form: Form) -> web.Response:
    """Changes what the form has; each change is an audit event. What is refused stays in the form."""
    entered: dict[str, Any] = {name: str(form.get(name, "")) for name in (_LIST, _LIMIT)}
    entered |= {name: name in form for name in _SWITCHES}
    if not entered[_LIMIT].strip().isdecimal():
        return _page(request, who, entered, [f"{_LABELS[_LIMIT]} has to be a whole number."], 400)
    wanted: dict[str, Any] = {name: entered[name] for name in _SWITCHES}
    wanted |= {_LIMIT: int(entered[_LIMIT]), _LIST: _entries(entered[_LIST])}
    unset = instance_settings.defaults(context.settings(request))
    async with context.database(request).transaction() as transaction:
        problems = await instance_settings.update(
            transaction, context.vault(request), unset, wanted, who.author()
        )
    if problems:
        told = [f"{_LABELS.get(name, name)}: {text}." for name, texts in problems.items() for text in texts]
        return _page(request, who, entered, told, 400)
    return page.see_other(request, who, PATH, "The settings are saved.")


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
    who: Visitor,
    entered: dict[str, Any],
    problems: list[str] | None = None,
    status: int = 200,
) -> web.Response:
    return page.answer(
        request,
        who,
        "admin/settings.html",
        status,
        entered=entered,
        switches=_SWITCHES,
        problems=problems or [],
        process=[_shown(context.settings(request), field) for field in attrs.fields(Settings)],
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
