"""`/admin/application_settings/repository`: where an administrator sets the external storage of static objects."""

from typing import Any

import attrs
from aiohttp import web

from api_server.accounts.settings import changes, values
from api_server.accounts.settings.values import InstanceSettings
from api_server.admin import pages, sessions
from api_server.admin.sessions import Visitor
from api_server.web import context
from api_server.web.errors import ApiError

PATH = "/admin/application_settings/repository"

_URL = "static_objects_external_storage_url"
_TOKEN = "static_objects_external_storage_auth_token"
_LABELS = {_URL: "External storage URL", _TOKEN: "External storage authentication token"}


def setup(app: web.Application) -> None:
    app.router.add_get(PATH, show)
    app.router.add_post(PATH, pages.form(save))


async def show(request: web.Request) -> web.Response:
    who = await sessions.visitor(request)
    if who.user is None:
        return web.Response(status=303, headers={"Location": f"/-/sign_in?return_to={PATH}"})
    if not who.user.admin:
        return _refused(request, who)
    return _page(request, who, await values.current(request.config_dict))


async def save(request: web.Request, who: Visitor, form: Any) -> web.StreamResponse:
    """An empty token leaves the present one, which is never shown; an empty URL serves objects directly again."""
    if who.user is None or not who.user.admin:
        return _refused(request, who)
    wanted = {_URL: _text(form, _URL) or None}
    if token := _text(form, _TOKEN):
        wanted[_TOKEN] = token
    unset = values.defaults(context.settings(request))
    try:
        async with context.database(request).transaction() as transaction:
            await changes.update(transaction, context.vault(request), unset, wanted, who.author())
    except ApiError as error:
        entered = attrs.evolve(unset, static_objects_external_storage_url=wanted[_URL])
        return _page(request, who, entered, problems=_in_words(error), status=error.status)
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
    return pages.answer(
        request,
        who,
        "repository_settings.html",
        status,
        path=PATH,
        url=settings.static_objects_external_storage_url or "",
        has_token=bool(settings.static_objects_external_storage_auth_token),
        problems=problems,
        saved=saved,
    )


def _in_words(error: ApiError) -> tuple[str, ...]:
    message: dict[str, list[str]] = error.body["message"]
    return tuple(f"{_LABELS.get(field, field)} {text}." for field, texts in message.items() for text in texts)


def _text(form: Any, name: str) -> str:
    return str(form.get(name, "")).strip()


def _refused(request: web.Request, who: Visitor) -> web.Response:
    return pages.say(request, who, "Only administrators may open this page", status=403)
