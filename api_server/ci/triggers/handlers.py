"""`/projects/:id/triggers` and `/projects/:id/trigger/pipeline` (supporting resources)."""

import base64
import os
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.ci.pipelines import queries as pipelines
from api_server.ci.pipelines.access import may_change
from api_server.ci.pipelines.creation import PipelineRequest, not_allowed_on, pipeline_maker
from api_server.ci.triggers import firing, queries
from api_server.ci.triggers.firing import FireTrigger
from api_server.ci.triggers.queries import Trigger
from api_server.namespaces.access import project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.database import Executor, Transaction
from api_server.state.secrets import TRIGGER_TOKEN, digest
from api_server.web.answers import json_text, no_content
from api_server.web.auth import Actor
from api_server.web.errors import forbidden, invalid
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import Name
from api_server.web.routes import ANYONE, Role, Routes

routes = Routes()

MAINTAINER = project(Role.MAINTAINER, feature="builds")
CHANGE = project(Role.MAINTAINER, feature="builds", changes=True)
#: Characters of a token that Maintainers who do not own it can see.
SHOWN_CHARACTERS = 4
_SEED_BYTES = 32


@attrs.frozen(kw_only=True)
class ListTriggers(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class OneTrigger:
    id: str
    trigger_id: int


@attrs.frozen(kw_only=True)
class CreateTrigger:
    id: str
    description: Name


@attrs.frozen(kw_only=True)
class UpdateTrigger(OneTrigger):
    description: Name | None = None


@routes.get("/projects/{id}/triggers", access=MAINTAINER, answers="200 [Trigger]")
async def list_triggers(
    request: web.Request, services: Services, actor: Actor, params: ListTriggers, project: Project
) -> web.Response:
    """List the triggers. Only owners see whole tokens."""
    page = requested_page(params, queries.LISTING)
    rows = await queries.list_triggers(services.database, page, project.id)
    entities = [_opened(services, actor, entity) for entity in orjson.loads(rows.body)]
    return await paginated(request, page, attrs.evolve(rows, body=orjson.dumps(entities).decode()))


@routes.get("/projects/{id}/triggers/{trigger_id}", access=MAINTAINER, answers="200 Trigger")
async def show_trigger(
    services: Services, actor: Actor, params: OneTrigger, project: Project
) -> web.Response:
    trigger = await queries.find(services.database, project.id, params.trigger_id)
    return await _answer(services, actor, services.database, trigger.id)


@routes.post("/projects/{id}/triggers", access=CHANGE, answers="201 Trigger")
async def create_trigger(
    services: Services, actor: Actor, params: CreateTrigger, project: Project
) -> web.Response:
    """Create a trigger. Whoever has its token can run pipelines of the project with the caller's current
    rights."""
    seed = os.urandom(_SEED_BYTES)
    token = services.vault.derived_token(TRIGGER_TOKEN, seed)
    async with services.database.transaction() as transaction:
        trigger_id = await queries.create(
            transaction,
            project_id=project.id,
            owner_id=actor.user_id,
            description=params.description,
            seed=seed,
            digest=digest(token),
        )
        await _refuse_too_many(services, transaction, project)
        target = project.entity.target(trigger_id, params.description)
        await audit_trail.record(transaction, "pipeline_trigger_created", actor.author, target)
        return await _answer(services, actor, transaction, trigger_id, status=201)


@routes.put("/projects/{id}/triggers/{trigger_id}", access=CHANGE, answers="200 Trigger")
async def update_trigger(
    services: Services, actor: Actor, params: UpdateTrigger, project: Project
) -> web.Response:
    """Update a trigger. Only its owner and administrators may do so."""
    trigger = await queries.find(services.database, project.id, params.trigger_id)
    if not (project.admin or trigger.owner_id == actor.user_id):
        raise forbidden()
    async with services.database.transaction() as transaction:
        if params.description not in (None, trigger.description):
            await _change(actor, transaction, project, trigger, params.description or "")
        return await _answer(services, actor, transaction, trigger.id)


@routes.delete(
    "/projects/{id}/triggers/{trigger_id}", access=CHANGE, revokes="trigger:{trigger_id}", answers="204"
)
async def delete_trigger(
    services: Services, actor: Actor, params: OneTrigger, project: Project
) -> web.Response:
    """Delete a trigger. Its token becomes invalid."""
    trigger = await queries.find(services.database, project.id, params.trigger_id)
    async with services.database.transaction() as transaction:
        await queries.delete(transaction, trigger.id)
        target = project.entity.target(trigger.id, trigger.description)
        await audit_trail.record(transaction, "pipeline_trigger_destroyed", actor.author, target)
    return no_content()


@routes.post("/projects/{id}/trigger/pipeline", access=ANYONE, answers="201 Pipeline")
@routes.post("/projects/{id}/ref/{ref:.+}/trigger/pipeline", access=ANYONE, answers="201 Pipeline")
async def fire_trigger(request: web.Request, services: Services, params: FireTrigger) -> web.Response:
    """Start a pipeline with the token of a trigger or of a running job."""
    fired = await firing.fired_by(request, params)
    variables = await firing.given_variables(request, fired.project, params.variables)
    making = pipeline_maker(services)
    on = making.resolve(fired.project.id, params.ref)
    if not await may_change(services, fired.project, on.name, tag=on.kind == "tag"):
        raise not_allowed_on(on.name)
    new = PipelineRequest(
        project_id=fired.project.id,
        ref=on.name,
        tag=on.kind == "tag",
        sha=on.commit,
        source=fired.source,
        user_id=fired.user_id,
        hierarchy_id=fired.hierarchy_id,
        variables=variables,
        inputs=params.inputs,
    )
    pipeline_id = await making.make(new)
    await firing.note_use(services, fired)
    entity = await pipelines.show_pipeline(services.database, fired.project.id, pipeline_id)
    return json_text(entity, status=201)


async def _refuse_too_many(services: Services, transaction: Transaction, project: Project) -> None:
    limit = services.settings.triggers_limit
    if await queries.QUOTA.is_exceeded(transaction, project.id, limit):
        raise invalid({"base": [f"Maximum number of pipeline triggers ({limit}) exceeded"]})


async def _change(
    actor: Actor, transaction: Transaction, project: Project, before: Trigger, description: str
) -> None:
    await queries.update(transaction, before.id, description)
    target = project.entity.target(before.id, description)
    change = {"change": "description", "from": before.description, "to": description}
    await audit_trail.record(transaction, "pipeline_trigger_updated", actor.author, target, **change)


async def _answer(
    services: Services, actor: Actor, database: Executor, trigger_id: int, status: int = 200
) -> web.Response:
    entity = _opened(services, actor, orjson.loads(await queries.show(database, trigger_id)))
    return json_text(orjson.dumps(entity).decode(), status=status)


def _opened(services: Services, actor: Actor, entity: dict[str, Any]) -> dict[str, Any]:
    """Return the entity with its token, shortened unless the caller owns it."""
    token = services.vault.derived_token(TRIGGER_TOKEN, base64.b64decode(entity["token"]))
    if entity["owner"]["id"] == actor.user_id:
        return entity | {"token": token}
    return entity | {"token": token.removeprefix(TRIGGER_TOKEN)[:SHOWN_CHARACTERS]}
