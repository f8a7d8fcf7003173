"""What a page's address names, as its visitor may see it; what has moved redirects."""

from typing import NoReturn

from aiohttp import web
from yarl import URL

from api_server.namespaces import access as resource_access
from api_server.namespaces.access import GroupAccess, ProjectAccess, visible_group
from api_server.namespaces.resources import Group, Project
from api_server.pages.problems import SignInFirst
from api_server.pages.sessions import Visitor
from api_server.pages.texts import url_path
from api_server.web.errors import ApiError, not_found


async def project(request: web.Request, who: Visitor, path: str, access: ProjectAccess) -> Project:
    """The project with that full path, to which `access` lets the visitor. Raises 404, 403, and `SignInFirst` for
    strangers, who are not told whether there is anything."""
    found = await visible_project(request, who, path)
    if found is None:
        raise SignInFirst if who.user is None else not_found("Project")
    try:
        access.check(found)
    except ApiError:
        if who.user is None:
            raise SignInFirst from None
        raise
    return found


async def visible_project(request: web.Request, who: Visitor, path: str) -> Project | None:
    """The project with that full path, where the visitor can see it."""
    found = await resource_access.visible_project(
        request, path, user_id=who.user_id, admin=who.is_admin, job_project_id=None
    )
    if found is not None and found.moved:
        _redirect(request, path, found.full_path)
    return found


async def group(request: web.Request, who: Visitor, path: str, access: GroupAccess) -> Group:
    """The group with that full path. Raises as `project`."""
    found = await visible_group(request, path, user_id=who.user_id, admin=who.is_admin)
    if found is None or (found.role < access.role and who.user is None):
        raise SignInFirst if who.user is None else not_found("Group")
    if found.moved:
        _redirect(request, path, found.full_path)
    access.check(found)
    return found


def _redirect(request: web.Request, old: str, new: str) -> NoReturn:
    """To the same page of what has another path now. Raises 404 for forms, which are not sent twice."""
    if request.method not in ("GET", "HEAD"):
        raise not_found("Project")
    moved = request.rel_url.raw_path_qs.replace(f"/{url_path(old)}", f"/{url_path(new)}", 1)
    # Kept by nobody: another visitor may not see what has that path now.
    raise web.HTTPMovedPermanently(URL(moved, encoded=True), headers={"Cache-Control": "no-store"})
