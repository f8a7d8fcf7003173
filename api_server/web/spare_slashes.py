"""Paths of the API with several slashes for one, or with slashes at the end, as Rails' router takes them.

Each is what it is with one slash and none at the end, unless a parameter is missing between two of them: then Rails
would find another resource, `/groups/members` for `/groups//members`.
"""

import re

from aiohttp import web
from aiohttp.web_urldispatcher import UrlMappingMatchInfo

from api_server.web.route_index import RouteIndex

_SLASHES = re.compile("/{2,}")


def setup(app: web.Application, prefix: str) -> None:
    """Let `app`, all of whose routes are registered, find them by the index, and such paths below `prefix`."""
    resolve = RouteIndex(app.router).resolve
    below = re.compile(f"{prefix.replace('/', '/+')}(?=/)")

    async def find(request: web.Request) -> UrlMappingMatchInfo:
        path = request.rel_url.raw_path
        if not ("//" in path or path.endswith("/")) or (start := below.match(path)) is None:
            return await resolve(request)
        rest = path[start.end() :].rstrip("/")

        async def at(path: str) -> UrlMappingMatchInfo:
            return await resolve(
                request.clone(rel_url=request.rel_url.with_path(prefix + path, encoded=True))
            )

        found = await at(path[start.end() :])
        if _is_known(found) or ("//" in rest and _is_known(await at(_SLASHES.sub("/-/", rest)))):
            return found
        return await at(plain(rest))

    app.router.resolve = find  # type: ignore[method-assign]  # aiohttp takes no other


def _is_known(found: UrlMappingMatchInfo) -> bool:
    return not isinstance(found.http_exception, web.HTTPNotFound)


def plain(path: str) -> str:
    """The path without spare slashes."""
    return _SLASHES.sub("/", path).rstrip("/")
