"""`/projects/:id/pipeline_schedules/:id/variables` (supporting resource)."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.ci.pipelines.access import check_may_give
from api_server.ci.schedules import changes, queries
from api_server.ci.schedules.access import administered_schedule, owned_schedule
from api_server.ci.schedules.handlers import CHANGE, ONE, OneSchedule
from api_server.ci.schedules.queries import StoredVariable
from api_server.namespaces.resources import Project
from api_server.web import context
from api_server.web.answers import json_value
from api_server.web.authorship import author
from api_server.web.errors import not_found
from api_server.web.params import Name
from api_server.web.routes import Routes

routes = Routes()

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


@routes.post(f"{ONE}/variables", access=CHANGE)
async def create_variable(request: web.Request, wanted: CreateVariable, found: Project) -> web.Response:
    """By the schedule's owner."""
    schedule = await owned_schedule(request, found, wanted.pipeline_schedule_id)
    check_may_give(found, [wanted.key])
    new = StoredVariable(wanted.key, context.vault(request).encrypt(wanted.value), wanted.variable_type)
    most = context.settings(request).variables_limit
    async with context.database(request).transaction() as transaction:
        await changes.add_variable(transaction, author(request), most, schedule, new)
    return _answer(request, new, status=201)


@routes.put(f"{ONE}/variables/{{key}}", access=CHANGE)
async def update_variable(request: web.Request, wanted: UpdateVariable, found: Project) -> web.Response:
    """By the schedule's owner."""
    schedule = await owned_schedule(request, found, wanted.pipeline_schedule_id)
    check_may_give(found, [wanted.key])
    async with context.database(request).transaction() as transaction:
        before = _existing(await queries.lock_variable(transaction, schedule.id, wanted.key))
        value = before.value if wanted.value is None else context.vault(request).encrypt(wanted.value)
        after = StoredVariable(before.key, value, wanted.variable_type or before.variable_type)
        await queries.set_variable(transaction, schedule.id, after)
        await changes.record_variable(transaction, author(request), schedule)
    return _answer(request, after)


@routes.delete(f"{ONE}/variables/{{key}}", access=CHANGE)
async def delete_variable(request: web.Request, wanted: OneVariable, found: Project) -> web.Response:
    """Shows it once more."""
    schedule = await administered_schedule(request, found, wanted.pipeline_schedule_id)
    async with context.database(request).transaction() as transaction:
        before = _existing(await queries.lock_variable(transaction, schedule.id, wanted.key))
        await queries.delete_variable(transaction, schedule.id, before.key)
        await changes.record_variable(transaction, author(request), schedule)
    return _answer(request, before, status=202)


def _existing(found: StoredVariable | None) -> StoredVariable:
    if found is None:
        raise not_found("Pipeline Schedule Variable")
    return found


def _answer(request: web.Request, variable: StoredVariable, status: int = 200) -> web.Response:
    shown = {
        "variable_type": variable.variable_type,
        "key": variable.key,
        "value": context.vault(request).decrypt(variable.value),
        "raw": False,
    }
    return json_value(shown, status=status)
