"""Finding the group that a request names, under the rule that its route declares."""

import attrs
from aiohttp import web

from api_server.namespaces import redirects
from api_server.namespaces.groups import queries
from api_server.state.audit_trail import Entity
from api_server.web import context
from api_server.web.access import Role
from api_server.web.errors import forbidden, not_found
from api_server.web.routes import CHECKED, ROUTE, caller


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


async def find_group(request: web.Request, reference: str) -> Group:
    """The group with that id or full path. Raises 404 where the caller cannot see it, 403 below the route's role."""
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
    role = Role.OWNER if who.admin else row.role
    if not (
        role > Role.NO_ACCESS
        or row.visibility == "public"
        or (row.visibility == "internal" and not row.external)
    ):
        raise not_found("Group")
    if row.moved:
        redirects.redirect(request, reference, row.id)
    if role < request[ROUTE].access.role:
        raise forbidden()
    request[CHECKED] = True
    return Group(
        id=row.id,
        name=row.name,
        path=row.path,
        full_path=row.full_path,
        parent_id=row.parent_id,
        lineage=row.lineage,
        visibility=row.visibility,
        role=role,
    )
