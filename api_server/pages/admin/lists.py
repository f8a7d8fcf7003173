"""Lists on administrators' pages: filters out of the address, twenty rows at a time, by keyset as in the API."""

from typing import Any
from urllib.parse import urlencode

import attrs
import orjson
from aiohttp import web

from api_server.pages import page
from api_server.pages.sessions import Visitor
from api_server.state.listing import Listed, Page

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
    request: web.Request, who: Visitor, template: str, filters: Filters, listed: Listed, **values: Any
) -> web.Response:
    """The page of a list; its template finds `rows`, `filters`, `pager_links` and `back`."""
    query = {name: value for name, value in request.query.items() if value.strip() and name != "after"}
    pager = Pager(
        first=f"?{urlencode(query)}" if filters.after is not None else None,
        following=f"?{urlencode({**query, 'after': str(listed.last_id)})}" if listed.more else None,
    )
    told = {"rows": orjson.loads(listed.body), "filters": filters, "pager_links": pager} | values
    return page.answer(request, who, f"admin/{template}", back=page.address(request), **told)
