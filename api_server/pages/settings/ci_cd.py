"""`/<project>/-/settings/ci_cd` and `/groups/<group>/-/settings/ci_cd`: pipelines, runners, variables and tokens.

Only projects have trigger tokens, and a list of the projects and groups whose jobs are let in.
"""

from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.accounts.path_rules import FULL_PATH
from api_server.ci.runners import handlers as runner_handlers
from api_server.ci.triggers import handlers as triggers
from api_server.ci.variables import handlers as variables
from api_server.namespaces import job_token_scope_handlers as job_tokens
from api_server.namespaces import project_handlers
from api_server.namespaces.access import group, project, visible_group
from api_server.namespaces.resources import Group, Project
from api_server.pages import page, shown_once
from api_server.pages.lists import act
from api_server.pages.routes import Pages, visible_project
from api_server.pages.sessions import Form, Visitor
from api_server.pages.settings import frame, queries
from api_server.pages.shown_once import NewToken
from api_server.state.listing import Page
from api_server.state.secrets import TRIGGER_TOKEN
from api_server.web import context
from api_server.web.errors import invalid
from api_server.web.pagination import MAX_PER_PAGE
from api_server.web.routes import Role, ask

pages = Pages()

OF_PROJECT = "/{project}/-/settings/ci_cd"
OF_GROUP = f"/groups/{{group:{FULL_PATH}}}/-/settings/ci_cd"
GROUP_HOME = "/groups/{group}/-/settings/ci_cd"
MAINTAINER, OWNER = project(Role.MAINTAINER), group(Role.OWNER)


@attrs.frozen(kw_only=True)
class ShowSettings:
    #: Whether the values of variables are shown.
    reveal: bool = False


@pages.get(OF_PROJECT, access=MAINTAINER)
@pages.get(OF_GROUP, access=OWNER)
async def show_ci_settings(
    request: web.Request, visitor: Visitor, params: ShowSettings, resource: Project | Group
) -> web.Response:
    is_project = isinstance(resource, Project)
    whose = {"project_id" if is_project else "namespace_id": resource.id}
    runners = await queries.list_runners(
        context.services(request).database, Page(MAX_PER_PAGE, descending=False, counted=False), **whose
    )
    values = {
        "variables": await page.read(request, variables.list_variables, resource, per_page=MAX_PER_PAGE),
        "runners": orjson.loads(runners.body),
        "base_url": context.services(request).settings.base_url,
        "reveal": params.reveal,
        "made": shown_once.shown(request, visitor),
    }
    if isinstance(resource, Project):
        values |= await _of_project(request, resource)
    return frame.answer(request, visitor, resource, "ci_cd.html", **values)


async def _of_project(request: web.Request, project: Project) -> dict[str, Any]:
    """Return the values that only projects have."""
    longest_page = {"per_page": MAX_PER_PAGE}
    project_triggers: list[dict[str, Any]] = []
    if project.shows_pipelines:
        project_triggers = await page.read(request, triggers.list_triggers, project, **longest_page)
    return {
        "entity": await page.read(request, project_handlers.show_project, project),
        "triggers": [trigger | {"token": _beginning(trigger["token"])} for trigger in project_triggers],
        "scope": await page.read(request, job_tokens.show_scope, project),
        "allowed_projects": await page.read(request, job_tokens.list_projects, project, **longest_page),
        "allowed_groups": await page.read(request, job_tokens.list_groups, project, **longest_page),
    }


def _beginning(token: str) -> str:
    """Return the part of a trigger's token that everybody but its owner sees."""
    return token.removeprefix(TRIGGER_TOKEN)[: triggers.SHOWN_CHARACTERS]


act(
    pages,
    f"{OF_PROJECT}/update",
    project_handlers.update_project,
    "Settings saved.",
    access=MAINTAINER,
    home=OF_PROJECT,
    form_page=show_ci_settings,
)


@pages.post(f"{OF_PROJECT}/triggers", access=MAINTAINER, form_page=show_ci_settings)
async def create_trigger(
    request: web.Request, visitor: Visitor, form: Form, project: Project
) -> web.Response:
    fields = {"description": form.get("description")}
    trigger = await page.read(request, triggers.create_trigger, project, **fields)
    address = f"/{project.full_path}/-/settings/ci_cd"
    new = NewToken(f"for trigger {trigger['description']}", trigger["token"])
    return shown_once.show(request, visitor, address, new)


act(
    pages,
    f"{OF_PROJECT}/triggers/{{trigger_id}}/delete",
    triggers.delete_trigger,
    "Trigger token revoked.",
    access=MAINTAINER,
    home=OF_PROJECT,
)
act(
    pages,
    f"{OF_PROJECT}/job_token_scope",
    job_tokens.limit_access,
    "Settings saved.",
    access=MAINTAINER,
    home=OF_PROJECT,
    form_page=show_ci_settings,
)


