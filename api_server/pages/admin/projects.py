"""`/admin/projects`: all projects of the instance."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.namespaces import project_queries
from api_server.pages.admin import lists
from api_server.pages.admin.lists import EMPTY_IS_ALL, Filters
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR, caller

pages = Pages()


@attrs.frozen(kw_only=True)
class ListProjects(Filters):
    search: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    visibility: Literal["private", "internal", "public"] | None = attrs.field(
        default=None, metadata=EMPTY_IS_ALL
    )
    archived: bool | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/projects", access=ADMINISTRATOR)
async def list_projects(request: web.Request, who: Visitor, wanted: ListProjects) -> web.Response:
    """The newest first; found by name or path."""
    listed = await project_queries.list_projects(
        context.database(request),
        wanted.page,
        viewer_id=caller(request).user_id,
        sees_all=True,
        visibility=wanted.visibility,
        archived=wanted.archived,
        search=wanted.search,
    )
    return lists.answer(request, who, "projects.html", wanted, listed)
