"""Pages of what is listed from git: by offset only; keyset requests are answered so too, as GitLab does."""

from collections.abc import Sequence
from typing import Any, TypeVar

import orjson
from aiohttp import web

from api_server.state.listing import Listed
from api_server.web.pagination import Paginated, offset_page, paginated

ItemT = TypeVar("ItemT")


def on_page(wanted: Paginated, items: Sequence[ItemT]) -> Sequence[ItemT]:
    """Those that are to be shown."""
    page = offset_page(wanted)
    return items[page.offset : page.offset + page.size]


async def listed(
    request: web.Request, wanted: Paginated, shown: Sequence[dict[str, Any]], total: int
) -> web.Response:
    """The answer with these entities, which are on the wanted page, of `total`."""
    page = offset_page(wanted)
    more = page.offset + page.size < total
    return await paginated(request, page, Listed(orjson.dumps(shown).decode(), more, None, total))