@pages.post(f"{OF_PROJECT}/job_token_scope/allow", access=MAINTAINER, form_page=show_ci_settings)
async def allow_jobs(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    """Let in the jobs of the project or group with the typed full path. Raise 422 if the visitor sees neither."""
    path = str(form.get("path", "")).strip().strip("/")
    other = await visible_project(request, visitor, path)
    if other is not None:
        await ask(request, job_tokens.allow_project, project, target_project_id=other.id)
    else:
        target = await visible_group(
            context.services(request), path, user_id=visitor.user_id, admin=visitor.is_admin
        )
        if target is None:
            raise invalid({"path": ["No project or group with this path."]}, status=422)
        await ask(request, job_tokens.allow_group, project, target_group_id=target.id)
    address = f"/{project.full_path}/-/settings/ci_cd"
    return page.see_other(request, visitor, address, f"{path} added to the allowlist.")


act(
    pages,
    f"{OF_PROJECT}/job_token_scope/projects/{{target_project_id}}/remove",
    job_tokens.disallow_project,
    "Project removed from the allowlist.",
    access=MAINTAINER,
    home=OF_PROJECT,
)
act(
    pages,
    f"{OF_PROJECT}/job_token_scope/groups/{{target_group_id}}/remove",
    job_tokens.disallow_group,
    "Group removed from the allowlist.",
    access=MAINTAINER,
    home=OF_PROJECT,
)


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
    runner = await page.read(request, runner_handlers.create_runner, **{**form, **owner})
    name = form.get("description") or f"#{runner['id']}"
    address = f"{frame.home(resource)}/-/settings/ci_cd"
    return shown_once.show(request, visitor, address, NewToken(f"for runner {name}", runner["token"]))


for _path, _home, _access in ((OF_PROJECT, OF_PROJECT, MAINTAINER), (OF_GROUP, GROUP_HOME, OWNER)):
    act(
        pages,
        f"{_path}/runners/{{id}}/update",
        runner_handlers.update_runner,
        "Runner updated.",
        access=_access,
        home=_home,
        form_page=show_ci_settings,
    )
    act(
        pages,
        f"{_path}/runners/{{id}}/pause",
        runner_handlers.update_runner,
        "Runner paused.",
        access=_access,
        home=_home,
        paused="true",
    )
    act(
        pages,
        f"{_path}/runners/{{id}}/resume",
        runner_handlers.update_runner,
        "Runner resumed.",
        access=_access,
        home=_home,
        paused="false",
    )
    act(
        pages,
        f"{_path}/runners/{{id}}/remove",
        runner_handlers.delete_runner,
        "Runner removed.",
        access=_access,
        home=_home,
    )


#: Variables of one name differ in their environment scopes, which may have slashes.
_ONE = "variables/{key}/{scope:.+}"


@attrs.frozen(kw_only=True)
class OneVariable:
    key: str
    scope: str

    @property
    def api_params(self) -> dict[str, Any]:
        """The parameters that name the variable in the API."""
        return {"key": self.key, "filter": {"environment_scope": self.scope}}


@pages.post(f"{OF_PROJECT}/variables", access=MAINTAINER, form_page=show_ci_settings)
@pages.post(f"{OF_GROUP}/variables", access=OWNER, form_page=show_ci_settings)
async def create_variable(
    request: web.Request, visitor: Visitor, form: Form, resource: Project | Group
) -> web.Response:
    fields = _shared_params(form) | {"value": form.get("secret_value", ""), **_visibility(form)}
    await ask(request, variables.create_variable, resource, key=form.get("key", ""), **fields)
    return _back(request, visitor, resource, "Variable created.")


@pages.post(f"{OF_PROJECT}/{_ONE}/update", access=MAINTAINER, form_page=show_ci_settings)
@pages.post(f"{OF_GROUP}/{_ONE}/update", access=OWNER, form_page=show_ci_settings)
async def update_variable(
    request: web.Request, visitor: Visitor, params: OneVariable, form: Form, resource: Project | Group
) -> web.Response:
    """Change a variable. If the form has no value, the stored one stays, unless it was shown and has been emptied."""
    value = form.get("secret_value", "")
    fields = _shared_params(form) | {"masked": form.get("masked", "false")}
    if value or form.get("value_shown"):
        fields["value"] = value
    await ask(request, variables.update_variable, resource, **params.api_params, **fields)
    return _back(request, visitor, resource, "Variable updated.")


@pages.post(f"{OF_PROJECT}/{_ONE}/delete", access=MAINTAINER)
@pages.post(f"{OF_GROUP}/{_ONE}/delete", access=OWNER)
async def delete_variable(
    request: web.Request, visitor: Visitor, params: OneVariable, resource: Project | Group
) -> web.Response:
    await ask(request, variables.delete_variable, resource, **params.api_params)
    return _back(request, visitor, resource, "Variable deleted.")


def _shared_params(form: Form) -> dict[str, Any]:
    """Return the parameters that creating and changing a variable share. References in a raw value are not expanded."""
    return {
        "variable_type": form.get("variable_type"),
        "environment_scope": form.get("environment_scope") or "*",
        "protected": form.get("protected", "false"),
        "raw": "false" if form.get("expanded") == "true" else "true",
        "description": form.get("description", ""),
    }


def _visibility(form: Form) -> dict[str, bool]:
    visibility = form.get("visibility", "visible")
    return {"masked": visibility == "masked", "masked_and_hidden": visibility == "hidden"}


def _back(request: web.Request, visitor: Visitor, resource: Project | Group, text: str) -> web.Response:
    return page.see_other(request, visitor, f"{frame.home(resource)}/-/settings/ci_cd#variables", text)
