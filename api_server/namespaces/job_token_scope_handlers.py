"""`/projects/:id/job_token_scope` (supporting resource)."""

import attrs
from aiohttp import web

from api_server.namespaces import job_token_scope, job_token_scope_queries
from api_server.namespaces.access import find_project, group_to_name, project, project_to_name
from api_server.namespaces.job_token_scope_queries import Kind
from api_server.namespaces.resources import Project
from api_server.services import Services
from api_server.web import context
from api_server.web.answers import json_value, no_content
from api_server.web.auth import Actor
from api_server.web.errors import bad_request
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.routes import Role, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class LimitAccess:
    id: str
    enabled: bool


@attrs.frozen(kw_only=True)
class ListAllowed(Paginated):
    id: str


@attrs.frozen(kw_only=True)
class OneProject:
    id: str
    target_project_id: int


@attrs.frozen(kw_only=True)
class OneGroup:
    id: str
    target_group_id: int


@routes.get("/projects/{id}/job_token_scope", access=project(Role.MAINTAINER), answers="200 JobTokenScope")
async def show_scope(services: Services, project: Project) -> web.Response:
    """Show whether the project limits access by job tokens to its allow-list. Other projects decide about the
    access of its own jobs."""
    enabled = await job_token_scope_queries.is_enabled(services.database, project.id)
    return json_value({"inbound_enabled": enabled, "outbound_enabled": False})


@routes.patch(
    "/projects/{id}/job_token_scope", access=project(Role.MAINTAINER), revokes="project:{id}", answers="204"
)
async def limit_access(
    services: Services, actor: Actor, params: LimitAccess, project: Project
) -> web.Response:
    async with services.database.transaction() as transaction:
        await job_token_scope.limit_access(transaction, project, actor.author, enabled=params.enabled)
    return no_content()


@routes.get(
    "/projects/{id}/job_token_scope/allowlist", access=project(Role.MAINTAINER), answers="200 [BasicProject]"
)
async def list_projects(request: web.Request, params: ListAllowed, project: Project) -> web.Response:
    """List the projects whose jobs are admitted, including this one."""
    return await _allowed(request, params, project, "project")


@routes.get(
    "/projects/{id}/job_token_scope/groups_allowlist",
    access=project(Role.MAINTAINER),
    answers="200 [BasicGroup]",
)
async def list_groups(request: web.Request, params: ListAllowed, project: Project) -> web.Response:
    """List the groups whose projects' jobs are admitted, including the projects of their subgroups."""
    return await _allowed(request, params, project, "group")


@routes.post(
    "/projects/{id}/job_token_scope/allowlist", access=project(Role.MAINTAINER), answers="201 AllowedProject"
)
async def allow_project(
    services: Services, actor: Actor, params: OneProject, project: Project
) -> web.Response:
    """Add a project that the caller can see to the allow-list."""
    target = await project_to_name(services, actor, "target_project_id", params.target_project_id)
    await _allow(services, actor, project, "project", target.id)
    return json_value({"source_project_id": project.id, "target_project_id": target.id}, status=201)


@routes.post(
    "/projects/{id}/job_token_scope/groups_allowlist",
    access=project(Role.MAINTAINER),
    answers="201 AllowedGroup",
)
async def allow_group(services: Services, actor: Actor, params: OneGroup, project: Project) -> web.Response:
    """Add a group that the caller can see to the allow-list."""
    target = await group_to_name(services, actor, "target_group_id", params.target_group_id)
    await _allow(services, actor, project, "group", target.id)
    return json_value({"source_project_id": project.id, "target_group_id": target.id}, status=201)


@routes.delete(
    "/projects/{id}/job_token_scope/allowlist/{target_project_id}",
    access=project(Role.MAINTAINER),
    revokes="project:{id}",
    answers="204",
)
async def disallow_project(
    request: web.Request, services: Services, actor: Actor, params: OneProject, project: Project
) -> web.Response:
    if not await _disallowed(services, actor, project, "project", params.target_project_id):
        await find_project(request, str(params.target_project_id))
        raise bad_request("Target project is not in the job token scope")
    return no_content()


@routes.delete(
    "/projects/{id}/job_token_scope/groups_allowlist/{target_group_id}",
    access=project(Role.MAINTAINER),
    revokes="project:{id}",
    answers="204",
)
async def disallow_group(
    services: Services, actor: Actor, params: OneGroup, project: Project
) -> web.Response:
    if not await _disallowed(services, actor, project, "group", params.target_group_id):
        await group_to_name(services, actor, "target_group_id", params.target_group_id)
        raise bad_request("Target group is not in the job token scope")
    return no_content()


async def _allowed(request: web.Request, params: ListAllowed, project: Project, kind: Kind) -> web.Response:
    page = requested_page(params, job_token_scope_queries.LISTINGS[kind], default_sort="asc")
    rows = await job_token_scope_queries.list_allowed(
        context.services(request).database, page, kind, project.id
    )
    return await paginated(request, page, rows)


async def _allow(services: Services, actor: Actor, project: Project, kind: Kind, target_id: int) -> None:
    limit = services.settings.job_token_allowlist_limit
    async with services.database.transaction() as transaction:
        await job_token_scope.allow(transaction, project, kind, target_id, actor.author, limit=limit)


async def _disallowed(services: Services, actor: Actor, project: Project, kind: Kind, target_id: int) -> bool:
    """Remove a target, even one that the caller cannot see. Return False if it was not on the list."""
    async with services.database.transaction() as transaction:
        return await job_token_scope.disallow(transaction, project, kind, target_id, actor.author)
