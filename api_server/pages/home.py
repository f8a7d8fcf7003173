"""`/`: what this is, for strangers; the projects and groups that are hers, for somebody who has signed in."""

import attrs
import orjson
from aiohttp import web

from api_server.namespaces import project_queries
from api_server.pages import page
from api_server.pages.paging import pager
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.pagination import Paginated, wanted_page
from api_server.web.routes import Role

pages = Pages()


@attrs.frozen(kw_only=True)
class ShowHome(Paginated):
    search: str | None = None


@pages.get("/")
async def show_home(request: web.Request, who: Visitor, wanted: ShowHome) -> web.Response:
    if who.user is None:
        base_url = context.settings(request).base_url
        return page.answer(request, who, "welcome.html", base_url=base_url)
    part = wanted_page(wanted, project_queries.LISTING, default_order="last_activity_at")
    listed = await project_queries.list_projects(
        context.database(request),
        part,
        viewer_id=who.user.id,
        sees_all=False,
        min_level=Role.GUEST,
        visibility=None,
        archived=None,
        search=wanted.search,
    )
    return page.answer(
        request,
        who,
        "home.html",
        projects=orjson.loads(listed.body),
        pages=pager(request, part, listed),
        search=wanted.search or "",
    )
