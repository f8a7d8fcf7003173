"""`/runners`, `/projects/:id/runners`, `/groups/:id/runners`, `POST /user/runners`: people manage runners and
get tokens for them; runner programs register and remove themselves with their own tokens."""

from typing import Annotated, Any, Literal

import attrs
from aiohttp import web

from api_server.ci.jobs import queries as jobs
from api_server.ci.pipelines import states
from api_server.ci.runners import changes, queries
from api_server.ci.runners.access import find_own_runner, find_runner, note_contact, runner_alone
from api_server.ci.runners.changes import AccessLevel, NewRunner, RunnerType
from api_server.namespaces.access import find_group, find_project, group, project
from api_server.namespaces.resources import Group, Project
from api_server.services import Services
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author, Entity
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.auth import CREATE_RUNNER_SCOPES, MANAGE_RUNNER_SCOPES, READ_RUNNER_SCOPES, Actor
from api_server.web.errors import forbidden, not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import UNSET, AtMost, CommaList, Name, Unset
from api_server.web.routes import ADMINISTRATOR, ANYONE, SIGNED_IN, Role, Routes, caller

#: The largest value of PostgreSQL's `integer`.
_MAX_INTEGER = 2**31 - 1
_IN_INTEGER = {"least": -_MAX_INTEGER, "greatest": _MAX_INTEGER}
#: The limit in GitLab's documentation.
MaintenanceNote = Annotated[str, AtMost(1024)]
RunnerStatus = Literal["online", "offline", "stale", "never_contacted", "active", "paused"]


def _fits(_: object, attribute: "attrs.Attribute[Any]", value: object) -> None:
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        raise ValueError(f"{attribute.name} is invalid")


@attrs.frozen(kw_only=True)
class ListRunners(Paginated):
    type: RunnerType | None = None
    status: RunnerStatus | None = None
    scope: Literal["active", "paused", "online", "offline", "specific", "shared"] | None = None
    paused: bool | None = None
    tag_list: CommaList[Name] | None = None


@attrs.frozen(kw_only=True)
class ListRunnersOf(ListRunners):
    id: str


@attrs.frozen(kw_only=True)
class OneRunner:
    id: int


@attrs.frozen(kw_only=True)
class ListManagers(Paginated):
    id: int


@attrs.frozen(kw_only=True)
class ListRunnerJobs(Paginated):
    id: int
    status: states.Status | None = None
    system_id: Name | None = None


@attrs.frozen(kw_only=True)
class UpdateRunner:
    id: int
    description: Name | None = None
    active: bool | None = None
    paused: bool | None = None
    locked: bool | None = None
    run_untagged: bool | None = None
    tag_list: CommaList[Name] | None = None
    access_level: AccessLevel | None = None
    maximum_timeout: int | Unset | None = attrs.field(default=UNSET, validator=_fits, metadata=_IN_INTEGER)
    maintenance_note: MaintenanceNote | None = None


@attrs.frozen(kw_only=True)
class AssignRunner:
    id: str
    runner_id: int


@attrs.frozen(kw_only=True)
class RunnerSettings:
    """The settings of a new runner, however it is created."""

    description: Name | None = None
    maintenance_note: MaintenanceNote | None = None
    paused: bool | None = None
    locked: bool = False
    run_untagged: bool = True
    tag_list: CommaList[Name] = attrs.field(factory=CommaList)
    access_level: AccessLevel = "not_protected"
    maximum_timeout: int | None = attrs.field(default=None, validator=_fits, metadata=_IN_INTEGER)

    def new(self, *, namespace_id: int | None, project_id: int | None) -> NewRunner:
        """Return the runner to create, for that group or project, or for the instance."""
        return NewRunner(
            namespace_id=namespace_id,
            project_id=project_id,
            description=self.description or "",
            maintenance_note=self.maintenance_note,
            active=not self.paused,
            locked=self.locked,
            run_untagged=self.run_untagged,
            tag_list=tuple(self.tag_list),
            access_level=self.access_level,
            maximum_timeout=self.maximum_timeout,
        )


