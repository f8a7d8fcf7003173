"""Lookup of the group or project that a request names, by id or by a current or former path, under its
route's rule."""

from typing import ClassVar, Literal, NoReturn, TypeVar

import attrs
from aiohttp import web

from api_server.namespaces import namespace_queries, project_queries
from api_server.namespaces.resources import Feature, Group, Project
from api_server.outbound.destinations import written_url
from api_server.services import Key, Services
from api_server.state.database import MAX_BIGINT, Executor, LookupCache
from api_server.state.preconditions import Precondition
from api_server.web import context
from api_server.web.auth import Actor
from api_server.web.errors import ApiError, bad_parameters, forbidden, not_found
from api_server.web.route_index import plain
from api_server.web.routes import ResourceAccess, Role, caller

_MAX_DIGITS = 30

ResourceT = TypeVar("ResourceT", Group, Project)


def id_in(reference: str, parameter: str = "id") -> int | None:
    """Return the number if `reference` is an id (digits, with an optional minus sign), or None if it is a
    path. Raise 400 if it exceeds 64 bits (decision D11)."""
    if not (reference.isascii() and reference.removeprefix("-").isdecimal()):
        return None
    if len(reference) > _MAX_DIGITS or not -MAX_BIGINT - 1 <= int(reference) <= MAX_BIGINT:
        raise bad_parameters(f"{parameter} is invalid")
    return int(reference)


def redirect(request: web.Request, current_id: int) -> NoReturn:
    """Answer a request by an old path like GitLab: 301 to the same URL by id for reading, 405 for everything
    else."""
    if request.method not in ("GET", "HEAD"):
        raise ApiError(405, {"message": "Non GET methods are not allowed for moved projects"})
    # Replace the path by its position: clients encode a path in several ways, and a short one may also occur
    # elsewhere in the URL.
    parts = plain(request.rel_url.raw_path).split("/")
    parts[request.match_info.get_info()["formatter"].split("/").index("{id}")] = str(current_id)
    query = f"?{request.rel_url.raw_query_string}" if request.rel_url.raw_query_string else ""
    url = f"{context.services(request).settings.base_url}{'/'.join(parts)}{query}"
    raise web.HTTPMovedPermanently(
        written_url(url), text=f"This resource has been moved permanently to {url}"
    )


def _open_to_caller(
    request: web.Request, resource: ResourceT | None, noun: Literal["Group", "Project"], role: Role
) -> ResourceT:
    """Return the group or project. Raise 404 if it is None and 403 below `role`; redirect from old paths."""
    if resource is None:
        raise not_found(noun)
    if resource.moved:
        redirect(request, resource.id)
    if resource.role < role:
        raise forbidden()
    return resource


GROUPS = Key[LookupCache[Group]]("groups")


@attrs.frozen
class GroupAccess(ResourceAccess):
    """The rule that callers need at least `role` in the group."""

    finds: ClassVar[type] = Group

    async def find(self, request: web.Request, reference: str) -> Group:
        return await find_group(request, reference, self.role)

    def check(self, group: Group) -> None:
        """Raise 403 if the rule excludes the caller who looked up the group."""
        if group.role < self.role:
            raise forbidden()


def group(role: Role = Role.NO_ACCESS) -> GroupAccess:
    """Return the rule of a route whose `{id}` names a group."""
    return GroupAccess("group", role)


async def find_group(request: web.Request, reference: str, role: Role = Role.NO_ACCESS) -> Group:
    """Return the group with that id or full path. Raise 404 if the caller cannot see it, and 403 below
    `role`."""
    return _open_to_caller(
        request, await _group_for_caller(context.services(request), caller(request), reference), "Group", role
    )


async def group_to_name(services: Services, actor: Actor, parameter: str, group_id: int) -> Group:
    """Return the group that a parameter names by id. Raise 404 in GitLab's words if the caller cannot see
    it."""
    named_group = await _group_for_caller(services, actor, str(group_id))
    if named_group is None:
        raise not_found(f"{parameter} not found")
    return named_group


