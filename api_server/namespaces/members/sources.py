"""What members belong to, a group or a project, found as the request's route declares it."""

from typing import TypedDict

import attrs
from aiohttp import web

from api_server.namespaces.groups.access import Group, find_group
from api_server.namespaces.members import rules
from api_server.namespaces.projects.access import Project, find_project
from api_server.state.audit_trail import Entity
from api_server.web.errors import forbidden
from api_server.web.routes import ROUTE


class Places(TypedDict):
    """As lists of members take it."""

    project_id: int | None
    namespace_ids: list[int]


@attrs.frozen(kw_only=True)
class Source:
    """A group or project with members; `role` is the caller's, 50 for administrators."""

    kind: rules.SourceKind
    id: int
    name: str
    entity: Entity
    role: int
    #: Ids of the namespaces whose members have their role here too: for a group the last one is its own.
    lineage: list[int]

    @property
    def place(self) -> dict[str, int | None]:
        """As statements take it: namespace_id or project_id, the other one None."""
        return {
            "namespace_id": self.id if self.kind == "group" else None,
            "project_id": self.id if self.kind == "project" else None,
        }

    @property
    def direct(self) -> Places:
        """Where its direct members are."""
        return {
            "project_id": self.place["project_id"],
            "namespace_ids": self.lineage[-1:] if self.kind == "group" else [],
        }

    @property
    def everywhere(self) -> Places:
        """Where its direct and its inherited members are."""
        return {"project_id": self.place["project_id"], "namespace_ids": self.lineage}

    @property
    def above(self) -> list[int]:
        """Ids of the namespaces from which roles are inherited."""
        return self.lineage[:-1] if self.kind == "group" else self.lineage

    def require_manager(self) -> None:
        """Raises 403 for callers who do not manage the members here."""
        if self.role < rules.manager(self.kind):
            raise forbidden()


async def find_source(request: web.Request, reference: str) -> Source:
    """The group or project of that id or full path. Raises 404 where it is hidden, 403 below the route's role."""
    if request[ROUTE].access.who == "group":
        return source_of(await find_group(request, reference))
    return source_of(await find_project(request, reference))


def source_of(found: Group | Project) -> Source:
    """What the route has found, as what members belong to."""
    return Source(
        kind="group" if isinstance(found, Group) else "project",
        id=found.id,
        name=found.name,
        entity=found.entity,
        role=found.role,
        lineage=found.lineage,
    )
