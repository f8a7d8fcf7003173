"""`/admin/application_settings/repository`: where an administrator sets the external storage of static objects."""

import attrs
from aiohttp import web

from api_server.accounts.settings import changes, values
from api_server.accounts.settings.values import InstanceSettings
from api_server.pages import page, sessions
from api_server.pages.sessions import Form, Visitor
from api_server.web import context

PATH = "/admin/application_settings/repository"

_URL = "static_objects_external_storage_url"
_TOKEN = "static_objects_external_storage_auth_token"
_LABELS = {_URL: "External storage URL", _TOKEN: "External storage authentication token"}


def setup(app: web.Application) -> None:
    app.router.add_get(PATH, show)
    app.router.add_post(PATH, page.form(save))


async def show(request: web.Request) -> web.Response:
    who = await sessions.visitor(request)
    if who.user is None:
        return web.Response(status=303, headers={"Location": f"/-/sign_in?return_to={PATH}"})
    if not who.user.admin:
        return _refused(request, who)
    return _page(request, who, await values.current(request.config_dict))


async def save(request: web.Request, who: Visitor, form: Form) -> web.StreamResponse:
    """An empty token leaves the present one, which is never shown; an empty URL serves objects directly again."""
    if who.user is None or not who.user.admin:
        return _refused(request, who)
    wanted = {_URL: _text(form, _URL) or None}
    if token := _text(form, _TOKEN):
        wanted[_TOKEN] = token
    unset = values.defaults(context.settings(request))
    async with context.database(request).transaction() as transaction:
        problems = await changes.update(transaction, context.vault(request), unset, wanted, who.author())
    if problems:
        entered = attrs.evolve(unset, static_objects_external_storage_url=wanted[_URL])
        return _page(request, who, entered, problems=_in_words(problems), status=400)
    return _page(request, who, await values.current(request.config_dict), saved=True)


def _page(
    request: web.Request,
    who: Visitor,
    settings: InstanceSettings,
    *,
    problems: tuple[str, ...] = (),
    saved: bool = False,
    status: int = 200,
) -> web.Response:
    return page.answer(
        request,
        who,
        "admin/repository_settings.html",
        status,
        path=PATH,
        url=settings.static_objects_external_storage_url or "",
        has_token=bool(settings.static_objects_external_storage_auth_token),
        problems=problems,
        saved=saved,
    )


def _in_words(problems: dict[str, list[str]]) -> tuple[str, ...]:
    return tuple(
        f"{_LABELS.get(setting, setting)} {text}." for setting, texts in problems.items() for text in texts
    )


def _text(form: Form, name: str) -> str:
    return str(form.get(name, "")).strip()


def _refused(request: web.Request, who: Visitor) -> web.Response:
    return page.say(request, who, "Only administrators may open this page", status=403)
