"""Lists with filters, and buttons on them that do what the API's own routes do, for whoever has signed in.

A button's form is answered with 303 to the page it came from, which says once what has become of it.
"""

import re
from collections.abc import Awaitable
from typing import Any
from urllib.parse import urlencode

import attrs
import orjson
from aiohttp import web

from api_server.pages import page
from api_server.pages.routes import Page as ShownPage
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.state.errors import LockNotAvailable, NotFound
from api_server.state.listing import ListPage, Page
from api_server.web import routes
from api_server.web.errors import ApiError, reason_of
from api_server.web.request_data import merged
from api_server.web.routes import ADMINISTRATOR, Access

SIZE = 20


#: Of a filter: a form sends it empty where nothing is chosen.
EMPTY_IS_ALL = {"cleared_by_empty": True}


@attrs.frozen(kw_only=True)
class Filters:
    """What a list can be narrowed by; the classes of lists inherit from it. `after` is the last id that was seen."""

    after: int | None = None

    @property
    def page(self) -> Page:
        return Page(SIZE, after=self.after, counted=False)

    @property
    def narrows(self) -> bool:
        """Whether anything but the place in the list is chosen."""
        return any(value is not None for name, value in attrs.asdict(self).items() if name != "after")


@attrs.frozen
class Pager:
    """Addresses of the list's beginning, where the page is another one, and of what follows."""

    first: str | None
    following: str | None


def answer(
    request: web.Request, visitor: Visitor, template: str, filters: Filters, listed: ListPage, **values: Any
) -> web.Response:
    """Return the page of a list; its template finds `rows`, `filters`, `pager_links` and `back`."""
    query = {name: value for name, value in request.query.items() if value.strip() and name != "after"}
    pager = Pager(
        first=f"?{urlencode(query)}" if filters.after is not None else None,
        following=f"?{urlencode({**query, 'after': str(listed.last_id)})}" if listed.more else None,
    )
    template_values = {"rows": orjson.loads(listed.body), "filters": filters, "pager_links": pager} | values
    return page.answer(request, visitor, template, back=page.address(request), **template_values)


_NOTHING_DONE = "Nothing was done"
_GONE = f"{_NOTHING_DONE}: it is not there any more."


#: The addresses of pages that a form may lead back to.
_BACK = re.compile(r"[!-~]{1,2000}", re.ASCII)


class Refused(Exception):
    """Why a form is not done as it was sent: a sentence."""


def act(
    pages: Pages,
    path: str,
    handler: routes.Handler,
    said: str,
    *,
    access: Access = ADMINISTRATOR,
    home: str = "/admin",
    form_page: ShownPage | None = None,
    **always: Any,
) -> None:
    """Add a form that does what a route of the API does, with its rule, its parameters, its audit events; then `said`
    is said on the page that it came from, which is `home` or below it. The form and its path have the parameters under
    the API's names; `always` are sent with them. A form with fields names the `form_page` that shows it again where it
    is refused; of a button it is said why."""

    async def acted(request: web.Request, visitor: Visitor, form: Form, resource: Any) -> web.Response:
        async def work() -> str:
            await routes.ask(request, handler, resource, **await merged(request) | always)
            return said

        target = home.format(**request.match_info)
        if form_page is None:
            return await attempted(request, visitor, form, work(), target)
        return page.see_other(request, visitor, _back(form, target), await work())

    pages.post(path, access=access, form_page=form_page)(acted)


async def attempted(
    request: web.Request, visitor: Visitor, form: Form, work: Awaitable[str], home: str = "/admin"
) -> web.Response:
    """Lead back to where the form came from, where it is said what `work` says, or why it was refused."""
    try:
        said = await work
    except Refused as problem:
        said = str(problem)
    except NotFound:
        said = _GONE
    except ApiError as problem:
        reason = reason_of(problem) or f"the service answers {problem.status}."
        said = _GONE if problem.status == 404 else f"{_NOTHING_DONE}: {reason}"
    except LockNotAvailable:
        said = f"{_NOTHING_DONE}: somebody else was changing the same. Try again."
    return page.see_other(request, visitor, _back(form, home), said)


def _back(form: Form, home: str) -> str:
    """Return the page that the form names, where that is `home` or below it; else `home`."""
    back = form.get("back", "")
    fits = isinstance(back, str) and _BACK.fullmatch(back) and back.startswith((f"{home}/", f"{home}?"))
    return str(back) if fits else home
