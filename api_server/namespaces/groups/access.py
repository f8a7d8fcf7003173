"""Finding the group that a request names, under the rule that its route declares."""

from typing import ClassVar

import attrs
from aiohttp import web

from api_server.namespaces import redirects
from api_server.namespaces.groups import queries
from api_server.state.audit_trail import Entity
from api_server.web import context
from api_server.web.access import Place, Role
from api_server.web.errors import forbidden, not_found
from api_server.web.routes import ROUTE, caller


@attrs.frozen(kw_only=True)
class Group:
    """A group as the caller meets it; `role` is the caller's, 50 for administrators."""

    id: int
    name: str
    path: str
    full_path: str
    parent_id: int | None
    lineage: list[int]
    visibility: str
    role: int

    @property
    def entity(self) -> Entity:
        """What audit events of this group belong to."""
        return Entity(type="Group", id=self.id, path=self.full_path)


@attrs.frozen
class GroupAccess(Place):
    """Callers with at least `role` in the group."""

    finds: ClassVar[type] = Group

    async def find(self, request: web.Request, reference: str) -> Group:
        return await find_group(request, reference, self.role)


def group(role: Role = Role.NO_ACCESS) -> GroupAccess:
    """The rule of a route whose `{id}` names a group."""
    return GroupAccess("group", role)


async def find_group(request: web.Request, reference: str, role: Role | None = None) -> Group:
    """The group with that id or full path. Raises 404 where the caller cannot see it, 403 below `role`."""
    if role is None:
        access = request[ROUTE].access
        role = access.role if isinstance(access, Place) else Role.NO_ACCESS
    who = caller(request)
    number = redirects.id_in(reference)
    row = await queries.find_group(
        context.database(request),
        group_id=number,
        path=None if number is not None else reference,
        user_id=who.user_id,
    )
    if row is None:
        raise not_found("Group")
    own = Role.OWNER if who.admin else row.role
    if not (
        own > Role.NO_ACCESS
        or row.visibility == "public"
        or (row.visibility == "internal" and not row.external)
    ):
        raise not_found("Group")
    if row.moved:
        redirects.redirect(request, reference, row.id)
    if own < role:
        raise forbidden()
    return Group(
        id=row.id,
        name=row.name,
        path=row.path,
        full_path=row.full_path,
        parent_id=row.parent_id,
        lineage=row.lineage,
        visibility=row.visibility,
        role=own,
    )
