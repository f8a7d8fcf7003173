"""How a page is answered: its template, the headers that keep it to itself, and forms that only our pages can send."""

import contextlib
from collections.abc import Awaitable, Callable
from importlib import resources
from typing import Any

import aiohttp_jinja2
import jinja2
from aiohttp import web

from api_server.pages import sessions
from api_server.pages.sessions import Form, Visitor
from api_server.web import context, grounds
from api_server.web.errors import ApiError
from api_server.web.request_data import read_form

#: Answers a form of the page's visitor.
FormHandler = Callable[[web.Request, Visitor, Form], Awaitable[web.StreamResponse]]

#: Nothing is loaded but our own style, nothing frames us, no address of a page (which may hold a token) leaks.
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; form-action 'self'; frame-ancestors 'none';"
    " base-uri 'none'",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "X-Robots-Tag": "noindex",
    "Cache-Control": "no-store",
}


def setup(app: web.Application) -> None:
    aiohttp_jinja2.setup(app, loader=jinja2.PackageLoader("api_server.pages"))
    app.router.add_get("/-/pages.css", style)


async def style(_request: web.Request) -> web.Response:
    text = resources.files("api_server.pages").joinpath("pages.css").read_text()
    return web.Response(text=text, content_type="text/css", headers={"Cache-Control": "max-age=3600"})


def answer(
    request: web.Request, who: Visitor, template: str, status: int = 200, **values: Any
) -> web.Response:
    """The page, which sets the visitor's cookie."""
    response = aiohttp_jinja2.render_template(template, request, {"visitor": who, **values}, status=status)
    response.headers.update(_HEADERS)
    sessions.remember(request, response, who)
    return response


def say(request: web.Request, who: Visitor, title: str, text: str = "", status: int = 200) -> web.Response:
    """A page that only tells something."""
    return answer(request, who, "message.html", status, title=title, text=text)


def form(handler: FormHandler) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Wraps what answers a form: one that this browser was not given by us is refused."""

    async def handle(request: web.Request) -> web.StreamResponse:
        who = await sessions.visitor(request)
        sent: Form = {}
        with contextlib.suppress(ApiError):  # what cannot be read is as good as nothing
            sent = await read_form(request, context.settings(request).early_body_limit)
        if not who.wrote(sent):
            text = "It was opened too long ago, or cookies are blocked. Go back, load the page again, and try again."
            return say(request, who, "This form cannot be accepted", text, status=403)
        return await handler(request, who, sent)

    return grounds.judging_again(handle, context.forget)
