"""What members belong to: a group or a project."""

from typing import TypedDict

import attrs

from api_server.namespaces.groups.group import Group
from api_server.namespaces.members import rules
from api_server.namespaces.projects.project import Project
from api_server.state.audit_trail import Entity
from api_server.web.errors import forbidden


class Places(TypedDict):
    """As lists of members take it."""

    project_id: int | None
    namespace_ids: list[int]


class Place(TypedDict):
    """As statements take it: one of the two, the other one None."""

    namespace_id: int | None
    project_id: int | None


@attrs.frozen(kw_only=True)
class Source:
    """A group or project with members; `role` is the caller's, 50 for administrators."""

    kind: rules.SourceKind
    id: int
    entity: Entity
    role: int
    #: Ids of the namespaces whose members have their role here too: for a group the last one is its own.
    lineage: list[int]

    @property
    def place(self) -> Place:
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


def source_of(found: Group | Project) -> Source:
    """What the route has found, as what members belong to."""
    return Source(
        kind="group" if isinstance(found, Group) else "project",
        id=found.id,
        entity=found.entity,
        role=found.role,
        lineage=found.lineage,
    )
