"""Starting a pipeline with a token, of a trigger or of a running job: the user and the variables that it
determines."""

import functools
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.ci.config.variables import Variable
from api_server.ci.pipelines.access import PAYLOAD, REFUSAL
from api_server.ci.pipelines.creation import PipelineForbidden, check_open
from api_server.ci.pipelines.creation_queries import PipelineSource
from api_server.ci.triggers import queries
from api_server.ci.triggers.queries import Trigger
from api_server.namespaces import access
from api_server.namespaces.access import visible_project
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.state.preconditions import Precondition
from api_server.state.secrets import JOB_TOKEN, digest
from api_server.web import context
from api_server.web.auth import caller_of_job_token, rely_on_caller
from api_server.web.errors import ApiError
from api_server.web.request_data import merged

#: Credentials are left out of the payload.
_HIDDEN = frozenset({"token", "private_token", "job_token"})


@attrs.frozen(kw_only=True)
class FireTrigger:
    id: str
    ref: str = attrs.field(metadata={"present": True})
    token: str = attrs.field(repr=False, metadata={"present": True})
    variables: dict[str, str] = attrs.field(factory=dict, repr=False)
    inputs: dict[str, Any] = attrs.field(factory=dict, repr=False)


@attrs.frozen(kw_only=True)
class TriggerUse:
    """The use of a token for a pipeline of the project, on behalf of the owner of `trigger` or of the user of
    a job in a hierarchy."""

    project: Project
    source: PipelineSource
    user_id: int
    trigger: Trigger | None = None
    hierarchy_id: int | None = None


async def fired_by(request: web.Request, params: FireTrigger) -> TriggerUse:
    """Return the project and the user for which the token starts a pipeline.

    Raise 404 if the token is unknown or its user cannot see the project, 401 for the token of a job that is
    not running, and `PipelineForbidden` if the user may not run pipelines.
    """
    fired = await (_by_job if params.token.startswith(JOB_TOKEN) else _by_trigger)(request, params)
    check_open(fired.project)
    return fired


async def given_variables(
    request: web.Request, project: Project, values: dict[str, str]
) -> tuple[Variable, ...]:
    """Return the given variables, and the whole request as a file. Raise 400 if the user may not give any."""
    if values and not project.takes_variables:
        raise PipelineForbidden(REFUSAL)
    return (*(Variable(key, value) for key, value in values.items()), await _payload(request))


async def _payload(request: web.Request) -> Variable:
    params: dict[str, Any] = await merged(request)
    visible = {name: value for name, value in params.items() if name not in _HIDDEN}
    return Variable(PAYLOAD, orjson.dumps(visible).decode(), file=True)


async def note_use(services: Services, fired: TriggerUse) -> None:
    """Record that the trigger has been used."""
    if fired.trigger is not None:
        async with services.database.transaction() as transaction:
            await queries.note_use(transaction, fired.trigger.id)


async def _by_trigger(request: web.Request, params: FireTrigger) -> TriggerUse:
    services = context.services(request)
    key = digest(params.token)
    trigger = await queries.find_by_token(services.database, key)
    if trigger is None or not trigger.active:
        raise _not_found()
    names = (f"trigger:{trigger.id}", f"user:{trigger.owner_id}")
    services.require_unchanged(
        Precondition(names, trigger, functools.partial(queries.find_by_token, token_digest=key))
    )
    project = await _project(request, params.id, trigger.owner_id, admin=trigger.admin)
    if project.id != trigger.project_id:
        raise _not_found()
    return TriggerUse(project=project, source="trigger", user_id=trigger.owner_id, trigger=trigger)


async def _by_job(request: web.Request, params: FireTrigger) -> TriggerUse:
    """Return the use of a job's token. A pipeline that a job starts belongs to the hierarchy of its own
    pipeline and counts towards that one's limit."""
    services = context.services(request)
    actor = await caller_of_job_token(request, services, params.token)
    rely_on_caller(services, actor)
    project = await _project(request, params.id, actor.user_id, job_project_id=actor.job_project_id)
    hierarchy_id = await queries.hierarchy_of_job(services.database, actor.job_id or 0)
    return TriggerUse(project=project, source="pipeline", user_id=actor.user_id, hierarchy_id=hierarchy_id)


async def _project(
    request: web.Request,
    reference: str,
    user_id: int,
    *,
    admin: bool = False,
    job_project_id: int | None = None,
) -> Project:
    number = access.id_in(reference)
    project = await visible_project(
        context.services(request),
        reference if number is None else number,
        user_id=user_id,
        admin=admin,
        job_project_id=job_project_id,
    )
    if project is None:
        raise _not_found()
    if project.moved:
        access.redirect(request, project.id)
    return project


def _not_found() -> ApiError:
    return ApiError(404, {"message": "404 Not Found"})