@attrs.frozen(kw_only=True)
class RegisterRunner(RunnerSettings):
    token: str
    name: Name | None = None
    active: bool = True

    def new(self, *, namespace_id: int | None, project_id: int | None) -> NewRunner:
        """Return the runner to create. Older runners send `active` instead of `paused`."""
        made = super().new(namespace_id=namespace_id, project_id=project_id)
        return attrs.evolve(made, name=self.name, active=self.active if self.paused is None else made.active)


@attrs.frozen(kw_only=True)
class CreateRunner(RunnerSettings):
    runner_type: RunnerType
    group_id: int | None = None
    project_id: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.runner_type == "group_type" and self.group_id is None:
            raise ValueError("group_id is missing")
        if self.runner_type == "project_type" and self.project_id is None:
            raise ValueError("project_id is missing")


@attrs.frozen(kw_only=True)
class RunnerToken:
    token: str | None = None
    system_id: Name | None = None


@attrs.frozen(kw_only=True)
class DeleteManager:
    token: str
    system_id: Name


routes = Routes()


@routes.post("/runners", access=ANYONE, answers="201 RunnerToken")
async def register_runner(request: web.Request, services: Services, params: RegisterRunner) -> web.Response:
    """Register a runner with a registration token; the answer contains the runner's own token."""
    async with services.database.transaction() as transaction:
        registration = await queries.hold_registration(transaction, digest(params.token))
        if registration is None:
            raise forbidden("invalid token supplied")
        new = params.new(namespace_id=registration.namespace_id, project_id=registration.project_id)
        runner_id, token = await changes.create(transaction, new, _itself(request))
    return json_value(_identity(runner_id, token), status=201)


@routes.post("/runners/verify", access=ANYONE, answers="200 RunnerToken")
async def verify_runner(request: web.Request, params: RunnerToken) -> web.Response:
    """Check the token of a runner, and record the runner's machine."""
    runner = await runner_alone(request, params.token)
    await note_contact(request, runner, params.system_id)
    return json_value(_identity(runner.id, params.token))


@routes.delete("/runners", access=ANYONE, answers="204")
async def unregister_runner(request: web.Request, services: Services, params: RunnerToken) -> web.Response:
    runner = await runner_alone(request, params.token)
    async with services.database.transaction() as transaction:
        await changes.delete(transaction, runner, _itself(request))
    return no_content()


@routes.delete("/runners/managers", access=ANYONE, answers="204")
async def delete_manager(request: web.Request, services: Services, params: DeleteManager) -> web.Response:
    """Remove one machine of a runner; the others continue."""
    runner = await runner_alone(request, params.token)
    async with services.database.transaction() as transaction:
        if not await queries.delete_manager(transaction, runner.id, params.system_id):
            raise not_found("Runner")
    return no_content()


@routes.post("/runners/reset_authentication_token", access=ANYONE, answers="201 NewToken")
async def reset_own_token(request: web.Request, services: Services, params: RunnerToken) -> web.Response:
    """Replace the token of the calling runner; the old one becomes invalid."""
    runner = await runner_alone(request, params.token)
    async with services.database.transaction() as transaction:
        token = await changes.reset_token(transaction, runner.id, _itself(request))
    return json_value({"token": token, "token_expires_at": None}, status=201)


@routes.post("/runners/reset_registration_token", access=ADMINISTRATOR, answers="201 NewToken")
async def reset_registration_token(services: Services, actor: Actor) -> web.Response:
    """Replace the token with which runners of the instance register; only this answer contains it."""
    return await _registration_token(services, actor, INSTANCE)


@routes.post(
    "/groups/{id}/runners/reset_registration_token", access=group(Role.OWNER), answers="201 NewToken"
)
async def reset_group_registration_token(services: Services, actor: Actor, group: Group) -> web.Response:
    return await _registration_token(services, actor, group.entity, namespace_id=group.id)


@routes.post(
    "/projects/{id}/runners/reset_registration_token", access=project(Role.MAINTAINER), answers="201 NewToken"
)
async def reset_project_registration_token(
    services: Services, actor: Actor, project: Project
) -> web.Response:
    return await _registration_token(services, actor, project.entity, project_id=project.id)


async def _registration_token(services: Services, actor: Actor, entity: Entity, **owner: int) -> web.Response:
    async with services.database.transaction() as transaction:
        token = await changes.reset_registration_token(transaction, **owner)
        target = entity.target(None, entity.path)
        await audit_trail.record(transaction, "runner_registration_token_reset", actor.author, target)
    return json_value({"token": token, "token_expires_at": None}, status=201)


