"""`/projects/:id/pipeline_schedules` (supporting resource)."""

import base64
from typing import Annotated, Any, Literal

import attrs
import orjson
from aiohttp import web

from api_server.ci.schedules import changes, queries, runs
from api_server.ci.schedules.access import (
    administered_schedule,
    administers,
    check_may_play,
    check_may_save,
    find_schedule,
    full_ref,
    owned_schedule,
    owns,
)
from api_server.ci.schedules.queries import Schedule
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.authorship import author
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import AtMost, Name
from api_server.web.routes import Routes, caller
from api_server.web.unsupported import REFUSED

routes = Routes()

PATH = "/projects/{id}/pipeline_schedules"
ONE = f"{PATH}/{{pipeline_schedule_id}}"
READ = project(opens="builds")
CHANGE = project(Role.DEVELOPER, opens="builds", changes=True)
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


@attrs.frozen(kw_only=True)
class UpdateSchedule(OneSchedule):
    description: Name | None = attrs.field(default=None, metadata={"present": True})
    ref: Ref | None = attrs.field(default=None, metadata={"present": True})
    cron: Name | None = None
    cron_timezone: Name | None = None
    active: bool | None = None


@attrs.frozen(kw_only=True)
class OfSchedules:
    inputs: list[dict[str, str]] | None = attrs.field(default=None, metadata=REFUSED)


@routes.get(PATH, access=READ)
async def list_schedules(request: web.Request, wanted: ListSchedules, found: Project) -> web.Response:
    page = wanted_page(wanted, queries.LISTING)
    active = None if wanted.scope is None else wanted.scope == "active"
    listed = await queries.list_schedules(context.database(request), page, found.id, active=active)
    return await paginated(request, page, listed)


@routes.get(ONE, access=READ)
async def show_schedule(request: web.Request, wanted: OneSchedule, found: Project) -> web.Response:
    """Variables are shown to its owner and to Maintainers."""
    return await _answer(request, found, wanted.pipeline_schedule_id)


@routes.get(f"{ONE}/pipelines", access=READ)
async def list_pipelines(request: web.Request, wanted: ListPipelines, found: Project) -> web.Response:
    """What it has run, oldest first."""
    page = wanted_page(wanted, queries.OF_SCHEDULE, default_sort="asc")
    schedule = await find_schedule(request, found, wanted.pipeline_schedule_id)
    listed = await queries.list_pipelines(context.database(request), page, schedule.id)
    return await paginated(request, page, listed)


@routes.post(PATH, access=CHANGE, ignores=OfSchedules)
async def create_schedule(request: web.Request, wanted: CreateSchedule, found: Project) -> web.Response:
    """It runs as the caller, with the rights that she has then."""
    ref = full_ref(request, found, wanted.ref)
    await check_may_save(request, found, ref, "create")
    given = attrs.asdict(wanted, filter=lambda field, _: field.name != "id")
    values = given | {"ref": ref, "project_id": found.id, "owner_id": caller(request).user_id}
    most = context.settings(request).schedules_limit
    async with context.database(request).transaction() as transaction:
        made = await changes.create(transaction, author(request), most, values)
    return await _answer(request, found, made, status=201)


@routes.put(ONE, access=CHANGE, ignores=OfSchedules)
async def update_schedule(request: web.Request, wanted: UpdateSchedule, found: Project) -> web.Response:
    """By its owner."""
    before = await owned_schedule(request, found, wanted.pipeline_schedule_id)
    ref = before.ref if wanted.ref is None else full_ref(request, found, wanted.ref)
    await check_may_save(request, found, ref, "update")
    sent = ("description", "cron", "cron_timezone", "active")
    values = {"ref": ref} | {name: getattr(wanted, name) for name in sent}
    async with context.database(request).transaction() as transaction:
        await changes.update(transaction, author(request), before, values)
    return await _answer(request, found, before.id)


@routes.delete(ONE, access=CHANGE)
async def delete_schedule(request: web.Request, wanted: OneSchedule, found: Project) -> web.Response:
    """The pipelines that it has run stay."""
    schedule = await administered_schedule(request, found, wanted.pipeline_schedule_id)
    async with context.database(request).transaction() as transaction:
        await changes.delete(transaction, author(request), schedule)
    return no_content()


@routes.post(f"{ONE}/take_ownership", access=CHANGE)
async def take_ownership(request: web.Request, wanted: OneSchedule, found: Project) -> web.Response:
    """From now on it runs as the caller, a Maintainer; 200 where it does already."""
    before = await administered_schedule(request, found, wanted.pipeline_schedule_id)
    if owns(request, before):
        return await _answer(request, found, before.id)
    owner = {"owner_id": caller(request).user_id}
    async with context.database(request).transaction() as transaction:
        await changes.update(transaction, author(request), before, owner)
    return await _answer(request, found, before.id, status=201)


@routes.post(f"{ONE}/play", access=CHANGE)
async def play_schedule(request: web.Request, wanted: OneSchedule, found: Project) -> web.Response:
    """Runs it soon as the caller, active or not."""
    schedule = await find_schedule(request, found, wanted.pipeline_schedule_id)
    await check_may_play(request, found, schedule.ref)
    async with context.database(request).transaction() as transaction:
        await runs.queue_now(transaction, schedule.id, caller(request).user_id)
    return json_value({"message": "201 Created"}, status=201)


async def _answer(request: web.Request, found: Project, schedule_id: int, status: int = 200) -> web.Response:
    schedule = await find_schedule(request, found, schedule_id)
    entity = orjson.loads(await queries.show(context.database(request), schedule.id))
    return json_text(orjson.dumps(_opened(request, found, schedule, entity)).decode(), status=status)


def _opened(
    request: web.Request, found: Project, schedule: Schedule, entity: dict[str, Any]
) -> dict[str, Any]:
    """The entity with its variables as they were given, or without them."""
    sealed = entity.pop("variables")
    if not administers(request, found, schedule):
        return entity
    vault = context.vault(request)
    opened = [one | {"value": vault.decrypt(base64.b64decode(one["value"]))} for one in sealed]
    return entity | {"variables": opened}
