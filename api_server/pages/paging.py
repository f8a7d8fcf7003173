"""The links below a list that lead to its other pages."""

from urllib.parse import urlencode

import attrs
from aiohttp import web

from api_server.pages.texts import plural
from api_server.state.listing import MOST_COUNTED, Listed, Page


@attrs.frozen
class Pager:
    """Addresses of the neighbours, where there are any, and where among them the page stands."""

    previous: str | None
    next: str | None
    where: str


def pager(request: web.Request, page: Page, listed: Listed) -> Pager:
    """For the page of a list that was read by offset; every other parameter of the address stays."""
    number = page.offset // page.size + 1
    where, previous = f"Page {number}", number - 1
    if listed.total is not None and listed.total <= MOST_COUNTED:
        pages = max(1, -(-listed.total // page.size))
        where += f" of {pages}, {plural(listed.total, 'entry', 'entries')}"
        previous = min(previous, pages)
    return Pager(
        previous=_address(request, previous) if previous else None,
        next=_address(request, number + 1) if listed.more else None,
        where=where,
    )


def _address(request: web.Request, number: int) -> str:
    pairs = [(name, value) for name, value in request.rel_url.query.items() if name != "page"]
    return f"?{urlencode([*pairs, ('page', str(number))])}"
