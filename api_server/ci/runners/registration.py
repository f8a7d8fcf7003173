"""`POST /runners`, `/runners/verify`, `DELETE /runners`, ...: what runner programs call with tokens of their own, and
how people get the tokens with which they begin."""

from typing import Any

from aiohttp import web

from api_server.ci.runners import changes, manager_queries, registration_queries
from api_server.ci.runners.access import runner_alone
from api_server.ci.runners.contact import note_contact
from api_server.ci.runners.parameters import DeleteManager, RegisterRunner, RunnerToken
from api_server.namespaces.groups.access import group
from api_server.namespaces.groups.group import Group
from api_server.namespaces.projects.access import project
from api_server.namespaces.projects.project import Project
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author, Entity
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.answers import json_value, no_content
from api_server.web.errors import forbidden, not_found
from api_server.web.routes import ADMINISTRATOR, ANYONE, Role, Routes, author

routes = Routes()


@routes.post("/runners", access=ANYONE)
async def register_runner(request: web.Request, wanted: RegisterRunner) -> web.Response:
    """A runner makes itself known with a registration token, and gets a token of its own."""
    async with context.database(request).transaction() as transaction:
        registration = await registration_queries.hold_registration(transaction, digest(wanted.token))
        if registration is None:
            raise forbidden("invalid token supplied")
        new = wanted.new(namespace_id=registration.namespace_id, project_id=registration.project_id)
        runner_id, token = await changes.create(transaction, new, _itself(request))
    return json_value(_identity(runner_id, token), status=201)


@routes.post("/runners/verify", access=ANYONE)
async def verify_runner(request: web.Request, wanted: RunnerToken) -> web.Response:
    """Whether the token is good; notes the machine that asks."""
    runner = await runner_alone(request, wanted.token)
    await note_contact(request, runner, wanted.system_id)
    return json_value(_identity(runner.id, wanted.token))


@routes.delete("/runners", access=ANYONE)
async def unregister_runner(request: web.Request, wanted: RunnerToken) -> web.Response:
    runner = await runner_alone(request, wanted.token)
    async with context.database(request).transaction() as transaction:
        await changes.delete(transaction, runner, _itself(request))
    return no_content()


@routes.delete("/runners/managers", access=ANYONE)
async def delete_manager(request: web.Request, wanted: DeleteManager) -> web.Response:
    """One machine of a runner is gone; the others go on."""
    runner = await runner_alone(request, wanted.token)
    async with context.database(request).transaction() as transaction:
        if not await manager_queries.delete_manager(transaction, runner.id, wanted.system_id):
            raise not_found("Runner")
    return no_content()


@routes.post("/runners/reset_authentication_token", access=ANYONE)
async def reset_own_token(request: web.Request, wanted: RunnerToken) -> web.Response:
    """A runner replaces its token; the old one opens nothing any more."""
    runner = await runner_alone(request, wanted.token)
    async with context.database(request).transaction() as transaction:
        token = await changes.reset_token(transaction, runner.id, _itself(request))
    return json_value({"token": token, "token_expires_at": None}, status=201)


@routes.post("/runners/reset_registration_token", access=ADMINISTRATOR)
async def reset_registration_token(request: web.Request) -> web.Response:
    """The token with which runners of the instance register; it is shown here only."""
    return await _registration_token(request, INSTANCE)


@routes.post("/groups/{id}/runners/reset_registration_token", access=group(Role.OWNER))
async def reset_group_registration_token(request: web.Request, found: Group) -> web.Response:
    return await _registration_token(request, found.entity, namespace_id=found.id)


@routes.post("/projects/{id}/runners/reset_registration_token", access=project(Role.MAINTAINER))
async def reset_project_registration_token(request: web.Request, found: Project) -> web.Response:
    return await _registration_token(request, found.entity, project_id=found.id)


async def _registration_token(request: web.Request, entity: Entity, **owner: int) -> web.Response:
    async with context.database(request).transaction() as transaction:
        token = await changes.reset_registration_token(transaction, **owner)
        await audit_trail.record(
            transaction,
            "runner_registration_token_reset",
            author=author(request),
            entity=entity,
            target_id=None,
            target_details=entity.path,
            message="Replaced the registration token of runners",
        )
    return json_value({"token": token, "token_expires_at": None}, status=201)


def _identity(runner_id: int, token: str | None) -> dict[str, Any]:
    return {"id": runner_id, "token": token, "token_expires_at": None}


def _itself(request: web.Request) -> Author:
    """Runners are no users: events name them as such."""
    return Author(id=-1, name="Runner", ip_address=request.remote)
