"""`/projects/:id/pipeline_schedules` and their variables (supporting resources)."""

import base64
import functools
from typing import Annotated, Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.ci.pipelines import repository
from api_server.ci.pipelines.access import check_may_give, may_change
from api_server.ci.schedules import queries, schedules
from api_server.ci.schedules.queries import Schedule, StoredVariable
from api_server.ci.schedules.schedules import ScheduleInput
from api_server.git.errors import AmbiguousNameError
from api_server.git.ref_names import BRANCHES, TAGS, short_name
from api_server.git.repositories import REPOSITORIES
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.preconditions import Precondition
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.auth import Actor
from api_server.web.errors import forbidden, invalid, not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import AtMost, Name
from api_server.web.routes import Role, Routes


async def find_schedule(services: Services, project: Project, schedule_id: int) -> Schedule:
    """Return the schedule, and let the request write only if it is unchanged. Raise 404 if it does not belong
    to the project."""
    schedule = await queries.find(services.database, project.id, schedule_id)
    if schedule is None:
        raise not_found("Pipeline Schedule")
    read = functools.partial(queries.hold, project_id=project.id, schedule_id=schedule_id)
    services.require_unchanged(Precondition((), schedule, read))
    return schedule


async def administered_schedule(
    services: Services, actor: Actor, project: Project, schedule_id: int
) -> Schedule:
    """Return the schedule for its owner or a Maintainer. Raise 403 and 404."""
    schedule = await find_schedule(services, project, schedule_id)
    if not administers(actor, project, schedule):
        raise forbidden()
    return schedule


async def owned_schedule(services: Services, actor: Actor, project: Project, schedule_id: int) -> Schedule:
    """Return the schedule for its owner or an administrator of the service. Raise 403 and 404.

    It runs with the owner's rights, so nobody else may change its effects.
    """
    schedule = await find_schedule(services, project, schedule_id)
    if not (project.admin or owns(actor, schedule)):
        raise forbidden()
    return schedule


def administers(actor: Actor, project: Project, schedule: Schedule) -> bool:
    """Return whether the caller may remove the schedule, and see its variables."""
    return project.role >= Role.MAINTAINER or (owns(actor, schedule) and project.role >= Role.DEVELOPER)


def full_ref(services: Services, project: Project, ref: str) -> str:
    """Return the full name of a branch or tag, which need not exist yet. Raise 400 if the name is that of a
    branch and of a tag."""
    try:
        resolved = repository.resolve_ref(services[REPOSITORIES], project.id, ref)
    except AmbiguousNameError:
        raise invalid({"ref": ["is ambiguous"]}) from None
    if resolved is not None:
        return (TAGS if resolved.kind == "tag" else BRANCHES) + resolved.name
    return ref if short_name(ref) is not None else BRANCHES + ref


async def may_run(services: Services, project: Project, ref: str) -> bool:
    """Return whether the caller may run pipelines on the branch or tag of that full name."""
    return await may_change(services, project, short_name(ref) or ref, tag=ref.startswith(TAGS))


async def check_may_save(services: Services, project: Project, ref: str, verb: str) -> None:
    """Raise 400 in GitLab's words if the caller may not run pipelines on the ref."""
    if not await may_run(services, project, ref):
        raise invalid({"base": [f"The current user is not authorized to {verb} the pipeline schedule"]})


async def check_may_play(services: Services, project: Project, ref: str) -> None:
    """Raise 403 if the caller may not run pipelines on the ref."""
    if not await may_run(services, project, ref):
        raise forbidden()


def owns(actor: Actor, schedule: Schedule) -> bool:
    """Return whether the schedule runs as the caller."""
    return schedule.owner_id == actor.user_id


routes = Routes()

PATH = "/projects/{id}/pipeline_schedules"
ONE = f"{PATH}/{{pipeline_schedule_id}}"
READ = project(feature="builds")
CHANGE = project(Role.DEVELOPER, feature="builds", changes=True)
Ref = Annotated[str, AtMost(1024)]


@attrs.frozen(kw_only=True)
class ListSchedules(Paginated):
    id: str
    scope: Literal["active", "inactive"] | None = None


@attrs.frozen(kw_only=True)
class OneSchedule:
    id: str
    pipeline_schedule_id: int


@attrs.frozen(kw_only=True)
class ListPipelines(Paginated):
    id: str
    pipeline_schedule_id: int


@attrs.frozen(kw_only=True)
class CreateSchedule:
    id: str
    description: Name = attrs.field(metadata={"present": True})
    ref: Ref = attrs.field(metadata={"present": True})
    cron: Name
    cron_timezone: Name = "UTC"
    active: bool = True
    inputs: list[ScheduleInput] = attrs.field(factory=list)


