"""Finding the project that a request names, under the rule that its route declares."""

from typing import Any, ClassVar, Literal

import attrs
from aiohttp import web

from api_server.namespaces import redirects
from api_server.namespaces.projects import queries
from api_server.state.audit_trail import Entity
from api_server.state.database import Row
from api_server.state.lookup_cache import LookupCache
from api_server.web import context
from api_server.web.access import Place, Role
from api_server.web.errors import forbidden, not_found
from api_server.web.routes import ROUTE, caller

PROJECTS: web.AppKey[LookupCache[Row]] = web.AppKey("projects", LookupCache)


@attrs.frozen(kw_only=True)
class Project:
    """A project as the caller meets it; `role` is the caller's, 50 for administrators (`admin`)."""

    id: int
    namespace_id: int
    name: str
    path: str
    full_path: str
    visibility: str
    default_branch: str
    archived: bool
    empty_repo: bool
    public_jobs: bool
    repository_access_level: str
    builds_access_level: str
    ci_config_path: str | None
    #: Ids of the namespaces whose members have their role here too.
    lineage: list[int]
    role: int
    admin: bool = False
    #: The request named it by a path that it has moved from.
    moved: bool = False

    @property
    def entity(self) -> Entity:
        """What audit events of this project belong to."""
        return Entity(type="Project", id=self.id, path=self.full_path)

    def opens(self, feature_access_level: str) -> bool:
        """Whether a feature that is enabled, private (members only) or disabled is open to the caller."""
        return feature_access_level == "enabled" or (
            feature_access_level == "private" and self.role >= Role.GUEST
        )

    @property
    def reads_repository(self) -> bool:
        """Whether the caller may read its files: wherever the repository is open to her, but as Guest of a private
        project."""
        is_guest_at_most = self.visibility == "private" and self.role < Role.REPORTER
        return self.opens(self.repository_access_level) and not is_guest_at_most

    @property
    def shows_pipelines(self) -> bool:
        """Whether the caller may see its pipelines and jobs: Guests and strangers only where they are for everybody."""
        return self.opens(self.builds_access_level) and (self.role >= Role.REPORTER or self.public_jobs)

    def shows(self, feature: "Feature") -> bool:
        """Whether that feature is open to the caller."""
        return self.reads_repository if feature == "repository" else self.shows_pipelines

    @property
    def shows_repository_to_everybody(self) -> bool:
        """Whether strangers may read its files."""
        return self.visibility == "public" and self.repository_access_level == "enabled"


#: What of a project can be closed to callers who see the project.
Feature = Literal["repository", "builds"]


@attrs.frozen
class ProjectAccess(Place):
    """Callers with at least `role` in the project, to whom the feature that the route `opens` is open."""

    opens: Feature | None = None

    finds: ClassVar[type] = Project

    async def find(self, request: web.Request, reference: str) -> Project:
        found = await find_project(request, reference, self.role)
        if self.opens is not None and not found.shows(self.opens):
            raise forbidden()
        return found


def project(role: Role = Role.NO_ACCESS, *, opens: Feature | None = None) -> ProjectAccess:
    """The rule of a route whose `{id}` names a project."""
    return ProjectAccess("project", role, opens)


async def find_project(request: web.Request, reference: str, role: Role | None = None) -> Project:
    """The project with that id or full path. Raises 404 where the caller cannot see it, 403 below `role`."""
    if role is None:
        access = request[ROUTE].access
        role = access.role if isinstance(access, Place) else Role.NO_ACCESS
    found = await visible_project(
        request, reference, user_id=caller(request).user_id, admin=caller(request).admin
    )
    if found is None:
        raise not_found("Project")
    if found.moved:
        redirects.redirect(request, reference, found.id)
    if found.role < role:
        raise forbidden()
    return found


async def visible_project(
    request: web.Request, reference: str, *, user_id: int | None, admin: bool = False
) -> Project | None:
    """The project, where that user (None: a stranger) can see it."""
    row = await _row(request, reference, user_id)
    if row is None:
        return None
    project = project_from(row, admin=admin)
    if not (
        project.role >= Role.GUEST
        or project.visibility == "public"
        or (project.visibility == "internal" and user_id is not None and not row.external)
    ):
        return None
    return project


def project_from(row: Row, *, admin: bool = False) -> Project:
    columns = [field.name for field in attrs.fields(Project) if field.name != "admin"]
    values: dict[str, Any] = {name: getattr(row, name) for name in columns}
    return Project(**values | {"admin": admin} | ({"role": int(Role.OWNER)} if admin else {}))


async def _row(request: web.Request, reference: str, user_id: int | None) -> Row | None:
    number = redirects.id_in(reference)
    return await request.config_dict[PROJECTS].get(
        (reference, user_id),
        lambda: queries.find_project(
            context.database(request),
            project_id=number,
            path=None if number is not None else reference,
            user_id=user_id,
        ),
    )
