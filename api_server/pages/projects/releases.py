"""`/-/releases` and `/-/releases/<tag>`."""

import attrs
import orjson
from aiohttp import web

from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.paging import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.releases import entities, queries
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, wanted_page

pages = Pages()


@attrs.frozen(kw_only=True)
class ListReleases(Paginated):
    pass


@attrs.frozen(kw_only=True)
class ShowRelease:
    tag: str


@pages.get("/{project}/-/releases", access=project(opens="repository"))
async def list_releases(
    request: web.Request, who: Visitor, wanted: ListReleases, found: Project
) -> web.Response:
    """The newest first."""
    part = wanted_page(wanted, queries.LISTING, default_order="released_at")
    listed = await queries.list_releases(context.database(request), part, found.id, None, None)
    shown = await entities.shown(request, found, orjson.loads(listed.body))
    return page.answer(
        request,
        who,
        "projects/releases.html",
        project=found,
        releases=shown,
        pages=pager(request, part, listed),
    )


@pages.get("/{project}/-/releases/{tag:.+}", access=project(opens="repository"))
async def show_release(
    request: web.Request, who: Visitor, wanted: ShowRelease, found: Project
) -> web.Response:
    row = await queries.show_release(context.database(request), found.id, wanted.tag)
    if row is None:
        raise not_found("Release")
    (shown,) = await entities.shown(request, found, [row])
    return page.answer(request, who, "projects/release.html", project=found, release=shown)
