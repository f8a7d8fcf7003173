"""`/admin/application_settings/repository`: where an administrator sets the external storage of static objects, sees
whether it works, and has it forget what it keeps."""

from collections.abc import Awaitable, Callable, Sequence

import aiohttp
import attrs
from aiohttp import web

from api_server.accounts import instance_settings
from api_server.outbound.client import OUTGOING_POLICY, RESOLVER, TIMEOUT, USER_AGENT, create_session
from api_server.outbound.destinations import HTTP_SCHEMES, parse_destination
from api_server.outbound.policy import AllowList, Policy
from api_server.pages import page
from api_server.pages.admin import edges, storage_objects
from api_server.pages.admin.acting import Refused
from api_server.pages.admin.storage_check import Finding, Storage, check
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()
PATH = "/admin/application_settings/repository"

_URL = "static_objects_external_storage_url"
_TOKEN = "static_objects_external_storage_auth_token"
_LABELS = {_URL: "External storage URL", _TOKEN: "External storage authentication token"}


@pages.get(PATH, access=ADMINISTRATOR)
async def show(request: web.Request, who: Visitor) -> web.Response:
    return await _page(request, who)


@pages.post(PATH, access=ADMINISTRATOR)
async def save(request: web.Request, who: Visitor, form: Form) -> web.Response:
    """An empty token leaves the present one, which is never shown; an empty URL serves objects directly again."""
    wanted = {_URL: _text(form, _URL) or None}
    if token := _text(form, _TOKEN):
        wanted[_TOKEN] = token
    unset = instance_settings.defaults(context.settings(request))
    async with context.database(request).transaction() as transaction:
        problems = await instance_settings.update(
            transaction, context.vault(request), unset, wanted, who.author()
        )
    if problems:
        return await _page(request, who, url=wanted[_URL] or "", problems=_in_words(problems), status=400)
    return page.see_other(request, who, PATH, "The settings are saved.")


@pages.post(f"{PATH}/check", access=ADMINISTRATOR)
async def check_storage(request: web.Request, who: Visitor, form: Form) -> web.Response:
    """Asks through the storage for a real object, twice, purges it, and tells what was seen."""
    named = _text(form, "object")
    settings = await instance_settings.current(request.config_dict)
    url, token = (
        settings.static_objects_external_storage_url,
        settings.static_objects_external_storage_auth_token,
    )
    try:
        if not url or not token:
            raise Refused("Save the URL and the token of the storage first.")
        wanted = await (storage_objects.named(request, named) if named else storage_objects.find(request))
    except Refused as problem:
        return await _page(request, who, named=named, problems=[str(problem)], status=400)
    storage = Storage(url, context.settings(request).base_url, token, _purging(request))
    async with _session(request) as session:
        findings = await check(session, storage, wanted)
    return await _page(request, who, named=named, findings=findings, asked=wanted.path)


def _session(request: web.Request) -> aiohttp.ClientSession:
    """Of its own, so that each check makes its own connections, under the policy for what the service sends out: the
    storage is an administrator's choice, and so is that policy. The edges that the operator has named may be called
    wherever they are."""
    policy, named = request.config_dict[OUTGOING_POLICY], _places(context.settings(request).edge_urls)

    async def allowed() -> Policy:
        now = await policy()
        listed = AllowList(
            networks=(*now.allow_list.networks, *named.networks),
            domains=(*now.allow_list.domains, *named.domains),
        )
        return attrs.evolve(now, allow_list=listed)

    return create_session(allowed, request.config_dict[RESOLVER], timeout=TIMEOUT, user_agent=USER_AGENT)


def _places(urls: list[str]) -> AllowList:
    """Host and port of each."""
    found = [parse_destination(url, HTTP_SCHEMES) for url in urls]
    return AllowList.parse(
        f"[{at.host}]:{at.port}" if ":" in at.host else f"{at.host}:{at.port}" for at in found
    )


def _purging(request: web.Request) -> Callable[[str], Awaitable[Finding]] | None:
    if not context.settings(request).edge_urls:
        return None

    async def purge(surrogate_key: str) -> Finding:
        _, problems = await edges.purge(request, {"keys": [surrogate_key]})
        if problems:
            return Finding(
                "Purge", "failed", " ".join(problems), "Until then edges may serve what was closed."
            )
        return Finding("Purge", "passed", "What edges kept of that project they serve no more.")

    return purge


async def _page(
    request: web.Request,
    who: Visitor,
    *,
    url: str | None = None,
    named: str = "",
    problems: Sequence[str] = (),
    findings: Sequence[Finding] = (),
    asked: str = "",
    status: int = 200,
) -> web.Response:
    """`url` is what was entered, where that is not what is set; `asked` the path whose check has the `findings`."""
    settings = await instance_settings.current(request.config_dict)
    return page.answer(
        request,
        who,
        "admin/repository_settings.html",
        status,
        settings_path=PATH,
        url=(settings.static_objects_external_storage_url or "") if url is None else url,
        is_set=bool(settings.static_objects_external_storage_url),
        has_token=bool(settings.static_objects_external_storage_auth_token),
        edges=context.settings(request).edge_urls,
        named=named,
        problems=problems,
        findings=findings,
        asked=asked,
    )


def _in_words(problems: dict[str, list[str]]) -> list[str]:
    return [f"{_LABELS.get(name, name)} {text}." for name, texts in problems.items() for text in texts]


def _text(form: Form, name: str) -> str:
    return str(form.get(name, "")).strip()
