"""`/<full path>` of a project, a group or a user: what no other route has taken, and so the last of all."""

import re

from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH
from api_server.code.git_http import go_get
from api_server.namespaces.access import visible_group
from api_server.namespaces.paths import MOST_SEGMENTS, problem_with
from api_server.pages import finding, page, users
from api_server.pages.problems import SignInFirst
from api_server.pages.projects.overview import show_project
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated
from api_server.web.params import structure
from api_server.web.request_data import in_url

pages = Pages()

_FULL_PATH = re.compile(FULL_PATH)
_CLONED_FROM = ".git"


@pages.get("/{full_path:(?s:.*)}")
async def show_named(request: web.Request, who: Visitor) -> web.StreamResponse:
    """Strangers are sent to sign in from whatever may be a private project, and told nothing of it."""
    path = request.match_info["full_path"].removesuffix("/").removesuffix(_CLONED_FROM)
    if go_get.is_asked(request) and (project := _outermost_project(path)) is not None:
        return await go_get.answer(request, path, project)
    if not _leads_somewhere(path):
        raise not_found("Page")
    if path != request.match_info["full_path"]:
        return page.see_other(request, who, f"/{path}")
    if "/" in path and (found := await finding.visible_project(request, who, path)) is not None:
        return await show_project(request, who, found)
    if await visible_group(request, path, user_id=who.user_id, admin=who.is_admin) is not None:
        return page.see_other(request, who, f"/groups/{path}")
    if "/" in path:
        raise SignInFirst if who.user is None else not_found("Page")
    return await users.show_user(request, who, structure(in_url(request), Paginated), path)


def _outermost_project(path: str) -> str | None:
    """The shortest beginning of a path that may be a project's."""
    project = "/".join(path.split("/", 2)[:2])
    return project if "/" in project and _leads_somewhere(project) else None


def _leads_somewhere(path: str) -> bool:
    """Whether something may have that full path."""
    if path.count("/") >= MOST_SEGMENTS or not _FULL_PATH.fullmatch(path):
        return False
    first, *others = path.split("/")
    return problem_with(first) is None and all(problem_with(f"{first}/{other}") is None for other in others)