@attrs.frozen(kw_only=True)
class UpdateSchedule(OneSchedule):
    description: Name | None = attrs.field(default=None, metadata={"present": True})
    ref: Ref | None = attrs.field(default=None, metadata={"present": True})
    cron: Name | None = None
    cron_timezone: Name | None = None
    active: bool | None = None
    inputs: list[ScheduleInput] = attrs.field(factory=list)


@routes.get(PATH, access=READ, answers="200 [PipelineSchedule]")
async def list_schedules(
    request: web.Request, services: Services, params: ListSchedules, project: Project
) -> web.Response:
    page = requested_page(params, queries.LISTING)
    active = None if params.scope is None else params.scope == "active"
    rows = await queries.list_schedules(services.database, page, project.id, active=active)
    return await paginated(request, page, rows)


@routes.get(ONE, access=READ, answers="200 PipelineScheduleDetail")
async def show_schedule(
    services: Services, actor: Actor, params: OneSchedule, project: Project
) -> web.Response:
    """Show a schedule. Its variables and inputs are shown only to its owner and to Maintainers."""
    return await _answer(services, actor, project, params.pipeline_schedule_id)


@routes.get(f"{ONE}/pipelines", access=READ, answers="200 [PipelineBasic]")
async def list_pipelines(
    request: web.Request, services: Services, params: ListPipelines, project: Project
) -> web.Response:
    """List the pipelines that a schedule has started, oldest first."""
    page = requested_page(params, queries.OF_SCHEDULE, default_sort="asc")
    schedule = await find_schedule(services, project, params.pipeline_schedule_id)
    rows = await queries.list_pipelines(services.database, page, schedule.id)
    return await paginated(request, page, rows)


@routes.post(PATH, access=CHANGE, answers="201 PipelineScheduleDetail")
async def create_schedule(
    services: Services, actor: Actor, params: CreateSchedule, project: Project
) -> web.Response:
    """Create a schedule. Its pipelines run as the caller, with the rights that the caller has then."""
    ref = full_ref(services, project, params.ref)
    await check_may_save(services, project, ref, "create")
    fields = attrs.asdict(params, filter=lambda field, _: field.name not in ("id", "inputs"))
    values = fields | {"ref": ref, "project_id": project.id, "owner_id": actor.user_id}
    limit = services.settings.schedules_limit
    async with services.database.transaction() as transaction:
        schedule_id = await schedules.create(transaction, actor.author, limit, values)
        await schedules.change_inputs(transaction, services.vault, actor.author, schedule_id, params.inputs)
    return await _answer(services, actor, project, schedule_id, status=201)


@routes.put(ONE, access=CHANGE, answers="200 PipelineScheduleDetail")
async def update_schedule(
    services: Services, actor: Actor, params: UpdateSchedule, project: Project
) -> web.Response:
    """Update a schedule. Only its owner and administrators may do so."""
    before = await owned_schedule(services, actor, project, params.pipeline_schedule_id)
    ref = before.ref if params.ref is None else full_ref(services, project, params.ref)
    await check_may_save(services, project, ref, "update")
    names = ("description", "cron", "cron_timezone", "active")
    values = {"ref": ref} | {name: getattr(params, name) for name in names}
    async with services.database.transaction() as transaction:
        await schedules.update(transaction, actor.author, before, values)
        await schedules.change_inputs(transaction, services.vault, actor.author, before.id, params.inputs)
    return await _answer(services, actor, project, before.id)


@routes.delete(ONE, access=CHANGE, answers="204")
async def delete_schedule(
    services: Services, actor: Actor, params: OneSchedule, project: Project
) -> web.Response:
    """Delete a schedule. Its pipelines are kept."""
    schedule = await administered_schedule(services, actor, project, params.pipeline_schedule_id)
    async with services.database.transaction() as transaction:
        await schedules.delete(transaction, actor.author, schedule)
    return no_content()


@routes.post(
    f"{ONE}/take_ownership", access=CHANGE, answers="201 PipelineScheduleDetail, 200 PipelineScheduleDetail"
)
async def take_ownership(
    services: Services, actor: Actor, params: OneSchedule, project: Project
) -> web.Response:
    """Make the caller, a Maintainer, the owner of a schedule, as whom it runs; 200 if this is already the
    case."""
    before = await administered_schedule(services, actor, project, params.pipeline_schedule_id)
    if owns(actor, before):
        return await _answer(services, actor, project, before.id)
    owner = {"owner_id": actor.user_id}
    async with services.database.transaction() as transaction:
        await schedules.update(transaction, actor.author, before, owner)
    return await _answer(services, actor, project, before.id, status=201)


