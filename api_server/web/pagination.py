"""Offset and keyset pagination of lists, in the form that GitLab's clients expect (decision D3)."""

import base64
from collections.abc import Iterable, Iterator
from typing import Literal
from urllib.parse import quote_plus, urlencode

import attrs
import orjson
from aiohttp import web

from api_server.state.listing import MAX_COUNTED, ListPage, ListQuery, Page
from api_server.web import context
from api_server.web.answers import json_text
from api_server.web.errors import ApiError, bad_parameters
from api_server.web.request_data import merged

MAX_PER_PAGE = 100
#: Lists with keyset pagination refuse a `page` x `per_page` greater than this.
MAX_OFFSET = 50_000
#: No list has a row behind this offset; PostgreSQL's offsets have 64 bits.
_BEHIND_ALL = 2**62
_DIRECTION = Literal["asc", "desc"] | None
#: Maximum bytes of a Link header that clients and proxies accept.
MAX_LINK = 7_000


@attrs.frozen(kw_only=True)
class Paginated:
    """The parameters that every list takes; parameter classes of lists inherit from it."""

    page: int = attrs.field(default=1, metadata={"minimum": 1})
    per_page: int = attrs.field(default=20, metadata={"minimum": 1})
    pagination: str = "offset"
    cursor: str | None = None
    order_by: str | None = None
    sort: str | None = attrs.field(default=None, metadata={"takes": _DIRECTION})

    def __attrs_post_init__(self) -> None:
        invalid = [name for name, minimum in _MINIMUMS.items() if getattr(self, name) < minimum]
        # branches and tags have orders of their own, declared by their types
        is_direction = "takes" in attrs.fields_dict(type(self))["sort"].metadata
        if is_direction and self.sort and self.sort.lower() not in ("asc", "desc"):
            invalid.append("sort")
        if invalid:
            raise ValueError(", ".join(f"{name} does not have a valid value" for name in invalid))


#: The minimum values of its numbers.
_MINIMUMS = {
    field.name: field.metadata["minimum"] for field in attrs.fields(Paginated) if "minimum" in field.metadata
}


def requested_page(
    parameters: Paginated, listing: ListQuery, *, default_order: str = "id", default_sort: str = "desc"
) -> Page:
    """Return the page that `parameters` ask for. Raise 400 for unknown orders and broken cursors, and 405 for
    an order or offset that this pagination does not support."""
    order = parameters.order_by or default_order
    sort = (parameters.sort or default_sort).lower()
    keyset = parameters.pagination == "keyset"
    if order not in listing.orders and not keyset:
        raise bad_parameters("order_by does not have a valid value")
    size = min(parameters.per_page, MAX_PER_PAGE)
    if keyset:
        if order != "id":
            raise ApiError(405, {"error": "Keyset pagination is not yet available for this type of request"})
        after = _position(parameters.cursor) if parameters.cursor else None
        return Page(size, 0, after, "id", sort == "desc", counted=False)
    offset = bounded_offset_page(parameters).offset
    return Page(size, offset, None, order, sort == "desc")


def offset_page(parameters: Paginated) -> Page:
    """Return the page to read of a list with a single order."""
    size = min(parameters.per_page, MAX_PER_PAGE)
    return Page(size, min((parameters.page - 1) * size, _BEHIND_ALL))


def bounded_offset_page(parameters: Paginated) -> Page:
    """Return the page like `offset_page`, for a list that also has keyset pagination. Raise 405 for an offset
    that is too large."""
    page = offset_page(parameters)
    if parameters.page * page.size > MAX_OFFSET:
        raise ApiError(
            405,
            {
                "error": f"Offset pagination has a maximum allowed offset of {MAX_OFFSET}. "
                "Remaining records can be retrieved using keyset pagination."
            },
        )
    return page


async def paginated_by_token(request: web.Request, size: int, body: str, token: str | None) -> web.Response:
    """Return a JSON array of at most `size` items whose next page has this `page_token`; None if there is no
    next page."""
    page = Page(size, counted=False)
    links = {} if token is None else {"Link": await _links(request, page, "page_token", {"next": token})}
    return json_text(body, headers=links)


