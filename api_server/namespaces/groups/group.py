"""A group as its caller meets it."""

import attrs

from api_server.state.audit_trail import Entity


@attrs.frozen(kw_only=True)
class Group:
    """`role` is the caller's, 50 for administrators."""

    id: int
    full_path: str
    #: Ids of the groups whose members have their role here too, from the root down; the last one is its own.
    lineage: list[int]
    role: int
    #: The request named it by a path that it has moved from.
    moved: bool

    @property
    def entity(self) -> Entity:
        """What audit events of this group belong to."""
        return Entity(type="Group", id=self.id, path=self.full_path)
