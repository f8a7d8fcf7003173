"""Finding the group that a request names, under the rule that its route declares."""

from typing import ClassVar

import attrs
from aiohttp import web

from api_server.namespaces import redirects
from api_server.namespaces.groups import queries
from api_server.namespaces.groups.group import Group
from api_server.state.database import Executor, LookupCache
from api_server.web import context
from api_server.web.errors import forbidden, not_found
from api_server.web.grounds import Ground, rely_on
from api_server.web.routes import Place, Role, caller

GROUPS: web.AppKey[LookupCache[Group]] = web.AppKey("groups", LookupCache)


@attrs.frozen
class GroupAccess(Place):
    """Callers with at least `role` in the group."""

    finds: ClassVar[type] = Group

    async def find(self, request: web.Request, reference: str) -> Group:
        return await find_group(request, reference, self.role)

    def check(self, found: Group) -> None:
        """Raises 403 where the rule keeps whoever has `found` the group out."""
        if found.role < self.role:
            raise forbidden()


def group(role: Role = Role.NO_ACCESS) -> GroupAccess:
    """The rule of a route whose `{id}` names a group."""
    return GroupAccess("group", role)


async def find_group(request: web.Request, reference: str, role: Role = Role.NO_ACCESS) -> Group:
    """The group with that id or full path. Raises 404 where the caller cannot see it, 403 below `role`."""
    found = await _visible_to_caller(request, reference)
    if found is None:
        raise not_found("Group")
    if found.moved:
        redirects.redirect(request, found.id)
    if found.role < role:
        raise forbidden()
    return found


async def group_to_name(request: web.Request, parameter: str, group_id: int) -> Group:
    """The group that a parameter names by id. Raises 404 where the caller cannot see it, as GitLab words it."""
    found = await _visible_to_caller(request, str(group_id))
    if found is None:
        raise not_found(f"{parameter} not found")
    return found


async def _visible_to_caller(request: web.Request, reference: str) -> Group | None:
    who, number = caller(request), redirects.id_in(reference)
    return await visible_group(
        request, reference if number is None else number, user_id=who.user_id, admin=who.admin
    )


async def visible_group(
    request: web.Request, reference: int | str, *, user_id: int | None, admin: bool
) -> Group | None:
    """The group with that id (a number) or full path (a text), where that user (None: a stranger) can see it."""

    async def read(executor: Executor) -> Group | None:
        return await queries.find_group(
            executor,
            group_id=reference if isinstance(reference, int) else None,
            path=reference if isinstance(reference, str) else None,
            user_id=user_id,
            admin=admin,
        )

    found = await request.config_dict[GROUPS].get(
        (reference, user_id, admin), lambda: read(context.database(request))
    )
    if found is not None:
        groups = (f"group:{namespace_id}" for namespace_id in found.lineage)
        rely_on(request, Ground((f"user:{user_id}", *groups), found, read))
    return found