async def _group_for_caller(services: Services, actor: Actor, reference: str) -> Group | None:
    number = id_in(reference)
    return await visible_group(
        services, reference if number is None else number, user_id=actor.user_id, admin=actor.admin
    )


async def visible_group(
    services: Services, reference: int | str, *, user_id: int | None, admin: bool
) -> Group | None:
    """Return the group with that id (a number) or full path (a text) if the user can see it, otherwise None.
    Without a user, only public groups are visible."""

    async def read(executor: Executor) -> Group | None:
        return await namespace_queries.find_group(
            executor,
            group_id=reference if isinstance(reference, int) else None,
            path=reference if isinstance(reference, str) else None,
            user_id=user_id,
            admin=admin,
        )

    visible = await services[GROUPS].get((reference, user_id, admin), lambda: read(services.database))
    if visible is not None:
        groups = (f"group:{namespace_id}" for namespace_id in visible.lineage)
        services.require_unchanged(Precondition((f"user:{user_id}", *groups), visible, read))
    return visible


PROJECTS = Key[LookupCache[Project]]("projects")


@attrs.frozen
class ProjectAccess(ResourceAccess):
    """The rule that callers need at least `role` in the project and access to `feature`. A route that
    `changes` the project's contents is closed in archived projects."""

    feature: Feature | None = None
    changes: bool = False

    finds: ClassVar[type] = Project

    async def find(self, request: web.Request, reference: str) -> Project:
        resource = await find_project(request, reference, self.role)
        self.check(resource)
        return resource

    def check(self, project: Project) -> None:
        """Raise 403 if the rule excludes the caller who looked up the project."""
        closed = self.feature is not None and not project.shows(self.feature)
        if project.role < self.role or closed or (self.changes and project.archived):
            raise forbidden()


def project(
    role: Role = Role.NO_ACCESS, *, feature: Feature | None = None, changes: bool = False
) -> ProjectAccess:
    """Return the rule of a route whose `{id}` names a project."""
    return ProjectAccess("project", role, feature, changes)


async def find_project(request: web.Request, reference: str, role: Role = Role.NO_ACCESS) -> Project:
    """Return the project with that id or full path. Raise 404 if the caller cannot see it, and 403 below
    `role`."""
    number = id_in(reference)
    visible = await _project_for_caller(
        context.services(request), caller(request), reference if number is None else number
    )
    return _open_to_caller(request, visible, "Project", role)


async def project_to_name(services: Services, actor: Actor, parameter: str, project_id: int) -> Project:
    """Return the project that a parameter names by id. Raise 404 in GitLab's words if the caller cannot see
    it."""
    named_project = await _project_for_caller(services, actor, project_id)
    if named_project is None:
        raise not_found(f"{parameter} not found")
    return named_project


async def _project_for_caller(services: Services, actor: Actor, reference: int | str) -> Project | None:
    return await visible_project(
        services, reference, user_id=actor.user_id, admin=actor.admin, job_project_id=actor.job_project_id
    )


async def visible_project(
    services: Services,
    reference: int | str,
    *,
    user_id: int | None,
    admin: bool,
    job_project_id: int | None,
) -> Project | None:
    """Return the project with that id (a number) or full path (a text) if the user can see it, otherwise
    None. Without a user, only public projects are visible.

    `job_project_id` is the project of the job whose token acts for the user. If the requested project does
    not admit jobs of that project, the user's roles do not count. Every lookup with a token goes through this
    function.
    """

    async def read(executor: Executor) -> Project | None:
        return await project_queries.find_project(
            executor,
            project_id=reference if isinstance(reference, int) else None,
            path=reference if isinstance(reference, str) else None,
            user_id=user_id,
            admin=admin,
            job_project_id=job_project_id,
        )

    visible = await services[PROJECTS].get(
        (reference, user_id, admin, job_project_id), lambda: read(services.database)
    )
    if visible is not None:
        groups = (f"group:{namespace_id}" for namespace_id in visible.lineage)
        services.require_unchanged(
            Precondition((f"user:{user_id}", *groups, f"project:{visible.id}"), visible, read)
        )
    return visible
