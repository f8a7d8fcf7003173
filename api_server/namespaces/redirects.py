"""References to projects and groups in URLs: ids, full paths, and the old paths of what has moved."""

from typing import NoReturn

from aiohttp import web

from api_server.outbound.destinations import written_url
from api_server.state.database import MAX_BIGINT
from api_server.web import context
from api_server.web.errors import ApiError, bad_parameters
from api_server.web.route_index import plain

_MOST_DIGITS = 30


def id_in(reference: str, parameter: str = "id") -> int | None:
    """The number where `reference` is an id (digits, perhaps with a minus), None where it is a path. Raises 400 where
    it has more than 64 bits (decision D11)."""
    if not (reference.isascii() and reference.removeprefix("-").isdecimal()):
        return None
    if len(reference) > _MOST_DIGITS or not -MAX_BIGINT - 1 <= int(reference) <= MAX_BIGINT:
        raise bad_parameters(f"{parameter} is invalid")
    return int(reference)


def redirect(request: web.Request, current_id: int) -> NoReturn:
    """301 to the same URL by id for reading; 405 for everything else, as GitLab answers for old paths."""
    if request.method not in ("GET", "HEAD"):
        raise ApiError(405, {"message": "Non GET methods are not allowed for moved projects"})
    # By its place: clients encode one path in several ways, and a short one may stand in the URL elsewhere.
    parts = plain(request.rel_url.raw_path).split("/")
    parts[request.match_info.get_info()["formatter"].split("/").index("{id}")] = str(current_id)
    query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
    url = f"{context.settings(request).base_url}{'/'.join(parts)}{query}"
    raise web.HTTPMovedPermanently(
        written_url(url), text=f"This resource has been moved permanently to {url}"
    )