def _identity(runner_id: int, token: str | None) -> dict[str, Any]:
    return {"id": runner_id, "token": token, "token_expires_at": None}


def _itself(request: web.Request) -> Author:
    """Return the author of audit events caused by a runner, which is not a user."""
    return Author(id=-1, name="Runner", ip_address=request.remote)


@routes.get("/runners", access=SIGNED_IN, answers="200 [Runner]")
async def list_runners(request: web.Request, actor: Actor, params: ListRunners) -> web.Response:
    """List the runners that the caller may manage."""
    return await _list(request, params, "owner_id", actor.user_id)


@routes.get("/runners/all", access=ADMINISTRATOR, answers="200 [Runner]")
async def list_all_runners(request: web.Request, params: ListRunners) -> web.Response:
    return await _list(request, params)


@routes.get("/projects/{id}/runners", access=project(Role.MAINTAINER), answers="200 [Runner]")
async def list_project_runners(request: web.Request, params: ListRunnersOf, project: Project) -> web.Response:
    """List all runners that may run the project's jobs: its own, those of its groups, and the instance's."""
    return await _list(request, params, "project_id", project.id)


@routes.get("/groups/{id}/runners", access=group(Role.MAINTAINER), answers="200 [Runner]")
async def list_group_runners(request: web.Request, params: ListRunnersOf, group: Group) -> web.Response:
    return await _list(request, params, "namespace_id", group.id)


async def _list(
    request: web.Request, params: ListRunners, whose: queries.Whose | None = None, whose_id: int | None = None
) -> web.Response:
    page = requested_page(params, queries.LISTING)
    status = params.status or params.scope
    types = {"shared": "instance_type", "specific": "project_type"}
    paused = (
        params.paused if params.paused is not None else {"paused": True, "active": False}.get(status or "")
    )
    rows = await queries.list_runners(
        context.services(request).database,
        page,
        whose,
        whose_id,
        runner_type=params.type or types.get(status or ""),
        active=None if paused is None else not paused,
        status=status if status in ("online", "offline", "stale", "never_contacted") else None,
        tags=params.tag_list,
    )
    return await paginated(request, page, rows)


@routes.get("/runners/{id}", access=SIGNED_IN, scopes=READ_RUNNER_SCOPES, answers="200 RunnerDetail")
async def show_runner(services: Services, actor: Actor, params: OneRunner) -> web.Response:
    runner = await find_runner(services, actor, params.id)
    return json_text(await queries.show_runner(services.database, runner.id))


@routes.get(
    "/runners/{id}/managers", access=SIGNED_IN, scopes=READ_RUNNER_SCOPES, answers="200 [RunnerManager]"
)
async def list_managers(
    request: web.Request, services: Services, actor: Actor, params: ListManagers
) -> web.Response:
    """List the machines that use the runner's token."""
    runner = await find_runner(services, actor, params.id)
    page = requested_page(params, queries.MANAGER_LISTING)
    rows = await queries.list_managers(services.database, page, runner.id)
    return await paginated(request, page, rows)


@routes.get("/runners/{id}/jobs", access=SIGNED_IN, scopes=READ_RUNNER_SCOPES, answers="200 [RunnerJob]")
async def list_runner_jobs(
    request: web.Request, services: Services, actor: Actor, params: ListRunnerJobs
) -> web.Response:
    """List the jobs of a runner, for callers who may manage it."""
    runner = await find_own_runner(services, actor, params.id)
    page = requested_page(params, jobs.JOBS_OF_RUNNER)
    rows = await jobs.list_runner_jobs(
        services.database,
        page,
        runner.id,
        viewer_id=actor.user_id,
        sees_all=actor.admin,
        status=params.status,
        system_id=params.system_id,
    )
    return await paginated(request, page, rows)


