"""`/runners`, `/projects/:id/runners`, `/groups/:id/runners`, `POST /user/runners`: looking after runners."""

import attrs
from aiohttp import web

from api_server.ci.jobs import queries as jobs
from api_server.ci.runners import changes, manager_queries, queries, unsupported
from api_server.ci.runners.access import find_own_runner, find_runner
from api_server.ci.runners.parameters import (
    AssignRunner,
    CreateRunner,
    ListManagers,
    ListRunnerJobs,
    ListRunners,
    ListRunnersOf,
    OneRunner,
    UpdateRunner,
)
from api_server.namespaces.groups.access import find_group, group
from api_server.namespaces.groups.group import Group
from api_server.namespaces.projects.access import find_project, project
from api_server.namespaces.projects.project import Project
from api_server.web import context
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.auth import CREATE_RUNNER_SCOPES, MANAGE_RUNNER_SCOPES, READ_RUNNER_SCOPES
from api_server.web.errors import forbidden
from api_server.web.pagination import paginated, wanted_page
from api_server.web.params import UNSET
from api_server.web.routes import ADMINISTRATOR, SIGNED_IN, Role, Routes, author, caller

routes = Routes()


@routes.get("/runners", access=SIGNED_IN, ignores=unsupported.OfRunnerLists)
async def list_runners(request: web.Request, wanted: ListRunners) -> web.Response:
    """The runners that the caller may look after."""
    return await _listed(request, wanted, "owner_id", caller(request).user_id)


@routes.get("/runners/all", access=ADMINISTRATOR, ignores=unsupported.OfRunnerLists)
async def list_all_runners(request: web.Request, wanted: ListRunners) -> web.Response:
    return await _listed(request, wanted)


@routes.get("/projects/{id}/runners", access=project(Role.MAINTAINER), ignores=unsupported.OfRunnerLists)
async def list_project_runners(request: web.Request, wanted: ListRunnersOf, found: Project) -> web.Response:
    """All that may run the project's jobs: its own, those of its groups, and the instance's."""
    return await _listed(request, wanted, "project_id", found.id)


@routes.get("/groups/{id}/runners", access=group(Role.MAINTAINER), ignores=unsupported.OfRunnerLists)
async def list_group_runners(request: web.Request, wanted: ListRunnersOf, found: Group) -> web.Response:
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


@routes.get("/runners/{id}", access=SIGNED_IN, scopes=READ_RUNNER_SCOPES)
async def show_runner(request: web.Request, wanted: OneRunner) -> web.Response:
    runner = await find_runner(request, wanted.id)
    return json_text(await queries.show_runner(context.database(request), runner.id))


@routes.get("/runners/{id}/managers", access=SIGNED_IN, scopes=READ_RUNNER_SCOPES)
async def list_managers(request: web.Request, wanted: ListManagers) -> web.Response:
    """The machines that use the runner's token."""
    runner = await find_runner(request, wanted.id)
    page = wanted_page(wanted, manager_queries.LISTING)
    listed = await manager_queries.list_managers(context.database(request), page, runner.id)
    return await paginated(request, page, listed)


@routes.get("/runners/{id}/jobs", access=SIGNED_IN, scopes=READ_RUNNER_SCOPES)
async def list_runner_jobs(request: web.Request, wanted: ListRunnerJobs) -> web.Response:
    """What the runner has run and runs, for those who look after it."""
    runner = await find_own_runner(request, wanted.id)
    page = wanted_page(wanted, jobs.JOBS_OF_RUNNER)
    listed = await jobs.list_runner_jobs(
        context.database(request),
        page,
        runner.id,
        viewer_id=caller(request).user_id,
        sees_all=caller(request).admin,
        status=wanted.status,
        system_id=wanted.system_id,
    )
    return await paginated(request, page, listed)


