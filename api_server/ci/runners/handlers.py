"""`/runners`, `/projects/:id/runners`, `/groups/:id/runners`, `POST /user/runners`: looking after runners."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.ci.runners import changes, queries
from api_server.ci.runners.access import find_runner
from api_server.ci.runners.changes import AccessLevel, NewRunner, RunnerType
from api_server.namespaces.groups.access import find_group, group
from api_server.namespaces.projects.access import find_project, project
from api_server.state.database import Conflict
from api_server.web import context
from api_server.web.access import ADMINISTRATOR, SIGNED_IN, Role
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.authorship import author
from api_server.web.errors import forbidden, invalid, not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, CommaList, Unset, parse
from api_server.web.routes import Routes, caller

routes = Routes()

Status = Literal["online", "offline", "stale", "never_contacted", "active", "paused"]


@attrs.frozen(kw_only=True)
class ListRunners(Paginated):
    type: RunnerType | None = None
    status: Status | None = None
    scope: Literal["active", "paused", "online", "offline", "specific", "shared"] | None = None
    paused: bool | None = None
    tag_list: CommaList[str] | None = None


@attrs.frozen(kw_only=True)
class ListRunnersOf(ListRunners):
    id: str


@attrs.frozen(kw_only=True)
class RunnerId:
    id: int


@attrs.frozen(kw_only=True)
class ListManagers(Paginated):
    id: int


@attrs.frozen(kw_only=True)
class UpdateRunner:
    id: int
    description: str | None = None
    active: bool | None = None
    paused: bool | None = None
    locked: bool | None = None
    run_untagged: bool | None = None
    tag_list: CommaList[str] | None = None
    access_level: AccessLevel | None = None
    maximum_timeout: int | Unset | None = UNSET
    maintenance_note: str | None = None


@attrs.frozen(kw_only=True)
class AssignRunner:
    id: str
    runner_id: int


@routes.get("/runners", access=SIGNED_IN)
async def list_runners(request: web.Request) -> web.Response:
    """The runners that the caller may look after."""
    return await _listed(request, await parse(request, ListRunners), "owner_id", caller(request).user_id)


@routes.get("/runners/all", access=ADMINISTRATOR)
async def list_all_runners(request: web.Request) -> web.Response:
    return await _listed(request, await parse(request, ListRunners))


@routes.get("/projects/{id}/runners", access=project(Role.MAINTAINER))
async def list_project_runners(request: web.Request) -> web.Response:
    """All that may run the project's jobs: its own, those of its groups, and the instance's."""
    wanted = await parse(request, ListRunnersOf)
    found = await find_project(request, wanted.id)
    return await _listed(request, wanted, "project_id", found.id)


@routes.get("/groups/{id}/runners", access=group(Role.MAINTAINER))
async def list_group_runners(request: web.Request) -> web.Response:
    wanted = await parse(request, ListRunnersOf)
    found = await find_group(request, wanted.id)
    return await _listed(request, wanted, "namespace_id", found.id)


async def _listed(
    request: web.Request, wanted: ListRunners, whose: queries.Whose | None = None, whose_id: int | None = None
) -> web.Response:
    page = wanted_page(wanted, queries.LISTING)
    asked = wanted.status or wanted.scope
    types = {"shared": "instance_type", "specific": "project_type"}
    paused = (
        wanted.paused if wanted.paused is not None else {"paused": True, "active": False}.get(asked or "")
    )
    listed = await queries.list_runners(
        context.database(request),
        page,
        whose,
        whose_id,
        runner_type=wanted.type or types.get(asked or ""),
        active=None if paused is None else not paused,
        status=asked if asked in ("online", "offline", "stale", "never_contacted") else None,
        tags=wanted.tag_list,
    )
    return await paginated(request, page, listed)


@routes.get("/runners/{id}", access=SIGNED_IN)
async def show_runner(request: web.Request) -> web.Response:
    wanted = await parse(request, RunnerId)
    runner = await find_runner(request, wanted.id)
    return json_text(await queries.show_runner(context.database(request), runner.id))


@routes.get("/runners/{id}/managers", access=SIGNED_IN)
async def list_managers(request: web.Request) -> web.Response:
    """The machines that use the runner's token."""
    wanted = await parse(request, ListManagers)
    runner = await find_runner(request, wanted.id)
    page = wanted_page(wanted, queries.MANAGERS)
    return await paginated(
        request, page, await queries.MANAGERS.read(context.database(request), page, id=runner.id)
    )


@routes.put("/runners/{id}", access=SIGNED_IN)
async def update_runner(request: web.Request) -> web.Response:
    """Also pauses: a paused runner gets no jobs, and finishes those it has."""
    wanted = await parse(request, UpdateRunner)
    runner = await find_runner(request, wanted.id, to_change=True)
    sets_timeout = wanted.maximum_timeout is not UNSET
    async with context.database(request).transaction() as transaction:
        changed = await queries.update_runner(
            transaction,
            runner.id,
            description=wanted.description,
            active=wanted.active if wanted.paused is None else not wanted.paused,
            locked=wanted.locked,
            run_untagged=wanted.run_untagged,
            tag_list=None if wanted.tag_list is None else changes.clean_tags(wanted.tag_list),
            access_level=wanted.access_level,
            sets_timeout=sets_timeout,
            maximum_timeout=wanted.maximum_timeout if sets_timeout else None,
            maintenance_note=wanted.maintenance_note,
        )
        changes.refuse_contradictions(
            changed.tag_list, changed.maximum_timeout, run_untagged=changed.run_untagged
        )
        await changes.record_change(transaction, author(request), runner, changed, _SETTINGS)
        shown = await queries.show_runner(transaction, runner.id)
    return json_text(shown)