async def paginated(request: web.Request, page: Page, list_page: ListPage) -> web.Response:
    """Return the list's JSON with the headers of its kind of pagination."""
    headers = await (_offset_headers if page.counted else _keyset_headers)(request, page, list_page)
    return json_text(list_page.body, headers=headers)


async def _keyset_headers(request: web.Request, page: Page, list_page: ListPage) -> dict[str, str]:
    if not list_page.more:
        return {}
    cursor = _cursor(list_page.last_id or 0)
    return {"Link": await _links(request, page, "cursor", {"next": cursor})}


async def _offset_headers(request: web.Request, page: Page, list_page: ListPage) -> dict[str, str]:
    number = page.offset // page.size + 1
    has_total = list_page.total is not None and list_page.total <= MAX_COUNTED
    pages = max(1, -(-(list_page.total or 0) // page.size))
    following = str(number + 1) if list_page.more else ""
    # Nothing precedes a page past the end.
    previous = str(number - 1) if number > 1 and list_page.body != "[]" else ""
    links = {"prev": previous, "next": following, "first": "1", "last": str(pages) if has_total else ""}
    headers = {
        "Link": await _links(request, page, "page", {rel: n for rel, n in links.items() if n}),
        "X-Next-Page": following,
        "X-Page": str(number),
        "X-Per-Page": str(page.size),
        "X-Prev-Page": previous,
    }
    if has_total:
        headers |= {"X-Total": str(list_page.total), "X-Total-Pages": str(pages)}
    return headers


async def _links(request: web.Request, page: Page, varied: str, relations: dict[str, str]) -> str:
    """Return the links to other pages. Each repeats all parameters of the request except credentials, in
    alphabetical order, with the relation's value of `varied`.

    If the links are too long for one header field, leave out the dispensable ones; raise 400 if the rest is
    still too long.
    """
    data = {"page": "1"} | await merged(request) | {"per_page": str(page.size)}
    pairs = sorted(_limit(_flat({name: value for name, value in data.items() if name not in _CREDENTIALS})))
    before = urlencode([pair for pair in pairs if pair[0] < varied] + [(varied, "")])
    after = "".join(f"&{urlencode([pair])}" for pair in pairs if pair[0] > varied)
    start = f"<{context.services(request).settings.base_url}{request.rel_url.raw_path}?{before}"
    links = {
        relation: f'{start}{quote_plus(value)}{after}>; rel="{relation}"'
        for relation, value in relations.items()
    }
    for dispensable in ("last", "first", "prev"):
        if len(", ".join(links.values())) <= MAX_LINK:
            break
        links.pop(dispensable, None)
    field = ", ".join(links.values())
    if len(field) > MAX_LINK:
        raise _too_long()
    return field


def _too_long() -> ApiError:
    return bad_parameters("the parameters are too long to be paged through")


_CREDENTIALS = frozenset({"private_token", "job_token", "access_token", "token"})


def _limit(pairs: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the pairs, not yet encoded. Raise the 400 of links that are too long as soon as that is
    certain."""
    length = 0
    for name, value in pairs:
        length += len(name) + len(value)
        if length > MAX_LINK:
            raise _too_long()
        yield name, value


def _flat(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield nested parameters in bracket form, so that they can be sent again."""
    if len(name) > MAX_LINK:  # the name would be repeated for each of its values
        raise _too_long()
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _flat(inner, f"{name}[{key}]" if name else key)
    elif isinstance(value, list):
        for inner in value:
            yield from _flat(inner, f"{name}[]")
    else:
        yield name, _text(value)


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)


def _cursor(last_id: int) -> str:
    return base64.urlsafe_b64encode(orjson.dumps({"id": str(last_id), "_kd": "n"})).decode()


def _position(cursor: str) -> int:
    try:
        decoded = orjson.loads(base64.b64decode(cursor.encode(), altchars=b"-_", validate=True))
        position = decoded["id"]
        if decoded["_kd"] != "n" or not isinstance(position, str) or not position.isdecimal():
            raise ValueError(cursor)
        if int(position) >= 2**63:
            raise ValueError(cursor)
        return int(position)
    except (ValueError, KeyError, TypeError):
        raise bad_parameters("cursor is invalid") from None
