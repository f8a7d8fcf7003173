"""Pages of what is listed from git: by offset, which keyset requests get too, as GitLab does; of trees also by path."""

import base64
import binascii
from collections.abc import Sequence
from typing import Any, TypeVar

import orjson
from aiohttp import web

from api_server.state.listing import Listed
from api_server.web.errors import bad_parameters
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


def token_at(key: bytes) -> str:
    """The `page_token` of the page that follows the node at `key`."""
    return base64.urlsafe_b64encode(key).decode()


def position_of(token: str | None) -> bytes:
    """The key behind which a page begins. Raises 400."""
    try:
        return base64.b64decode((token or "").encode(), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        raise bad_parameters("page_token is invalid") from None
