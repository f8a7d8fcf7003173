"""`/`, `/explore` and `/dashboard/groups`: lists of projects and groups. `/help` is here too."""

from typing import Any

import attrs
from aiohttp import web

from api_server.namespaces import group_handlers, project_handlers
from api_server.pages import new_projects, page
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.pagination import Paginated
from api_server.web.routes import SIGNED_IN, Role

pages = Pages()


@attrs.frozen(kw_only=True)
class Find(Paginated):
    search: str = ""

    @property
    def api_params(self) -> dict[str, Any]:
        """The parameters for a list of the API."""
        return {"page": self.page, "per_page": self.per_page, "search": self.search}


@pages.get("/")
async def show_home(request: web.Request, visitor: Visitor, params: Find) -> web.Response:
    """List the visitor's own projects. Anonymous visitors and members of no project get all projects that they can
    see."""
    own_projects = None
    if visitor.user is not None:
        own_projects = await _projects(request, params, membership=True)
        if own_projects.rows or params.search or params.page > 1:
            return await _show(request, visitor, "Your projects", params, own_projects)
    all_projects = await _projects(request, params)
    title = "Public projects" if own_projects is None else "Your projects"
    return await _show(request, visitor, title, params, all_projects, instead=own_projects is not None)


@pages.get("/explore/projects")
async def explore_projects(request: web.Request, visitor: Visitor, params: Find) -> web.Response:
    title = "All projects" if visitor.user else "Public projects"
    return await _show(request, visitor, title, params, await _projects(request, params))


async def _projects(request: web.Request, params: Find, **fields: Any) -> page.List:
    """Return a page of projects, those with the newest activity first."""
    fields |= params.api_params | {"order_by": "last_activity_at"}
    return await page.read_list(request, project_handlers.list_projects, **fields)


@pages.get("/dashboard/groups", access=SIGNED_IN)
async def show_own_groups(request: web.Request, visitor: Visitor, params: Find) -> web.Response:
    fields = params.api_params | {"min_access_level": Role.GUEST}
    groups = await page.read_list(request, group_handlers.list_groups, **fields)
    return await _show(request, visitor, "Your groups", params, groups)


@pages.get("/explore/groups")
async def explore_groups(request: web.Request, visitor: Visitor, params: Find) -> web.Response:
    title = "All groups" if visitor.user else "Public groups"
    groups = await page.read_list(request, group_handlers.list_groups, **params.api_params)
    return await _show(request, visitor, title, params, groups)


async def _show(
    request: web.Request,
    visitor: Visitor,
    title: str,
    params: Find,
    entries: page.List,
    *,
    instead: bool = False,
) -> web.Response:
    """Show a list. `instead` says that it has all visible projects because the visitor has none of her own."""
    return page.answer(
        request,
        visitor,
        "found.html",
        title=title,
        search=params.search,
        found=entries,
        instead=instead,
        may_create_groups=await new_projects.may_create_groups(request, visitor),
    )


@pages.get("/help")
async def show_help(request: web.Request, visitor: Visitor) -> web.Response:
    return page.answer(request, visitor, "help.html", base_url=context.services(request).settings.base_url)
