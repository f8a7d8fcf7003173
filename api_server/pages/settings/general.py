"""`/<project>/-/edit` and `/groups/<group>/-/edit`: name and visibility, archiving, moving and deleting."""

from typing import Any

import attrs
from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH
from api_server.namespaces import group_handlers, project_handlers
from api_server.namespaces.access import group, project
from api_server.namespaces.resources import Group, Project
from api_server.pages import page
from api_server.pages.forms import Choices
from api_server.pages.lists import act
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import frame
from api_server.web.errors import invalid
from api_server.web.pagination import MAX_PER_PAGE
from api_server.web.routes import Role, ask

pages = Pages()

OF_PROJECT = "/{project}/-/edit"
OF_GROUP = f"/groups/{{group:{FULL_PATH}}}/-/edit"
MAINTAINER, OWNER, OWNER_OF_GROUP = project(Role.MAINTAINER), project(Role.OWNER), group(Role.OWNER)


@pages.get(OF_PROJECT, access=MAINTAINER)
async def show_project_settings(request: web.Request, visitor: Visitor, project: Project) -> web.Response:
    namespaces = None
    if project.role >= Role.OWNER:
        available = await page.read_list(request, group_handlers.list_namespaces, per_page=MAX_PER_PAGE)
        paths = [group["full_path"] for group in available.rows]
        others = [(path, path) for path in paths if path != project.full_path.rpartition("/")[0]]
        namespaces = Choices(others, available.pages.next is None)
    return frame.answer(
        request,
        visitor,
        project,
        "general.html",
        entity=await page.read(request, project_handlers.show_project, project),
        is_owner=project.role >= Role.OWNER,
        namespaces=namespaces,
    )


act(
    pages,
    f"{OF_PROJECT}/update",
    project_handlers.update_project,
    "Settings saved.",
    access=MAINTAINER,
    home=OF_PROJECT,
    form_page=show_project_settings,
)
act(
    pages,
    f"{OF_PROJECT}/archive",
    project_handlers.archive_project,
    "Project archived. It is now read-only.",
    access=OWNER,
    home=OF_PROJECT,
)
act(
    pages,
    f"{OF_PROJECT}/unarchive",
    project_handlers.unarchive_project,
    "Project unarchived.",
    access=OWNER,
    home=OF_PROJECT,
)


@attrs.frozen(kw_only=True)
class Confirmed:
    """The parameters of a form that has to be confirmed: `confirmation` is the full path, typed once more."""

    confirmation: str = ""

    def check(self, resource: Project | Group) -> None:
        """Raise 422 if the typed text is not the path of `resource`."""
        if self.confirmation.strip() != resource.full_path:
            raise invalid({"confirmation": [f"Type {resource.full_path} to confirm."]}, status=422)


@pages.post(f"{OF_PROJECT}/path", access=OWNER, form_page=show_project_settings)
async def move_project(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    """Change the last part of the project's path."""
    handler = project_handlers.update_project
    moved = await page.read(request, handler, project, path=form.get("path"))
    return _moved(request, visitor, moved)


@pages.post(f"{OF_PROJECT}/transfer", access=OWNER, form_page=show_project_settings)
async def transfer_project(
    request: web.Request, visitor: Visitor, form: Form, project: Project
) -> web.Response:
    """Transfer the project to another group, or to the visitor's own namespace."""
    handler = project_handlers.transfer_project
    moved = await page.read(request, handler, project, namespace=form.get("namespace"))
    return _moved(request, visitor, moved)


def _moved(request: web.Request, visitor: Visitor, entity: dict[str, Any]) -> web.Response:
    path = entity["path_with_namespace"]
    text = f"Project moved to {path}. The old URL redirects here."
    return page.see_other(request, visitor, f"/{path}/-/edit", text)


@pages.post(f"{OF_PROJECT}/delete", access=OWNER, form_page=show_project_settings)
async def delete_project(
    request: web.Request, visitor: Visitor, params: Confirmed, project: Project
) -> web.Response:
    params.check(project)
    await ask(request, project_handlers.delete_project, project)
    return page.see_other(request, visitor, "/", f"Project {project.full_path} deleted.")


@pages.get(OF_GROUP, access=OWNER_OF_GROUP)
async def show_group_settings(request: web.Request, visitor: Visitor, group: Group) -> web.Response:
    entity = await page.read(request, group_handlers.show_group, group)
    return frame.answer(request, visitor, group, "group_general.html", entity=entity)


@pages.post(f"{OF_GROUP}/update", access=OWNER_OF_GROUP, form_page=show_group_settings)
async def update_group(request: web.Request, visitor: Visitor, form: Form, group: Group) -> web.Response:
    """Change the group, and redirect to its settings, whose address changes with its path."""
    entity = await page.read(request, group_handlers.update_group, group, **form)
    address = f"/groups/{entity['full_path']}/-/edit"
    return page.see_other(request, visitor, address, "Settings saved.")


@pages.post(f"{OF_GROUP}/delete", access=OWNER_OF_GROUP, form_page=show_group_settings)
async def delete_group(
    request: web.Request, visitor: Visitor, params: Confirmed, group: Group
) -> web.Response:
    """Delete the group with everything in it."""
    params.check(group)
    await ask(request, group_handlers.delete_group, group)
    return page.see_other(request, visitor, "/", f"Group {group.full_path} deleted.")
