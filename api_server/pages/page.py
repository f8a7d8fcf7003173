"""How a page is answered: its template, the headers that keep it to itself, and forms that only our pages can send."""

import asyncio
import contextlib
import re
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import quote

import aiohttp_jinja2
import jinja2
import markupsafe
from aiohttp import web
from jinja2.bccache import Bucket

from api_server.pages import assets, flash, sessions, texts
from api_server.pages.sessions import Form, Visitor
from api_server.web import context, grounds
from api_server.web.errors import ApiError
from api_server.web.rate_limits import RateLimiter
from api_server.web.request_data import read_form

#: Answers a form of the page's visitor.
FormHandler = Callable[[web.Request, Visitor, Form], Awaitable[web.StreamResponse]]

#: Nothing is loaded but our own files, nothing frames us, no address of a page (which may hold a token) leaks.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self';"
    " img-src 'self' data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex",
    "Cache-Control": "no-store",
}


#: Fields of forms that are not shown again: secrets, and what people have not written.
_UNSHOWN = re.compile("password|passphrase|token|secret|login|^back$|return_to")


class _Compiled(jinja2.BytecodeCache):
    """Templates that this process has compiled, for all of its applications."""

    def __init__(self) -> None:
        self._code: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if (code := self._code.get(bucket.key)) is not None:
            bucket.bytecode_from_string(code)

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


class Templates:
    """The templates of an application. To compile them takes half a second of the processor's time: that waits for the
    first page, and keeps only pages waiting."""

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


TEMPLATES = web.AppKey("templates", Templates)


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
        filters=texts.FILTERS,
    )
    environment.globals["asset"] = assets.path_of
    app[TEMPLATES] = Templates(environment)
    assets.setup(app)


def answer(
    request: web.Request, who: Visitor, template: str, status: int = 200, **values: Any
) -> web.Response:
    """The page. It sets the visitor's cookie where it has a form that needs one.

    Templates find `visitor`, the request's `path`, `here` (its address as a value in another one), `csrf()` (the field
    that every form needs) and `flash` (what the page before has left to be said).
    """
    forms: list[None] = []

    def csrf() -> markupsafe.Markup:
        forms.append(None)
        return markupsafe.Markup('<input type="hidden" name="csrf_token" value="{}">').format(who.csrf_token)

    told = {
        "visitor": who,
        "path": request.path,
        "here": quote(address(request), safe="/"),
        "csrf": csrf,
        "flash": flash.left(request, who),
    }
    told |= values
    response = aiohttp_jinja2.render_template(template, request, told, status=status)
    response.headers.update(_HEADERS)
    flash.said(request, response)
    if forms and who.is_new:
        sessions.remember(request, response, who)
    return response


def address(request: web.Request) -> str:
    """Path and query of the page, by which it can be opened again; the first page where a form was sent."""
    return request.rel_url.raw_path_qs if request.method in ("GET", "HEAD") else "/"


def say(request: web.Request, who: Visitor, title: str, text: str = "", status: int = 200) -> web.Response:
    """A page that only tells something."""
    return answer(request, who, "message.html", status, title=title, text=text)


def see_other(request: web.Request, who: Visitor, path: str, text: str = "") -> web.Response:
    """Sends the browser on to `path` of ours after a form; the page there says `text`."""
    response = web.Response(status=303, headers={"Location": path, "Cache-Control": "no-store"})
    if text:
        flash.leave(request, response, who, text)
    return response


def _refused(request: web.Request, who: Visitor, sent: Form) -> web.Response:
    """Shows what was sent, so that nothing has to be thought of twice: the session may have ended meanwhile. Not what
    another site made the browser send, which would speak with our voice."""
    title, text = "This form cannot be accepted", "It was opened too long ago, or cookies are blocked."
    own = request.headers.get("Sec-Fetch-Site") == "same-origin"
    written = {name: value for name, value in sent.items() if own and value and not _UNSHOWN.search(name)}
    return answer(request, who, "refused_form.html", 403, title=title, text=text, written=written)


def form(
    handler: FormHandler, by_address: web.AppKey[RateLimiter] | None = None
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Wraps what answers a form: one that this browser was not given by us is refused. With `by_address`, forms of one
    address are counted before anything is read of them, and those beyond the limit are 429."""

    async def handle(request: web.Request) -> web.StreamResponse:
        who = await sessions.visitor(request)
        sent: Form = {}
        with contextlib.suppress(ApiError):  # what cannot be read is as good as nothing
            sent = await read_form(request, context.settings(request).early_body_limit)
        if not who.wrote(sent):
            return _refused(request, who, sent)
        return await handler(request, who, sent)

    judged = grounds.judging_again(handle, context.forget)
    if by_address is None:
        return judged

    async def limited(request: web.Request) -> web.StreamResponse:
        if wait := request.config_dict[by_address].retry_after(request.remote):
            text = f"Try again in {wait} seconds."
            return say(request, sessions.stranger(request), "There were too many attempts", text, status=429)
        return await judged(request)

    return limited