@routes.put("/runners/{id}", access=SIGNED_IN, scopes=MANAGE_RUNNER_SCOPES, ends="runner:{id}")
async def update_runner(request: web.Request, wanted: UpdateRunner) -> web.Response:
    """Also pauses: a paused runner gets no jobs, and finishes those it has."""
    runner = await find_own_runner(request, wanted.id)
    sets_timeout = wanted.maximum_timeout is not UNSET
    async with context.database(request).transaction() as transaction:
        await changes.update(
            transaction,
            runner.id,
            author(request),
            description=wanted.description,
            active=wanted.active if wanted.paused is None else not wanted.paused,
            locked=wanted.locked,
            run_untagged=wanted.run_untagged,
            tag_list=wanted.tag_list,
            access_level=wanted.access_level,
            sets_timeout=sets_timeout,
            maximum_timeout=wanted.maximum_timeout if sets_timeout else None,
            maintenance_note=wanted.maintenance_note,
        )
        shown = await queries.show_runner(transaction, runner.id)
    return json_text(shown)


@routes.delete("/runners/{id}", access=SIGNED_IN, scopes=MANAGE_RUNNER_SCOPES, ends="runner:{id}")
async def delete_runner(request: web.Request, wanted: OneRunner) -> web.Response:
    runner = await find_own_runner(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        await changes.delete(transaction, runner, author(request))
    return no_content()


@routes.post(
    "/runners/{id}/reset_authentication_token",
    access=SIGNED_IN,
    scopes=MANAGE_RUNNER_SCOPES,
    ends="runner:{id}",
)
async def reset_token(request: web.Request, wanted: OneRunner) -> web.Response:
    """The runner's old token opens nothing any more."""
    runner = await find_own_runner(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        token = await changes.reset_token(transaction, runner.id, author(request))
    return json_value({"token": token, "token_expires_at": None}, status=201)


@routes.post("/projects/{id}/runners", access=project(Role.MAINTAINER))
async def assign_runner(request: web.Request, wanted: AssignRunner, found: Project) -> web.Response:
    """Lets a project runner that the caller looks after run this project's jobs too; locked ones stay as they are."""
    runner = await find_own_runner(request, wanted.runner_id)
    if runner.runner_type != "project_type" or (runner.locked and not caller(request).admin):
        raise forbidden("Runner is locked" if runner.locked else "Runner is not a project runner")
    async with context.database(request).transaction() as transaction:
        await changes.assign(transaction, runner, found.id, author(request))
        shown = await queries.show_runner(transaction, runner.id)
    return json_text(shown, status=201)


@routes.delete(
    "/projects/{id}/runners/{runner_id}", access=project(Role.MAINTAINER), ends="runner:{runner_id}"
)
async def unassign_runner(request: web.Request, wanted: AssignRunner, found: Project) -> web.Response:
    """Takes the project's jobs away from a project runner; its only project stays."""
    async with context.database(request).transaction() as transaction:
        await changes.unassign(transaction, wanted.runner_id, found.id, author(request))
    return no_content()


@routes.post("/user/runners", access=SIGNED_IN, scopes=CREATE_RUNNER_SCOPES)
async def create_runner(request: web.Request, wanted: CreateRunner) -> web.Response:
    """A runner of the instance (administrators), a group (Owners) or a project (Maintainers). Its token is shown here
    only; a runner program takes it and starts asking for jobs."""
    namespace_id, project_id = await _owner(request, wanted)
    new = wanted.new(namespace_id=namespace_id, project_id=project_id)
    async with context.database(request).transaction() as transaction:
        runner_id, token = await changes.create(
            transaction, attrs.evolve(new, creator_id=caller(request).user_id), author(request)
        )
    return json_value({"id": runner_id, "token": token, "token_expires_at": None}, status=201)


async def _owner(request: web.Request, wanted: CreateRunner) -> tuple[int | None, int | None]:
    """The ids of the group or the project that the runner is for. Raises 404 and 403."""
    if wanted.runner_type == "project_type":
        return None, (await find_project(request, str(wanted.project_id), Role.MAINTAINER)).id
    if wanted.runner_type == "group_type":
        return (await find_group(request, str(wanted.group_id), Role.OWNER)).id, None
    if not caller(request).admin:
        raise forbidden()
    return None, None
