"""`POST /runners`, `/runners/verify`, `DELETE /runners`, ...: what runner programs call with tokens of their own."""

from typing import Any

import attrs
from aiohttp import web

from api_server.ci.runners import changes, queries
from api_server.ci.runners.access import machine, runner_of_token
from api_server.ci.runners.changes import AccessLevel, NewRunner
from api_server.namespaces.groups.access import find_group, group
from api_server.namespaces.projects.access import find_project, project
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author, Entity
from api_server.state.database import Row
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.access import ADMINISTRATOR, ANYONE, Role
from api_server.web.answers import json_value, no_content
from api_server.web.authorship import author
from api_server.web.errors import forbidden, not_found
from api_server.web.params import CommaList, parse
from api_server.web.request_data import merged
from api_server.web.routes import Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class RunnerToken:
    token: str | None = None
    system_id: str | None = None


@attrs.frozen(kw_only=True)
class DeleteManager:
    token: str
    system_id: str


@attrs.frozen(kw_only=True)
class RegisterRunner:
    token: str
    description: str | None = None
    name: str | None = None
    active: bool = True
    paused: bool | None = None
    locked: bool = False
    run_untagged: bool = True
    tag_list: CommaList[str] = attrs.field(factory=CommaList)
    access_level: AccessLevel = "not_protected"
    maximum_timeout: int | None = None
    maintenance_note: str | None = None


@attrs.frozen(kw_only=True)
class OwnerId:
    id: str


@routes.post("/runners", access=ANYONE)
async def register_runner(request: web.Request) -> web.Response:
    """A runner makes itself known with a registration token, and gets a token of its own."""
    wanted = await parse(request, RegisterRunner)
    registration = await queries.registration_of_token(context.database(request), digest(wanted.token))
    if registration is None:
        raise forbidden("invalid token supplied")
    async with context.database(request).transaction() as transaction:
        runner_id, token = await changes.create(
            transaction,
            NewRunner(
                namespace_id=registration.namespace_id,
                project_id=registration.project_id,
                description=wanted.description or "",
                name=wanted.name,
                active=wanted.active if wanted.paused is None else not wanted.paused,
                locked=wanted.locked,
                run_untagged=wanted.run_untagged,
                tag_list=tuple(wanted.tag_list),
                access_level=wanted.access_level,
                maximum_timeout=wanted.maximum_timeout,
                maintenance_note=wanted.maintenance_note,
            ),
            _itself(request),
        )
    return json_value(_identity(runner_id, token), status=201)


@routes.post("/runners/verify", access=ANYONE)
async def verify_runner(request: web.Request) -> web.Response:
    """Whether the token is good; notes the machine that asks."""
    wanted = await parse(request, RunnerToken)
    runner = await runner_of_token(request, wanted.token)
    await _note_contact(request, runner, wanted.system_id)
    return json_value(_identity(runner.id, wanted.token))


@routes.delete("/runners", access=ANYONE)
async def unregister_runner(request: web.Request) -> web.Response:
    wanted = await parse(request, RunnerToken)
    runner = await runner_of_token(request, wanted.token)
    async with context.database(request).transaction() as transaction:
        await changes.delete(transaction, runner, _itself(request))
    return no_content()


@routes.delete("/runners/managers", access=ANYONE)
async def delete_manager(request: web.Request) -> web.Response:
    """One machine of a runner is gone; the others go on."""
    wanted = await parse(request, DeleteManager)
    runner = await runner_of_token(request, wanted.token)
    async with context.database(request).transaction() as transaction:
        if not await queries.delete_manager(transaction, runner.id, wanted.system_id):
            raise not_found("Runner")
    return no_content()


@routes.post("/runners/reset_authentication_token", access=ANYONE)
async def reset_own_token(request: web.Request) -> web.Response:
    """A runner replaces its token; the old one opens nothing any more."""
    wanted = await parse(request, RunnerToken)
    runner = await runner_of_token(request, wanted.token)
    async with context.database(request).transaction() as transaction:
        token = await changes.reset_token(transaction, runner.id, _itself(request))
    return json_value({"token": token, "token_expires_at": None}, status=201)


@routes.post("/runners/reset_registration_token", access=ADMINISTRATOR)
async def reset_registration_token(request: web.Request) -> web.Response:
    """The token with which runners of the instance register; it is shown here only."""
    return await _registration_token(request, INSTANCE)


@routes.post("/groups/{id}/runners/reset_registration_token", access=group(Role.OWNER))
async def reset_group_registration_token(request: web.Request) -> web.Response:
    wanted = await parse(request, OwnerId)
    found = await find_group(request, wanted.id)
    return await _registration_token(request, found.entity, namespace_id=found.id)


@routes.post("/projects/{id}/runners/reset_registration_token", access=project(Role.MAINTAINER))
async def reset_project_registration_token(request: web.Request) -> web.Response:
    wanted = await parse(request, OwnerId)
    found = await find_project(request, wanted.id)
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


async def _note_contact(request: web.Request, runner: Row, system_id: str | None) -> None:
    info = (await merged(request)).get("info")
    told: dict[str, Any] = info if isinstance(info, dict) else {}
    await queries.note_contact(context.database(request), runner.id, **machine(request, system_id, told))


def _identity(runner_id: int, token: str | None) -> dict[str, Any]:
    return {"id": runner_id, "token": token, "token_expires_at": None}


def _itself(request: web.Request) -> Author:
    """Runners are no users: events name them as such."""
    return Author(id=-1, name="Runner", ip_address=request.remote)
