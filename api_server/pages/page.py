"""Answering with a page: its template, headers, styles and scripts, protected forms, and lists.

A template names a style, script or picture by `asset('pages.css')`. The address contains a digest of the content, so
browsers may cache it forever. A message for the next page ("The token is revoked.") is kept in a cookie that is signed
for this browser, so that no link can make our pages show a text.
"""

import asyncio
import base64
import binascii
import contextlib
import datetime
import functools
import hashlib
import hmac
import re
import secrets
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp_jinja2
import attrs
import jinja2
import markupsafe
import orjson
from aiohttp import web
from jinja2.bccache import Bucket

from api_server.git.remote.access import mask_url
from api_server.pages import forms, sessions
from api_server.pages.sessions import Form, Visitor, is_secure
from api_server.services import Key
from api_server.state.listing import MAX_COUNTED, ListPage, Page
from api_server.web import context
from api_server.web.context import SERVICES
from api_server.web.errors import ApiError
from api_server.web.rate_limits import RateLimiter
from api_server.web.request_data import UploadedFile, cookie_value, read_form
from api_server.web.routes import Handler, ask

_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def moment(value: datetime.datetime | str | None) -> markupsafe.Markup:
    """Return a moment, or the API's text of one, as `2026-11-22 17:16 UTC`. Return a dash for None."""
    if value is None:
        return markupsafe.Markup("–")
    read = datetime.datetime.fromisoformat(value) if isinstance(value, str) else value
    utc = read.astimezone(datetime.UTC)
    return markupsafe.Markup('<time datetime="{}">{}</time>').format(
        utc.isoformat(timespec="seconds"), f"{utc:%Y-%m-%d %H:%M} UTC"
    )


def size(count: float) -> str:
    """Return a number of bytes as text, such as `1.5 MiB`."""
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count, unit = count / 1024, unit + 1
    if unit == 0:
        return plural(round(count), "byte")
    return f"{count:.0f} {_UNITS[unit]}" if count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def url_path(text: str) -> str:
    """Quote a path, a ref or a file name for a URL, except for slashes."""
    return quote(text, safe="/:@!$&'()*+,;=~")


def plural(count: int, one: str, many: str | None = None) -> str:
    """Return a number with its noun: `1 commit`, `2 commits`."""
    return f"{count} {one if count == 1 else many or one + 's'}"


FILTERS: Mapping[str, Callable[..., str]] = {
    "moment": moment,
    "size": size,
    "mask_url": lambda url: mask_url(url) or "",
    "url_path": url_path,
    "plural": plural,
}


_KINDS = {"css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
#: For files whose address changes with their content.
FOR_GOOD = {"Cache-Control": "public, max-age=31536000, immutable", "X-Content-Type-Options": "nosniff"}


@attrs.frozen
class Asset:
    path: str
    text: str
    media_type: str


#: The style of all pages. It has a layer of its own, so that every other style overrides it, also that of a third
#: party's part of a page (Swagger UI), which does not expect our rules for plain elements.
_LOWEST = "pages.css"


def _read_assets() -> dict[str, Asset]:
    """Return all assets by the names that templates use."""
    assets = {}
    for file in resources.files("api_server.pages").joinpath("assets").iterdir():
        name, _, ending = file.name.rpartition(".")
        if ending in _KINDS:
            text = file.read_text()
            if file.name == _LOWEST:
                text = f"@layer pages {{\n{text}}}\n"
            digest = hashlib.sha256(text.encode()).hexdigest()[:12]
            assets[file.name] = Asset(f"/-/assets/{name}.{digest}.{ending}", text, _KINDS[ending])
    return assets


ASSETS = _read_assets()
_BY_PATH = {asset.path: asset for asset in ASSETS.values()}


def setup_assets(app: web.Application) -> None:
    app.router.add_get("/-/assets/{name}", serve_asset)


def asset_path(name: str) -> str:
    """Return the path of the asset. Raise KeyError for an unknown one."""
    return ASSETS[name].path


async def serve_asset(request: web.Request) -> web.Response:
    asset = _BY_PATH.get(request.path)
    if asset is None:
        raise web.HTTPNotFound(text="404 Not Found\n")
    return web.Response(text=asset.text, content_type=asset.media_type, headers=FOR_GOOD)


_FLASH_COOKIE = "forgelet_flash"
_FLASH_SECONDS = 60
_LONGEST_FLASH = 500


def leave_flash(request: web.Request, response: web.StreamResponse, visitor: Visitor, text: str) -> None:
    """Have the next page that this browser opens show `text` once."""
    encoded = base64.urlsafe_b64encode(text[:_LONGEST_FLASH].encode()).decode()
    response.set_cookie(
        _FLASH_COOKIE,
        f"{encoded}.{_flash_seal(request, visitor, encoded)}",
        max_age=_FLASH_SECONDS,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="Lax",
    )


def flash_text(request: web.Request, visitor: Visitor) -> str:
    """Return the text that `leave_flash` has left for this browser, or ""."""
    encoded, _, seal = cookie_value(request, _FLASH_COOKIE).partition(".")
    if not encoded or not hmac.compare_digest(seal.encode(), _flash_seal(request, visitor, encoded).encode()):
        return ""
    try:
        return base64.urlsafe_b64decode(encoded).decode()
    except (binascii.Error, ValueError):
        return ""


def forget_flash(request: web.Request, response: web.StreamResponse) -> None:
    """Remove the text that `leave_flash` has left."""
    if cookie_value(request, _FLASH_COOKIE):
        response.del_cookie(_FLASH_COOKIE, path="/", secure=is_secure(request), httponly=True)


def _flash_seal(request: web.Request, visitor: Visitor, encoded: str) -> str:
    return context.services(request).vault.derived_token("", f"flash: {visitor.cookie} {encoded}".encode())


#: A handler that answers a form of the visitor.
FormHandler = Callable[[web.Request, Visitor, Form], Awaitable[web.StreamResponse]]

#: Only our own files are loaded, no other site frames our pages, and addresses (which may hold a token) do not leak.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex",
    "Cache-Control": "no-store",
}


