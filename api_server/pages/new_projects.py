"""`/projects/new` and `/groups/new`: the forms that create projects and groups."""

import attrs
from aiohttp import web

from api_server.namespaces import (
    group_handlers,
    namespace_queries,
    project_handlers,
    project_queries,
    projects,
)
from api_server.pages import page
from api_server.pages.account import user_of
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.web import context
from api_server.web.routes import SIGNED_IN

pages = Pages()

#: Maximum number of namespaces offered. The page of each group has a link to the form that chooses its namespace.
_MAX_NAMESPACES = 500


@attrs.frozen(kw_only=True)
class NewProject:
    """The parameters of the form. `namespace_id`, which GitLab's address has too, is the namespace chosen at first."""

    namespace_id: int | None = None


@pages.get("/projects/new", access=SIGNED_IN)
async def show_new_project(request: web.Request, visitor: Visitor, params: NewProject) -> web.Response:
    user = user_of(visitor)
    offered = await project_queries.namespaces_of(
        context.services(request).database, user.id, admin=user.admin, limit=_MAX_NAMESPACES
    )
    namespaces = [
        (namespace.id, namespace.full_path)
        for namespace in offered
        if projects.may_create_in(namespace, admin=user.admin)
    ]
    if params.namespace_id not in (None, *(key for key, _ in namespaces)):
        chosen = await page.read(request, group_handlers.show_namespace, id=str(params.namespace_id))
        namespaces.append((chosen["id"], chosen["full_path"]))
    return page.answer(
        request, visitor, "projects/new.html", namespaces=namespaces, namespace_id=params.namespace_id
    )


@pages.post("/projects", form_page=show_new_project)
async def create_project(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Create the project and redirect to its page, which says what to do next."""
    project = await page.read(request, project_handlers.create_project, **form)
    return page.see_other(
        request, visitor, f"/{project['path_with_namespace']}", f"Project {project['name']} created."
    )


@attrs.frozen(kw_only=True)
class NewGroup:
    """The parameters of the form. `parent_id` is the group in which the new one is created."""

    parent_id: int | None = None


@pages.get("/groups/new", access=SIGNED_IN)
async def show_new_group(request: web.Request, visitor: Visitor, params: NewGroup) -> web.Response:
    parent = None
    if params.parent_id is not None:
        parent = await page.read(request, group_handlers.show_group, id=str(params.parent_id))
    return page.answer(
        request,
        visitor,
        "new_group.html",
        parent=parent,
        base_url=context.services(request).settings.base_url,
    )


@pages.post("/groups", form_page=show_new_group)
async def create_group(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    group = await page.read(request, group_handlers.create_group, **form)
    return page.see_other(
        request, visitor, f"/groups/{group['full_path']}", f"Group {group['name']} created."
    )


async def may_create_groups(request: web.Request, visitor: Visitor) -> bool:
    """Return whether the visitor may create groups at the top level."""
    return visitor.is_admin or (
        visitor.user is not None
        and await namespace_queries.may_create_group(context.services(request).database, visitor.user.id)
    )


async def may_create_projects(request: web.Request, visitor: Visitor, group_id: int) -> bool:
    """Return whether the visitor may create projects in the group."""
    if visitor.user is None:
        return False
    namespace = await project_queries.find_namespace(
        context.services(request).database,
        namespace_id=group_id,
        path=None,
        user_id=visitor.user.id,
        admin=visitor.user.admin,
    )
    return namespace is not None and projects.may_create_in(namespace, admin=visitor.user.admin)