@routes.put(
    "/runners/{id}",
    access=SIGNED_IN,
    scopes=MANAGE_RUNNER_SCOPES,
    revokes="runner:{id}",
    answers="200 RunnerDetail",
)
async def update_runner(services: Services, actor: Actor, params: UpdateRunner) -> web.Response:
    """Update a runner. A paused runner gets no jobs, but finishes those that it has."""
    runner = await find_own_runner(services, actor, params.id)
    sets_timeout = params.maximum_timeout is not UNSET
    async with services.database.transaction() as transaction:
        await changes.update(
            transaction,
            runner.id,
            actor.author,
            description=params.description,
            active=params.active if params.paused is None else not params.paused,
            locked=params.locked,
            run_untagged=params.run_untagged,
            tag_list=params.tag_list,
            access_level=params.access_level,
            sets_timeout=sets_timeout,
            maximum_timeout=params.maximum_timeout if sets_timeout else None,
            maintenance_note=params.maintenance_note,
        )
        entity = await queries.show_runner(transaction, runner.id)
    return json_text(entity)


@routes.delete(
    "/runners/{id}", access=SIGNED_IN, scopes=MANAGE_RUNNER_SCOPES, revokes="runner:{id}", answers="204"
)
async def delete_runner(services: Services, actor: Actor, params: OneRunner) -> web.Response:
    runner = await find_own_runner(services, actor, params.id)
    async with services.database.transaction() as transaction:
        await changes.delete(transaction, runner, actor.author)
    return no_content()


@routes.post(
    "/runners/{id}/reset_authentication_token",
    access=SIGNED_IN,
    scopes=MANAGE_RUNNER_SCOPES,
    revokes="runner:{id}",
    answers="201 NewToken",
)
async def reset_token(services: Services, actor: Actor, params: OneRunner) -> web.Response:
    """Replace the token of a runner; the old one becomes invalid."""
    runner = await find_own_runner(services, actor, params.id)
    async with services.database.transaction() as transaction:
        token = await changes.reset_token(transaction, runner.id, actor.author)
    return json_value({"token": token, "token_expires_at": None}, status=201)


@routes.post("/projects/{id}/runners", access=project(Role.MAINTAINER), answers="201 RunnerDetail")
async def assign_runner(
    services: Services, actor: Actor, params: AssignRunner, project: Project
) -> web.Response:
    """Let a project runner that the caller may manage also run this project's jobs, unless it is locked."""
    runner = await find_own_runner(services, actor, params.runner_id)
    if runner.runner_type != "project_type" or (runner.locked and not actor.admin):
        raise forbidden("Runner is locked" if runner.locked else "Runner is not a project runner")
    async with services.database.transaction() as transaction:
        await changes.assign(transaction, runner, project.id, actor.author)
        entity = await queries.show_runner(transaction, runner.id)
    return json_text(entity, status=201)


@routes.delete(
    "/projects/{id}/runners/{runner_id}",
    access=project(Role.MAINTAINER),
    revokes="runner:{runner_id}",
    answers="204",
)
async def unassign_runner(
    services: Services, actor: Actor, params: AssignRunner, project: Project
) -> web.Response:
    """Stop a project runner from running the project's jobs. The only project of a runner cannot be
    removed."""
    async with services.database.transaction() as transaction:
        await changes.unassign(transaction, params.runner_id, project.id, actor.author)
    return no_content()


@routes.post("/user/runners", access=SIGNED_IN, scopes=CREATE_RUNNER_SCOPES, answers="201 RunnerToken")
async def create_runner(
    request: web.Request, services: Services, actor: Actor, params: CreateRunner
) -> web.Response:
    """Create a runner of the instance (by administrators), a group (by Owners) or a project (by Maintainers).
    Only this answer contains its token, with which a runner program asks for jobs."""
    namespace_id, project_id = await _owner(request, params)
    new = params.new(namespace_id=namespace_id, project_id=project_id)
    async with services.database.transaction() as transaction:
        runner_id, token = await changes.create(
            transaction, attrs.evolve(new, creator_id=actor.user_id), actor.author
        )
    return json_value({"id": runner_id, "token": token, "token_expires_at": None}, status=201)


async def _owner(request: web.Request, params: CreateRunner) -> tuple[int | None, int | None]:
    """Return the ids of the group or the project that the runner is for. Raise 404 and 403."""
    if params.runner_type == "project_type":
        return None, (await find_project(request, str(params.project_id), Role.MAINTAINER)).id
    if params.runner_type == "group_type":
        return (await find_group(request, str(params.group_id), Role.OWNER)).id, None
    if not caller(request).admin:
        raise forbidden()
    return None, None
