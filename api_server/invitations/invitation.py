"""An invitation that nobody has answered yet, with what it leads to and who made it."""

import datetime

import attrs

from api_server.namespaces.members import Source, SourceKind
from api_server.state.audit_trail import Entity
from api_server.web.routes import Role


@attrs.frozen
class Invitation:
    """As its row is read."""

    id: int
    kind: SourceKind
    source_id: int
    email: str
    access_level: int
    member_role_id: int | None
    expires_at: datetime.date | None
    expired: bool
    #: Whoever made it may make it.
    holds: bool
    created_by_id: int | None
    token_seed: bytes = attrs.field(repr=False)
    inviter_name: str | None
    inviter_email: str | None
    source_name: str
    source_path: str
    source_description: str
    lineage: list[int]

    @property
    def role(self) -> Role:
        return Role(self.access_level)

    @property
    def source(self) -> Source:
        """With an Owner's rights: whoever made the invitation has those that it needs, or it would not be found."""
        return Source(
            kind=self.kind,
            id=self.source_id,
            entity=self.entity,
            role=Role.OWNER,
            lineage=self.lineage,
        )

    @property
    def entity(self) -> Entity:
        """What audit events of it belong to."""
        return Entity(
            type="Group" if self.kind == "group" else "Project", id=self.source_id, path=self.source_path
        )
