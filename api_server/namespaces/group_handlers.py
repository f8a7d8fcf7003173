"""`/groups` and `/namespaces` (supporting resources)."""

from itertools import count
from typing import Literal

import attrs
from aiohttp import web

from api_server.namespaces import access, groups, namespace_queries, removal
from api_server.namespaces.access import find_group, group
from api_server.namespaces.groups import NewGroup
from api_server.namespaces.resources import Group, Visibility
from api_server.services import Services
from api_server.web import context
from api_server.web.answers import json_text, json_value
from api_server.web.auth import Actor
from api_server.web.errors import forbidden, not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import CommaList, Description, Name
from api_server.web.routes import (
    SIGNED_IN,
    SIGNED_IN_OR_NOT,
    ById,
    Role,
    Routes,
    caller,
    caller_or_anonymous,
)

routes = Routes()

#: Who may create projects in a group.
Creators = Literal["noone", "administrator", "owner", "maintainer", "developer"]


@attrs.frozen(kw_only=True)
class ListGroups(Paginated):
    search: str | None = None
    owned: bool = False
    top_level_only: bool = False
    skip_groups: CommaList[int] = attrs.Factory(CommaList)
    min_access_level: Role | None = None


@attrs.frozen(kw_only=True)
class ListSubgroups(ListGroups):
    id: str


@attrs.frozen(kw_only=True)
class CreateGroup:
    name: Name = attrs.field(metadata={"present": True})
    path: Name = attrs.field(metadata={"present": True})
    parent_id: int | None = None
    description: Description | None = None
    visibility: Visibility | None = None
    project_creation_level: Creators = "developer"


@attrs.frozen(kw_only=True)
class UpdateGroup:
    id: str
    name: Name | None = None
    path: Name | None = None
    description: Description | None = None
    visibility: Visibility | None = None
    project_creation_level: Creators | None = None


@attrs.frozen(kw_only=True)
class ListNamespaces(Paginated):
    search: str | None = None


@routes.get("/groups", access=SIGNED_IN_OR_NOT, answers="200 [Group]")
async def list_groups(request: web.Request, params: ListGroups) -> web.Response:
    """List the groups that the caller can see; without credentials, the public ones."""
    return await _list_groups(request, params)


@routes.get("/groups/{id}/subgroups", access=group(), answers="200 [Group]")
async def list_subgroups(request: web.Request, params: ListSubgroups, group: Group) -> web.Response:
    """List the direct subgroups of a group."""
    return await _list_groups(request, params, parent_id=group.id)


@routes.get("/groups/{id}/descendant_groups", access=group(), answers="200 [Group]")
async def list_descendant_groups(request: web.Request, params: ListSubgroups, group: Group) -> web.Response:
    """List all subgroups of a group, at every level."""
    return await _list_groups(request, params, ancestor_id=group.id)


async def _list_groups(
    request: web.Request, params: ListGroups, *, parent_id: int | None = None, ancestor_id: int | None = None
) -> web.Response:
    page = requested_page(params, namespace_queries.LISTING, default_order="name", default_sort="asc")
    actor = caller_or_anonymous(request)
    # without credentials, `min_access_level` is ignored and `owned` matches nothing
    levels = [actor.user_id and params.min_access_level, params.owned and Role.OWNER]
    rows = await namespace_queries.list_groups(
        context.services(request).database,
        page,
        user_id=actor.user_id,
        admin=actor.admin,
        min_level=max(filter(None, levels), default=None),
        parent_id=parent_id,
        ancestor_id=ancestor_id,
        top_level_only=params.top_level_only,
        skipped=params.skip_groups,
        search=params.search,
    )
    return await paginated(request, page, rows)


