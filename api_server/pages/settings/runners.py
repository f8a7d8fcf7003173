"""Handlers of the forms of runners in the CI/CD settings of a project or a group."""

from typing import Any

from aiohttp import web

from api_server.ci.runners import handlers
from api_server.namespaces.resources import Group, Project
from api_server.pages import page, shown_once
from api_server.pages.lists import act
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import frame
from api_server.pages.settings.ci_cd import (
    GROUP_HOME,
    MAINTAINER,
    OF_GROUP,
    OF_PROJECT,
    OWNER,
    show_ci_settings,
)
from api_server.pages.shown_once import NewToken

pages = Pages()


@pages.post(f"{OF_PROJECT}/runners", access=MAINTAINER, form_page=show_ci_settings)
@pages.post(f"{OF_GROUP}/runners", access=OWNER, form_page=show_ci_settings)
async def create_runner(
    request: web.Request, visitor: Visitor, form: Form, resource: Project | Group
) -> web.Response:
    """Create a runner and show its token once."""
    owner: dict[str, Any] = (
        {"runner_type": "project_type", "project_id": resource.id}
        if isinstance(resource, Project)
        else {"runner_type": "group_type", "group_id": resource.id}
    )
    made = await page.read(request, handlers.create_runner, **{**form, **owner})
    name = form.get("description") or f"no. {made['id']}"
    address = f"{frame.home(resource)}/-/settings/ci_cd"
    return shown_once.show(request, visitor, address, NewToken(f"of the runner {name}", made["token"]))


for _path, _home, _access in ((OF_PROJECT, OF_PROJECT, MAINTAINER), (OF_GROUP, GROUP_HOME, OWNER)):
    act(
        pages,
        f"{_path}/runners/{{id}}/update",
        handlers.update_runner,
        "The runner is changed.",
        access=_access,
        home=_home,
        form_page=show_ci_settings,
    )
    act(
        pages,
        f"{_path}/runners/{{id}}/pause",
        handlers.update_runner,
        "The runner gets no more jobs.",
        access=_access,
        home=_home,
        paused="true",
    )
    act(
        pages,
        f"{_path}/runners/{{id}}/resume",
        handlers.update_runner,
        "The runner gets jobs again.",
        access=_access,
        home=_home,
        paused="false",
    )
    act(
        pages,
        f"{_path}/runners/{{id}}/remove",
        handlers.delete_runner,
        "The runner is removed.",
        access=_access,
        home=_home,
    )