#: Fields of forms that the page fills in, not the person.
_UNWRITTEN = re.compile("sha$|^form_key$|^back$|return_to")
#: The content of a form that was sent, for the page that answers it.
_WRITTEN = web.RequestKey("written", dict[str, Any])


class _Compiled(jinja2.BytecodeCache):
    """Compiled templates, shared by all applications of this process."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if (code := self._code.get(bucket.key)) is not None:
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


class Templates:
    """The templates of an application. Compiling them takes half a second of processor time. It begins with the first
    page, and only pages wait for it."""

    def __init__(self, environment: jinja2.Environment) -> None:
        self._environment = environment
        self._compiling: asyncio.Future[None] | None = None

    async def compiled(self) -> None:
        """Wait until all templates are compiled, in a thread."""
        if self._compiling is None:
            self._compiling = asyncio.ensure_future(self._compile())
        await asyncio.shield(self._compiling)

    async def _compile(self) -> None:
        for name in self._environment.list_templates(["html"]):
            await asyncio.to_thread(self._environment.get_template, name)


TEMPLATES = Key[Templates]("templates")


def setup(app: web.Application) -> None:
    environment = aiohttp_jinja2.setup(
        app,
        bytecode_cache=_COMPILED,
        loader=jinja2.PackageLoader("api_server.pages"),
        autoescape=True,
        auto_reload=False,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
        filters=FILTERS,
    )
    environment.globals["asset"] = asset_path
    app[SERVICES][TEMPLATES] = Templates(environment)
    setup_assets(app)


def answer(
    request: web.Request, visitor: Visitor, template: str, status: int = 200, **values: Any
) -> web.Response:
    """Return the page. It sets the visitor's cookie if it has a form that needs it.

    Templates can use `visitor`, the request's `path`, `here` (its address, quoted as a value for another one), `csrf()`
    (the fields that every form needs), `flash` (the message that the page before has left), and what `forms.html`
    needs. A page that shows a refused form again has the status of the refusal.
    """
    has_forms: list[None] = []
    form_key = secrets.token_urlsafe(16)

    def csrf(*, once: bool = True) -> markupsafe.Markup:
        has_forms.append(None)
        field = markupsafe.Markup('<input type="hidden" name="{}" value="{}">')
        key = field.format("form_key", form_key) if once else ""
        return field.format("csrf_token", visitor.csrf_token) + key

    context_values = {
        "visitor": visitor,
        "path": request.path,
        "here": quote(address(request), safe="/"),
        "csrf": csrf,
        "fields_of": functools.partial(forms.fields_of, request),
        "flash": flash_text(request, visitor),
    }
    context_values |= values
    if forms.REFUSED in request:
        status = request[forms.REFUSED].status
    response = aiohttp_jinja2.render_template(template, request, context_values, status=status)
    response.headers.update(_HEADERS)
    forget_flash(request, response)
    if has_forms and visitor.is_new:
        sessions.remember(request, response, visitor)
    return response


def address(request: web.Request) -> str:
    """Return the path and query by which the page can be opened again, or those of the first page after a form."""
    return request.rel_url.raw_path_qs if request.method in ("GET", "HEAD") else "/"


def message(
    request: web.Request, visitor: Visitor, title: str, text: str = "", status: int = 200
) -> web.Response:
    """Return a page with only a message, and with the content of the form that it answers. For a missing or forbidden
    page, it has links to other pages."""
    values = {
        "title": title,
        "text": text,
        "written": request.get(_WRITTEN, {}),
        "is_lost": status in (403, 404),
    }
    return answer(request, visitor, "message.html", status, **values)


def see_other(request: web.Request, visitor: Visitor, path: str, text: str = "") -> web.Response:
    """Redirect the browser to `path` after a form. The page there shows `text`."""
    response = web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})
    if text:
        leave_flash(request, response, visitor, text)
    return response


def refused_form(request: web.Request, visitor: Visitor, text: str) -> web.Response:
    """Return a page that says why a form is refused and shows its content, so that nothing has to be typed again."""
    written = request.get(_WRITTEN, {})
    return answer(request, visitor, "refused_form.html", 403, text=text, written=written)


def has_written(request: web.Request) -> bool:
    """Return whether the request is a form with content that should not be lost."""
    return bool(request.get(_WRITTEN))


def _keep_content(request: web.Request, submitted: Form) -> None:
    request[_WRITTEN] = {
        name: content
        for name, value in submitted.items()
        if not _UNWRITTEN.search(name) and not isinstance(value, UploadedFile)
        if (content := forms.shown_again(name, value))
    }


def form(
    handler: FormHandler, by_address: Key[RateLimiter] | None = None, *, is_long: bool = False
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Wrap the handler of a form. Refuse forms that this browser did not get from our pages. With `by_address`, count
    the forms of each client address before reading them, and answer 429 above the limit. `is_long` allows long texts
    and files."""

    async def handle(request: web.Request) -> web.StreamResponse:
        visitor, settings = await sessions.visitor(request), context.services(request).settings
        limit = settings.early_body_limit
        if is_long:  # an anonymous visitor may be a user whose session has ended
            limit = settings.body_limit if visitor.user else settings.runner_body_limit
        submitted: Form = {}
        with contextlib.suppress(ApiError):  # an unreadable form counts as empty
            submitted = await read_form(request, limit, files=is_long)
        if not visitor.accepts_form(submitted):
            # Do not show the content of a form that another site made the browser send.
            if request.headers.get("Sec-Fetch-Site") == "same-origin":
                _keep_content(request, submitted)
            return refused_form(request, visitor, "The form has expired, or your browser blocks cookies.")
        if is_long:
            _keep_content(request, submitted)
        return await handler(request, visitor, submitted)

    judged = context.judging_again(handle)
    if by_address is None:
        return judged

    async def limited(request: web.Request) -> web.StreamResponse:
        if wait := context.services(request)[by_address].retry_after(request.remote):
            raise forms.too_many_attempts(wait)
        return await judged(request)

    return limited


