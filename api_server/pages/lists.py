"""Lists with filters, and buttons on them that do the same as the API's routes, for signed-in users.

The form of a button is answered with a redirect (303) to the page it came from, which shows the result once.
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


#: The type of a filter, which a form sends empty if nothing is chosen.
EMPTY_IS_ALL = {"cleared_by_empty": True}


@attrs.frozen(kw_only=True)
class Filters:
    """The filters of a list, as base class for those of each list. `after` is the last id of the page before."""

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
    """The addresses of the list's first page, if this is another one, and of the next page."""

    first: str | None
    following: str | None


def answer(
    request: web.Request, visitor: Visitor, template: str, filters: Filters, rows: ListPage, **values: Any
) -> web.Response:
    """Return the page of a list. Its template can use `rows`, `filters`, `pager_links` and `back`."""
    query = {name: value for name, value in request.query.items() if value.strip() and name != "after"}
    pager = Pager(
        first=f"?{urlencode(query)}" if filters.after is not None else None,
        following=f"?{urlencode({**query, 'after': str(rows.last_id)})}" if rows.more else None,
    )
    template_values = {"rows": orjson.loads(rows.body), "filters": filters, "pager_links": pager} | values
    return page.answer(request, visitor, template, back=page.address(request), **template_values)


_NOTHING_DONE = "No changes made"
_GONE = f"{_NOTHING_DONE}: the item no longer exists."


#: The addresses of pages to which a form may redirect back.
_BACK = re.compile(r"[!-~]{1,2000}", re.ASCII)


class Refused(Exception):
    """A refused form. The message is a sentence that says why."""


def act(
    pages: Pages,
    path: str,
    handler: routes.Handler,
    message: str,
    *,
    access: Access = ADMINISTRATOR,
    home: str = "/admin",
    form_page: ShownPage | None = None,
    **always: Any,
) -> None:
    """Add a form that calls a handler of the API, with its rule, parameters and audit events. Afterwards the page that
    it came from, `home` or one below it, shows `message`. The form and its path name parameters like the API, and
    `always` are added to them. A form with fields names the `form_page` that shows it again if it is refused. For a
    button, the page shows the reason."""

    async def acted(request: web.Request, visitor: Visitor, form: Form, resource: Any) -> web.Response:
        async def work() -> str:
            await routes.ask(request, handler, resource, **await merged(request) | always)
            return message

        target = home.format(**request.match_info)
        if form_page is None:
            return await attempted(request, visitor, form, work(), target)
        return page.see_other(request, visitor, _back(form, target), await work())

    pages.post(path, access=access, form_page=form_page)(acted)


async def attempted(
    request: web.Request, visitor: Visitor, form: Form, work: Awaitable[str], home: str = "/admin"
) -> web.Response:
    """Redirect to the page that the form came from, which shows the text that `work` returns or why it was refused."""
    try:
        message = await work
    except Refused as problem:
        message = str(problem)
    except NotFound:
        message = _GONE
    except ApiError as problem:
        reason = reason_of(problem) or f"the service responded with status {problem.status}."
        message = _GONE if problem.status == 404 else f"{_NOTHING_DONE}: {reason}"
    except LockNotAvailable:
        message = f"{_NOTHING_DONE}: someone else is changing the same item. Try again."
    return page.see_other(request, visitor, _back(form, home), message)


def _back(form: Form, home: str) -> str:
    """Return the page that the form names if it is `home` or below it, otherwise `home`."""
    back = form.get("back", "")
    fits = isinstance(back, str) and _BACK.fullmatch(back) and back.startswith((f"{home}/", f"{home}?"))
    return str(back) if fits else home