_SETTINGS = (
    "description", "active", "locked", "run_untagged", "tag_list", "access_level", "maximum_timeout",
    "maintenance_note",
)  # fmt: skip


@routes.delete("/runners/{id}", access=SIGNED_IN)
async def delete_runner(request: web.Request) -> web.Response:
    wanted = await parse(request, RunnerId)
    runner = await find_runner(request, wanted.id, to_change=True)
    async with context.database(request).transaction() as transaction:
        await changes.delete(transaction, runner, author(request))
    return no_content()


@routes.post("/runners/{id}/reset_authentication_token", access=SIGNED_IN)
async def reset_token(request: web.Request) -> web.Response:
    """The runner's old token opens nothing any more."""
    wanted = await parse(request, RunnerId)
    runner = await find_runner(request, wanted.id, to_change=True)
    async with context.database(request).transaction() as transaction:
        token = await changes.reset_token(transaction, runner.id, author(request))
    return json_value({"token": token, "token_expires_at": None}, status=201)


@routes.post("/projects/{id}/runners", access=project(Role.MAINTAINER))
async def assign_runner(request: web.Request) -> web.Response:
    """Lets a project runner that the caller looks after run this project's jobs too; locked ones stay as they are."""
    wanted = await parse(request, AssignRunner)
    found = await find_project(request, wanted.id)
    runner = await find_runner(request, wanted.runner_id, to_change=True)
    if runner.runner_type != "project_type" or (runner.locked and not caller(request).admin):
        raise forbidden("Runner is locked" if runner.locked else "Runner is not a project runner")
    try:
        async with context.database(request).transaction() as transaction:
            await queries.assign(transaction, runner.id, found.id)
            await changes.record(
                transaction, "runner_assigned_to_project", author(request), runner.id, project_id=found.id
            )
            shown = await queries.show_runner(transaction, runner.id)
    except Conflict:
        raise invalid({"project_id": ["has already been taken"]}) from None
    return json_text(shown, status=201)


@routes.delete("/projects/{id}/runners/{runner_id}", access=project(Role.MAINTAINER))
async def unassign_runner(request: web.Request) -> web.Response:
    """Takes the project's jobs away from a project runner; its only project stays."""
    wanted = await parse(request, AssignRunner)
    found = await find_project(request, wanted.id)
    database = context.database(request)
    if not await queries.is_assigned(database, wanted.runner_id, found.id):
        raise not_found("Runner")
    async with database.transaction() as transaction:
        if not await queries.unassign(transaction, wanted.runner_id, found.id):
            raise forbidden("Only one project associated with the runner. Please remove the runner instead")
        await changes.record(
            transaction,
            "runner_unassigned_from_project",
            author(request),
            wanted.runner_id,
            project_id=found.id,
        )
    return no_content()


@attrs.frozen(kw_only=True)
class CreateRunner:
    runner_type: RunnerType
    group_id: int | None = None
    project_id: int | None = None
    description: str | None = None
    maintenance_note: str | None = None
    paused: bool = False
    locked: bool = False
    run_untagged: bool = True
    tag_list: CommaList[str] = attrs.field(factory=CommaList)
    access_level: AccessLevel = "not_protected"
    maximum_timeout: int | None = None

    def __attrs_post_init__(self) -> None:
        if self.runner_type == "group_type" and self.group_id is None:
            raise ValueError("group_id is missing")
        if self.runner_type == "project_type" and self.project_id is None:
            raise ValueError("project_id is missing")


@routes.post("/user/runners", access=SIGNED_IN)
async def create_runner(request: web.Request) -> web.Response:
    """A runner of the instance (administrators), a group (Owners) or a project (Maintainers). Its token is shown here
    only; a runner program takes it and starts asking for jobs."""
    wanted = await parse(request, CreateRunner)
    namespace_id, project_id = await _owner(request, wanted)
    async with context.database(request).transaction() as transaction:
        runner_id, token = await changes.create(
            transaction,
            NewRunner(
                namespace_id=namespace_id,
                project_id=project_id,
                description=wanted.description or "",
                maintenance_note=wanted.maintenance_note,
                active=not wanted.paused,
                locked=wanted.locked,
                run_untagged=wanted.run_untagged,
                tag_list=tuple(wanted.tag_list),
                access_level=wanted.access_level,
                maximum_timeout=wanted.maximum_timeout,
                creator_id=caller(request).user_id,
            ),
            author(request),
        )
    return json_value({"id": runner_id, "token": token, "token_expires_at": None}, status=201)


async def _owner(request: web.Request, wanted: CreateRunner) -> tuple[int | None, int | None]:
    """The ids of the group or the project that the runner is for. Raises 404 and 403."""
    if wanted.runner_type == "project_type":
        found = await find_project(request, str(wanted.project_id))
        if found.role < Role.MAINTAINER:
            raise forbidden()
        return None, found.id
    if wanted.runner_type == "group_type":
        owner = await find_group(request, str(wanted.group_id))
        if owner.role < Role.OWNER:
            raise forbidden()
        return owner.id, None
    if not caller(request).admin:
        raise forbidden()
    return None, None