@attrs.frozen
class Pager:
    """The addresses of the neighbouring pages, if there are any, and the position of this one."""

    previous: str | None
    next: str | None
    where: str


def pager(request: web.Request, page: Page, rows: ListPage) -> Pager:
    """Return the pager for a list that was read by offset. Other parameters of the address stay."""
    counted = rows.total is not None and rows.total <= MAX_COUNTED
    number = page.offset // page.size + 1
    return _pager(request, number, page.size, more=rows.more, total=rows.total if counted else None)


def _pager(request: web.Request, number: int, size: int, *, more: bool, total: int | None) -> Pager:
    """Return the pager of page `number`. `total` is None if there are more entries than are counted."""
    where, previous = f"Page {number}", number - 1
    if total is not None:
        pages = max(1, -(-total // size))
        where += f" of {pages}, {plural(total, 'entry', 'entries')}"
        previous = min(previous, pages)
    return Pager(
        previous=_address(request, previous) if previous else None,
        next=_address(request, number + 1) if more else None,
        where=where,
    )


async def read(request: web.Request, handler: Handler, resource: Any = None, /, **params: Any) -> Any:
    """Ask the API, as `ask` does, and return the JSON of its answer."""
    answer = await ask(request, handler, resource, **params)
    assert isinstance(answer, web.Response)  # noqa: S101 - a handler of JSON
    return orjson.loads(answer.body)  # type: ignore[arg-type]


@attrs.frozen
class List:
    """One page of one of the API's lists."""

    rows: list[dict[str, Any]]
    pages: Pager


async def read_list(request: web.Request, handler: Handler, resource: Any = None, /, **params: Any) -> List:
    """Ask one of the API's lists for the page that `params` name, like `ask`."""
    answer = await ask(request, handler, resource, **params)
    assert isinstance(answer, web.Response)  # noqa: S101 - a handler of JSON
    rows, head = orjson.loads(answer.body), answer.headers  # type: ignore[arg-type]
    return List(
        rows,
        _pager(
            request,
            int(head["X-Page"]),
            int(head["X-Per-Page"]),
            more=bool(head["X-Next-Page"]),
            total=int(head["X-Total"]) if "X-Total" in head else None,
        ),
    )


def _address(request: web.Request, number: int) -> str:
    pairs = [(name, value) for name, value in request.rel_url.query.items() if name != "page"]
    return f"?{urlencode([*pairs, ('page', str(number))])}"
