"""`/<project>/-/pipeline_schedules`: the list of scheduled pipelines, and forms that create and change them."""

from typing import Any

import attrs
from aiohttp import web

from api_server.ci.schedules import handlers as api
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.namespaces.resources import Project
from api_server.pages import page
from api_server.pages.account import user_of
from api_server.pages.ci.pipelines import inputs_of
from api_server.pages.routes import Pages, allows
from api_server.pages.sessions import Form, Visitor
from api_server.web.pagination import Paginated
from api_server.web.routes import Handler, Role, ask

pages = Pages()

_LIST = "/{project}/-/pipeline_schedules"
_ONE = f"{_LIST}/{{id}}"


@attrs.frozen(kw_only=True)
class ListSchedules(Paginated):
    pass


@attrs.frozen(kw_only=True)
class OneSchedule:
    id: int


@attrs.frozen(kw_only=True)
class OneVariable(OneSchedule):
    key: str = ""


@attrs.frozen(kw_only=True)
class OneInput(OneSchedule):
    name: str = ""
    value: str = ""


@pages.get(_LIST, access=api.READ)
async def list_schedules(
    request: web.Request, visitor: Visitor, params: ListSchedules, project: Project
) -> web.Response:
    schedules = await page.read_list(
        request, api.list_schedules, project, page=params.page, per_page=params.per_page
    )
    return page.answer(
        request,
        visitor,
        "ci/schedules.html",
        project=project,
        tab="pipelines",
        schedules=schedules,
        may_change=allows(api.CHANGE, project, visitor),
        maintains=project.role >= Role.MAINTAINER,
    )


@pages.get(f"{_LIST}/new", access=api.CHANGE)
async def show_new(request: web.Request, visitor: Visitor, project: Project) -> web.Response:
    return page.answer(request, visitor, "ci/new_schedule.html", project=project, tab="pipelines")


@pages.post(_LIST, access=api.CHANGE, form_page=show_new)
async def create(request: web.Request, visitor: Visitor, form: Form, project: Project) -> web.Response:
    schedule = await page.read(request, api.create_schedule, project, **form)
    return _to(request, visitor, project, f"Schedule {schedule['description']} created.")


@pages.get(f"{_ONE}/edit", access=api.CHANGE)
async def show_edit(
    request: web.Request, visitor: Visitor, params: OneSchedule, project: Project
) -> web.Response:
    schedule = await page.read(request, api.show_schedule, project, pipeline_schedule_id=params.id)
    owner = schedule["owner"] or {}
    ref = schedule["ref"].removeprefix(BRANCHES).removeprefix(TAGS)
    return page.answer(
        request,
        visitor,
        "ci/edit_schedule.html",
        project=project,
        tab="pipelines",
        schedule=schedule,
        may_edit=project.admin or owner.get("id") == user_of(visitor).id,
        ref=ref,
        **await inputs_of(request, visitor, project, schedule["ref"]),
    )


@pages.post(f"{_ONE}/edit", access=api.CHANGE, form_page=show_edit)
async def update(
    request: web.Request, visitor: Visitor, params: OneSchedule, form: Form, project: Project
) -> web.Response:
    text = "Changes saved."
    return await _do(request, visitor, project, params, api.update_schedule, text, **form)


@pages.post(f"{_ONE}/play", access=api.CHANGE)
async def play(request: web.Request, visitor: Visitor, params: OneSchedule, project: Project) -> web.Response:
    text = "A pipeline of the schedule starts shortly."
    return await _do(request, visitor, project, params, api.play_schedule, text)


@pages.post(f"{_ONE}/take_ownership", access=api.CHANGE)
async def take_ownership(
    request: web.Request, visitor: Visitor, params: OneSchedule, project: Project
) -> web.Response:
    text = "You are now the owner of the schedule."
    return await _do(request, visitor, project, params, api.take_ownership, text)


@pages.post(f"{_ONE}/delete", access=api.CHANGE)
async def delete(
    request: web.Request, visitor: Visitor, params: OneSchedule, project: Project
) -> web.Response:
    text = "Schedule deleted. Its pipelines are kept."
    return await _do(request, visitor, project, params, api.delete_schedule, text)


@pages.post(f"{_ONE}/variables", access=api.CHANGE, form_page=show_edit)
async def add_variable(
    request: web.Request, visitor: Visitor, params: OneSchedule, form: Form, project: Project
) -> web.Response:
    fields = {"key": form.get("key", ""), "value": form.get("secret_value", "")}
    await ask(request, api.create_variable, project, pipeline_schedule_id=params.id, **fields)
    return _to(request, visitor, project, "Variable added.", f"/{params.id}/edit")


@pages.post(f"{_ONE}/variables/delete", access=api.CHANGE)
async def delete_variable(
    request: web.Request, visitor: Visitor, params: OneVariable, project: Project
) -> web.Response:
    await ask(request, api.delete_variable, project, pipeline_schedule_id=params.id, key=params.key)
    return _to(request, visitor, project, f"Variable {params.key} removed.", f"/{params.id}/edit")


@pages.post(f"{_ONE}/inputs", access=api.CHANGE, form_page=show_edit)
async def set_input(
    request: web.Request, visitor: Visitor, params: OneInput, project: Project
) -> web.Response:
    inputs = [{"name": params.name, "value": params.value.replace("\r\n", "\n")}]
    text = f"Input {params.name} set."
    return await _change_inputs(request, visitor, project, params, inputs, text)


@pages.post(f"{_ONE}/inputs/delete", access=api.CHANGE)
async def delete_input(
    request: web.Request, visitor: Visitor, params: OneInput, project: Project
) -> web.Response:
    inputs = [{"name": params.name, "destroy": True}]
    text = f"Input {params.name} removed."
    return await _change_inputs(request, visitor, project, params, inputs, text)


async def _change_inputs(
    request: web.Request,
    visitor: Visitor,
    project: Project,
    params: OneInput,
    inputs: list[dict[str, Any]],
    text: str,
) -> web.Response:
    await ask(request, api.update_schedule, project, pipeline_schedule_id=params.id, inputs=inputs)
    return _to(request, visitor, project, text, f"/{params.id}/edit")


async def _do(
    request: web.Request,
    visitor: Visitor,
    project: Project,
    params: OneSchedule,
    handler: Handler,
    text: str,
    **fields: Any,
) -> web.Response:
    await ask(request, handler, project, **fields | {"pipeline_schedule_id": params.id})
    return _to(request, visitor, project, text)


def _to(request: web.Request, visitor: Visitor, project: Project, text: str, below: str = "") -> web.Response:
    path = f"/{project.full_path}/-/pipeline_schedules{below}"
    return page.see_other(request, visitor, path, text)
