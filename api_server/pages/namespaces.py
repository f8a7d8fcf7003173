"""Pages of groups, projects and users by their full paths. Their routes are tried last."""

import re

import attrs
import orjson
from aiohttp import web

from api_server.accounts import user_queries
from api_server.accounts.path_rules import FULL_PATH
from api_server.code import git_http_handlers
from api_server.namespaces import namespace_queries, project_queries
from api_server.namespaces.access import group, visible_group
from api_server.namespaces.paths import MAX_SEGMENTS, problem_with
from api_server.namespaces.resources import Group
from api_server.pages import gitlab_addresses, new_projects, page, routes
from api_server.pages.page import pager
from api_server.pages.problems import SignInFirst
from api_server.pages.projects import show_project
from api_server.pages.routes import Pages
from api_server.pages.sessions import NOBODY, Visitor
from api_server.pages.text import rendering
from api_server.state.listing import ListPage, Page
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import MAX_PER_PAGE, Paginated, requested_page
from api_server.web.params import structure
from api_server.web.request_data import in_url
from api_server.web.routes import Role

pages = Pages()


@attrs.frozen(kw_only=True)
class ShowGroup(Paginated):
    pass


@pages.get(f"/groups/{{group:{FULL_PATH}}}", access=group())
async def show_group(request: web.Request, visitor: Visitor, params: ShowGroup, group: Group) -> web.Response:
    database, viewer = context.services(request).database, visitor.user_id or NOBODY
    entity = orjson.loads(await namespace_queries.show_group(database, group.id))
    (description,) = await rendering.markdown(request, visitor, None, [entity["description"]])
    groups = await namespace_queries.list_groups(
        database,
        Page(MAX_PER_PAGE, order="name", descending=False, counted=False),
        user_id=viewer,
        admin=visitor.is_admin,
        min_level=None,
        parent_id=group.id,
        ancestor_id=None,
        top_level_only=False,
        skipped=[],
        search=None,
    )
    part = requested_page(params, project_queries.LISTING, default_order="last_activity_at")
    projects = await project_queries.list_projects(
        database,
        part,
        viewer_id=viewer,
        sees_all=visitor.is_admin,
        group_id=group.id,
    )
    return page.answer(
        request,
        visitor,
        "group.html",
        group=group,
        entity=entity,
        description=description,
        tab="group",
        groups=orjson.loads(groups.body),
        more_groups=groups.more,
        projects=orjson.loads(projects.body),
        pages=pager(request, part, projects),
        may_create_projects=await new_projects.may_create_projects(request, visitor, group.id),
        may_create_groups=group.role >= Role.OWNER,
    )


#: The projects of a bot, which has no namespace.
_NO_PROJECTS = ListPage("[]", more=False, last_id=None, total=0)


async def show_user(request: web.Request, visitor: Visitor, params: Paginated, username: str) -> web.Response:
    """Show a user's page. Raise `SignInFirst` and 404."""
    if visitor.user is None:
        raise SignInFirst
    database = context.services(request).database
    user = await user_queries.find_user_by_username(database, username)
    if user is None:
        raise not_found("User")
    is_own_page = user.id == visitor.user.id
    namespace = await namespace_queries.namespace_of_named(database, user_id=user.id, username=username)
    part = requested_page(params, project_queries.LISTING, default_order="last_activity_at")
    projects = _NO_PROJECTS
    if namespace is not None:
        projects = await project_queries.list_projects(
            database,
            part,
            viewer_id=visitor.user.id,
            sees_all=visitor.user.admin or is_own_page,
            group_id=namespace.id,
        )
    return page.answer(
        request,
        visitor,
        "user.html",
        user=orjson.loads(await user_queries.show_user(database, user.id, "user")),
        own=is_own_page,
        projects=orjson.loads(projects.body),
        pages=pager(request, part, projects),
    )


named_pages = Pages()

_FULL_PATH = re.compile(FULL_PATH)
_CLONED_FROM = ".git"


@named_pages.get("/{full_path:(?s:.*)}")
async def show_named(request: web.Request, visitor: Visitor) -> web.StreamResponse:
    """Show the project, group or user with the path. Anonymous visitors are redirected to sign in from every path that
    may be a private project's, so that they do not learn whether it exists."""
    path = request.match_info["full_path"].removesuffix("/").removesuffix(_CLONED_FROM)
    if git_http_handlers.is_go_get(request) and (project := _outermost_project(path)) is not None:
        return await git_http_handlers.answer_go_get(request, path, project)
    moved = gitlab_addresses.page_below(path)
    if not _leads_somewhere(path):
        if moved is not None:
            return gitlab_addresses.redirect(request, moved)
        raise not_found("Page")
    if path != request.match_info["full_path"]:
        return page.see_other(request, visitor, f"/{path}")
    if "/" in path and (visible := await routes.visible_project(request, visitor, path)) is not None:
        return await show_project(request, visitor, visible)
    if (
        await visible_group(context.services(request), path, user_id=visitor.user_id, admin=visitor.is_admin)
        is not None
    ):
        return page.see_other(request, visitor, f"/groups/{path}")
    if moved is not None:
        return gitlab_addresses.redirect(request, moved)
    if "/" in path:
        raise SignInFirst if visitor.user is None else not_found("Page")
    return await show_user(request, visitor, structure(in_url(request), Paginated), path)


def _outermost_project(path: str) -> str | None:
    """Return the shortest prefix of a path that may be a project's path."""
    project = "/".join(path.split("/", 2)[:2])
    return project if "/" in project and _leads_somewhere(project) else None


def _leads_somewhere(path: str) -> bool:
    """Return whether a project, group or user may have that full path."""
    if path.count("/") >= MAX_SEGMENTS or not _FULL_PATH.fullmatch(path):
        return False
    first, *others = path.split("/")
    return problem_with(first, within=False) is None and all(
        problem_with(other, within=True) is None for other in others
    )
