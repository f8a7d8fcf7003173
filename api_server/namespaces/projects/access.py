"""Finding the project that a request names, under the rule that its route declares."""

from typing import ClassVar

import attrs
from aiohttp import web

from api_server.namespaces import redirects
from api_server.namespaces.projects import queries
from api_server.namespaces.projects.project import Feature, Project
from api_server.state.database import Executor, LookupCache
from api_server.web import context
from api_server.web.errors import forbidden, not_found
from api_server.web.grounds import Ground, rely_on
from api_server.web.routes import Place, Role, caller

PROJECTS: web.AppKey[LookupCache[Project]] = web.AppKey("projects", LookupCache)


@attrs.frozen
class ProjectAccess(Place):
    """Callers with at least `role` in the project, to whom the feature that the route `opens` is open; of an archived
    project nobody to whom the route `changes` what is archived with it."""

    opens: Feature | None = None
    changes: bool = False

    finds: ClassVar[type] = Project

    async def find(self, request: web.Request, reference: str) -> Project:
        found = await find_project(request, reference, self.role)
        self.check(found)
        return found

    def check(self, found: Project) -> None:
        """Raises 403 where the rule keeps whoever has `found` the project out."""
        closed = self.opens is not None and not found.shows(self.opens)
        if found.role < self.role or closed or (self.changes and found.archived):
            raise forbidden()


def project(
    role: Role = Role.NO_ACCESS, *, opens: Feature | None = None, changes: bool = False
) -> ProjectAccess:
    """The rule of a route whose `{id}` names a project."""
    return ProjectAccess("project", role, opens, changes)


async def find_project(request: web.Request, reference: str, role: Role = Role.NO_ACCESS) -> Project:
    """The project with that id or full path. Raises 404 where the caller cannot see it, 403 below `role`."""
    number = redirects.id_in(reference)
    found = await _visible_to_caller(request, reference if number is None else number)
    if found is None:
        raise not_found("Project")
    if found.moved:
        redirects.redirect(request, found.id)
    if found.role < role:
        raise forbidden()
    return found


async def project_to_name(request: web.Request, parameter: str, project_id: int) -> Project:
    """The project that a parameter names by id. Raises 404 where the caller cannot see it, as GitLab words it."""
    found = await _visible_to_caller(request, project_id)
    if found is None:
        raise not_found(f"{parameter} not found")
    return found


async def _visible_to_caller(request: web.Request, reference: int | str) -> Project | None:
    who = caller(request)
    return await visible_project(
        request, reference, user_id=who.user_id, admin=who.admin, job_project_id=who.job_project_id
    )


async def visible_project(
    request: web.Request,
    reference: int | str,
    *,
    user_id: int | None,
    admin: bool,
    job_project_id: int | None,
) -> Project | None:
    """The project with that id (a number) or full path (a text), where that user (None: a stranger) can see it.

    `job_project_id` is the project of the job whose token speaks for the user: where the project that is looked for
    does not let that one's jobs in, the user is a stranger to it. Whatever takes tokens finds projects here.
    """

    async def read(executor: Executor) -> Project | None:
        return await queries.find_project(
            executor,
            project_id=reference if isinstance(reference, int) else None,
            path=reference if isinstance(reference, str) else None,
            user_id=user_id,
            admin=admin,
            job_project_id=job_project_id,
        )

    found = await request.config_dict[PROJECTS].get(
        (reference, user_id, admin, job_project_id), lambda: read(context.database(request))
    )
    if found is not None:
        groups = (f"group:{namespace_id}" for namespace_id in found.lineage)
        rely_on(request, Ground((f"user:{user_id}", *groups, f"project:{found.id}"), found, read))
    return found