@routes.post(f"{ONE}/play", access=CHANGE, answers="201 Message")
async def play_schedule(
    services: Services, actor: Actor, params: OneSchedule, project: Project
) -> web.Response:
    """Run a schedule once as the caller, in the background, even if it is not active."""
    schedule = await find_schedule(services, project, params.pipeline_schedule_id)
    await check_may_play(services, project, schedule.ref)
    async with services.database.transaction() as transaction:
        await schedules.queue_now(transaction, schedule.id, actor.user_id)
    return json_value({"message": "201 Created"}, status=201)


async def _answer(
    services: Services, actor: Actor, project: Project, schedule_id: int, status: int = 200
) -> web.Response:
    schedule = await find_schedule(services, project, schedule_id)
    entity = orjson.loads(await queries.show(services.database, schedule.id))
    return json_text(
        orjson.dumps(_opened(services, actor, project, schedule, entity)).decode(), status=status
    )


def _opened(
    services: Services, actor: Actor, project: Project, schedule: Schedule, entity: dict[str, Any]
) -> dict[str, Any]:
    """Return the entity with its variables and inputs decrypted, or without them."""
    variables, inputs = entity.pop("variables"), entity.pop("inputs")
    if not administers(actor, project, schedule):
        return entity

    def opened(sealed: dict[str, Any]) -> str:
        return services.vault.decrypt(base64.b64decode(sealed["value"]))

    return entity | {
        "variables": [variable | {"value": opened(variable)} for variable in variables],
        "inputs": [input_ | {"value": orjson.loads(opened(input_))} for input_ in inputs],
    }


VariableType = Literal["env_var", "file"]


@attrs.frozen(kw_only=True)
class CreateVariable(OneSchedule):
    key: Name = attrs.field(metadata={"present": True})
    value: str = attrs.field(repr=False)
    variable_type: VariableType = "env_var"


@attrs.frozen(kw_only=True)
class OneVariable(OneSchedule):
    key: str


@attrs.frozen(kw_only=True)
class UpdateVariable(OneVariable):
    value: str | None = attrs.field(default=None, repr=False)
    variable_type: VariableType | None = None


@routes.post(f"{ONE}/variables", access=CHANGE, answers="201 PipelineVariable")
async def create_variable(
    services: Services, actor: Actor, params: CreateVariable, project: Project
) -> web.Response:
    """Add a variable to a schedule. Only the schedule's owner and administrators may do so."""
    schedule = await owned_schedule(services, actor, project, params.pipeline_schedule_id)
    check_may_give(project, [params.key])
    new = StoredVariable(params.key, services.vault.encrypt(params.value), params.variable_type)
    limit = services.settings.variables_limit
    async with services.database.transaction() as transaction:
        await schedules.add_variable(transaction, actor.author, limit, schedule, new)
    return _variable_answer(services, new, status=201)


@routes.put(f"{ONE}/variables/{{key}}", access=CHANGE, answers="200 PipelineVariable")
async def update_variable(
    services: Services, actor: Actor, params: UpdateVariable, project: Project
) -> web.Response:
    """Update a variable of a schedule. Only the schedule's owner and administrators may do so."""
    schedule = await owned_schedule(services, actor, project, params.pipeline_schedule_id)
    check_may_give(project, [params.key])
    async with services.database.transaction() as transaction:
        before = _existing_variable(await queries.lock_variable(transaction, schedule.id, params.key))
        value = before.value if params.value is None else services.vault.encrypt(params.value)
        after = StoredVariable(before.key, value, params.variable_type or before.variable_type)
        await queries.set_variable(transaction, schedule.id, after)
        await schedules.record_variable(transaction, actor.author, schedule)
    return _variable_answer(services, after)


@routes.delete(f"{ONE}/variables/{{key}}", access=CHANGE, answers="202 PipelineVariable")
async def delete_variable(
    services: Services, actor: Actor, params: OneVariable, project: Project
) -> web.Response:
    """Delete a variable of a schedule and answer it a last time."""
    schedule = await administered_schedule(services, actor, project, params.pipeline_schedule_id)
    async with services.database.transaction() as transaction:
        before = _existing_variable(await queries.lock_variable(transaction, schedule.id, params.key))
        await queries.delete_variable(transaction, schedule.id, before.key)
        await schedules.record_variable(transaction, actor.author, schedule)
    return _variable_answer(services, before, status=202)


def _existing_variable(variable: StoredVariable | None) -> StoredVariable:
    if variable is None:
        raise not_found("Pipeline Schedule Variable")
    return variable


def _variable_answer(services: Services, variable: StoredVariable, status: int = 200) -> web.Response:
    entity = {
        "variable_type": variable.variable_type,
        "key": variable.key,
        "value": services.vault.decrypt(variable.value),
        "raw": False,
    }
    return json_value(entity, status=status)