@routes.post("/groups", access=SIGNED_IN, answers="201 GroupDetail")
async def create_group(
    request: web.Request, services: Services, actor: Actor, params: CreateGroup
) -> web.Response:
    """Create a top-level group, or a subgroup of a group that the caller owns. The caller becomes its
    owner."""
    new = NewGroup(
        name=params.name,
        path=params.path,
        description=params.description,
        visibility=params.visibility,
        project_creation_level=params.project_creation_level,
        parent=await _parent(request, params.parent_id),
    )
    async with services.database.transaction() as transaction:
        group_id = await groups.create(transaction, new, actor.user_id, actor.author)
        entity = await namespace_queries.show_group(transaction, group_id)
    return json_text(entity, status=201)


async def _parent(request: web.Request, parent_id: int | None) -> Group | None:
    """Return the group in which the caller creates a subgroup, or None for a top-level group. Raise 404, and
    403 if the caller may not create it."""
    if parent_id is not None:
        return await find_group(request, str(parent_id), Role.OWNER)
    actor = caller(request)
    if not (
        actor.admin
        or await namespace_queries.may_create_group(context.services(request).database, actor.user_id)
    ):
        raise forbidden()
    return None


@routes.get("/groups/{id}", access=group(), answers="200 GroupDetail")
async def show_group(services: Services, group: Group) -> web.Response:
    return json_text(await namespace_queries.show_group(services.database, group.id))


@routes.put("/groups/{id}", access=group(Role.OWNER), revokes="group:{id}", answers="200 GroupDetail")
async def update_group(services: Services, actor: Actor, params: UpdateGroup, group: Group) -> web.Response:
    changes = attrs.asdict(params, filter=lambda field, _: field.name != "id")
    async with services.database.transaction() as transaction:
        await groups.update(transaction, group, changes, actor.author)
        entity = await namespace_queries.show_group(transaction, group.id)
    return json_text(entity)


@routes.delete("/groups/{id}", access=group(Role.OWNER), revokes="group:{id}", answers="202 Message")
async def delete_group(services: Services, actor: Actor, group: Group) -> web.Response:
    """Delete a group with everything in it."""
    async with services.database.transaction() as transaction:
        await removal.remove_namespace(transaction, group.id, actor.author)
    return json_value({"message": "202 Accepted"}, status=202)


@routes.get("/namespaces", access=SIGNED_IN, answers="200 [Namespace]")
async def list_namespaces(
    request: web.Request, services: Services, actor: Actor, params: ListNamespaces
) -> web.Response:
    """List the caller's own namespace and the groups that she is a member of; all namespaces for
    administrators."""
    page = requested_page(params, namespace_queries.NAMESPACES, default_sort="asc")
    rows = await namespace_queries.list_namespaces(
        services.database, page, user_id=actor.user_id, admin=actor.admin, search=params.search
    )
    return await paginated(request, page, rows)


@attrs.frozen(kw_only=True)
class NamespacePath:
    path: str = attrs.field(metadata={"present": True})
    parent_id: int | None = None


@routes.get("/namespaces/{path}/exists", access=SIGNED_IN, answers="200 NamespaceExistence")
async def namespace_exists(services: Services, actor: Actor, params: NamespacePath) -> web.Response:
    """Tell whether a path is taken (below a group), and suggest a similar free path."""
    taken_paths = await namespace_queries.namespace_paths_like(
        services.database,
        params.path,
        parent_id=params.parent_id,
        user_id=actor.user_id,
        admin=actor.admin,
    )
    exists = params.path.lower() in taken_paths
    return json_value({"exists": exists, "suggests": [_free(params.path, taken_paths)] if exists else []})


def _free(path: str, taken_paths: set[str]) -> str:
    return next(name for number in count(1) if (name := f"{path}{number}").lower() not in taken_paths)


@routes.get("/namespaces/{id}", access=SIGNED_IN, answers="200 Namespace")
async def show_namespace(services: Services, actor: Actor, params: ById) -> web.Response:
    number = access.id_in(params.id)
    entity = await namespace_queries.show_namespace(
        services.database,
        namespace_id=number,
        path=None if number is not None else params.id,
        user_id=actor.user_id,
        admin=actor.admin,
    )
    if entity is None:
        raise not_found("Namespace")
    return json_text(entity)
