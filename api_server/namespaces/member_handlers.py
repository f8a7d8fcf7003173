"""`/groups/:id/members`, `/projects/:id/members`, `/projects/:id/users` and `/users/:id/memberships`
(supporting)."""

import datetime
from typing import Literal

import attrs
from aiohttp import web

from api_server.accounts import user_queries
from api_server.accounts.user_queries import SEARCH
from api_server.accounts.users import existing_user
from api_server.namespaces import member_queries, members
from api_server.namespaces.access import group, project
from api_server.namespaces.member_queries import MEMBERSHIPS, USERS
from api_server.namespaces.members import MemberSources, Source, source_of
from api_server.namespaces.resources import Group, Project
from api_server.services import Services
from api_server.web import context
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.auth import READ_USER_SCOPES, Actor
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import UNSET, CommaList, Name, Unset
from api_server.web.routes import ADMINISTRATOR, Role, Routes, caller

routes = Routes()


@attrs.frozen(kw_only=True)
class ListMembers(Paginated):
    id: str
    query: str | None = None
    user_ids: CommaList[int] | None = None


@attrs.frozen(kw_only=True)
class MemberId:
    id: str
    user_id: int


@attrs.frozen(kw_only=True)
class AddMember:
    id: str
    access_level: Role
    user_id: CommaList[int] | None = None
    username: Name | None = None
    expires_at: datetime.date | None = None

    def __attrs_post_init__(self) -> None:
        if self.user_id and self.username:
            raise ValueError("user_id, username are mutually exclusive")
        if not (self.user_id or self.username):
            raise ValueError("user_id, username are missing, at least one parameter must be provided")


@attrs.frozen(kw_only=True)
class UpdateMember(MemberId):
    access_level: Role
    expires_at: datetime.date | Unset | None = UNSET


@attrs.frozen(kw_only=True)
class RemoveMember(MemberId):
    skip_subresources: bool = False


@routes.get("/groups/{id}/members", access=group(), answers="200 [Member]")
@routes.get("/projects/{id}/members", access=project(), answers="200 [Member]")
async def list_members(request: web.Request, params: ListMembers, resource: Group | Project) -> web.Response:
    """List the direct members, sorted by id."""
    return await _list_members(request, params, source_of(resource).direct)


@routes.get("/groups/{id}/members/all", access=group(), answers="200 [Member]")
@routes.get("/projects/{id}/members/all", access=project(), answers="200 [Member]")
async def list_all_members(
    request: web.Request, params: ListMembers, resource: Group | Project
) -> web.Response:
    """List direct and inherited members, each with the greatest role."""
    return await _list_members(request, params, source_of(resource).everywhere)


async def _list_members(request: web.Request, params: ListMembers, sources: MemberSources) -> web.Response:
    page = requested_page(params, member_queries.LISTING, default_sort="asc")
    rows = await member_queries.list_members(
        context.services(request).database,
        page,
        **sources,
        query=params.query,
        finds_private=caller(request).admin,
        user_ids=params.user_ids or None,
    )
    return await paginated(request, page, rows)


@routes.get("/groups/{id}/members/{user_id}", access=group(), answers="200 Member")
@routes.get("/projects/{id}/members/{user_id}", access=project(), answers="200 Member")
async def show_member(services: Services, params: MemberId, resource: Group | Project) -> web.Response:
    """Show a direct member."""
    sources = source_of(resource).direct
    return json_text(await member_queries.show_member(services.database, params.user_id, **sources))


@routes.get("/groups/{id}/members/all/{user_id}", access=group(), answers="200 Member")
@routes.get("/projects/{id}/members/all/{user_id}", access=project(), answers="200 Member")
async def show_any_member(services: Services, params: MemberId, resource: Group | Project) -> web.Response:
    """Show a direct or inherited member with the greatest role."""
    sources = source_of(resource).everywhere
    return json_text(await member_queries.show_member(services.database, params.user_id, **sources))


@routes.post("/groups/{id}/members", access=group(Role.OWNER), answers="201 Member | Outcomes")
@routes.post("/projects/{id}/members", access=project(Role.MAINTAINER), answers="201 Member | Outcomes")
async def add_members(
    services: Services, actor: Actor, params: AddMember, resource: Group | Project
) -> web.Response:
    """Add one member, or several at once, of whom some may be refused."""
    source = source_of(resource)
    if params.user_id and len(params.user_id) > 1:
        return await _added_several(services, actor, source, params, params.user_id)
    async with services.database.transaction() as transaction:
        if params.user_id:
            user = await user_queries.find_user(transaction, params.user_id[0])
        else:
            user = await user_queries.find_user_by_username(transaction, params.username or "")
        if user is None:
            raise not_found("User")
        member_id = await members.add(
            transaction, source, user, params.access_level, actor.author, expires_at=params.expires_at
        )
        entity = await member_queries.show_member(transaction, user.id, **source.direct, changed=member_id)
    return json_text(entity, status=201)


async def _added_several(
    services: Services, actor: Actor, source: Source, params: AddMember, user_ids: list[int]
) -> web.Response:
    async with services.database.transaction() as transaction:
        problems = await members.add_several(
            transaction, source, user_ids, params.access_level, actor.author, expires_at=params.expires_at
        )
    answer = {"status": "error", "message": problems} if problems else {"status": "success"}
    return json_value(answer, status=201)


@routes.put(
    "/groups/{id}/members/{user_id}", access=group(Role.OWNER), revokes="user:{user_id}", answers="200 Member"
)
@routes.put(
    "/projects/{id}/members/{user_id}",
    access=project(Role.MAINTAINER),
    revokes="user:{user_id}",
    answers="200 Member",
)
async def update_member(
    services: Services, actor: Actor, params: UpdateMember, resource: Group | Project
) -> web.Response:
    """Change a member's role. The expiry date is kept if it is not sent, and removed if it is null."""
    source = source_of(resource)
    async with services.database.transaction() as transaction:
        member_id = await members.update(
            transaction, source, params.user_id, params.access_level, params.expires_at, actor.author
        )
        entity = await member_queries.show_member(
            transaction, params.user_id, **source.direct, changed=member_id
        )
    return json_text(entity)


@routes.delete("/groups/{id}/members/{user_id}", access=group(), revokes="user:{user_id}", answers="204")
@routes.delete("/projects/{id}/members/{user_id}", access=project(), revokes="user:{user_id}", answers="204")
async def remove_member(
    services: Services, actor: Actor, params: RemoveMember, resource: Group | Project
) -> web.Response:
    """Remove a member. Everybody may leave; removing others requires the right to manage members. A group
    keeps its last owner."""
    leaves_below = params.skip_subresources
    async with services.database.transaction() as transaction:
        await members.remove(
            transaction, source_of(resource), params.user_id, actor.author, leaves_below=leaves_below
        )
    return no_content()


overview_routes = Routes()


@attrs.frozen(kw_only=True)
class ListProjectUsers(Paginated):
    id: str
    search: str | None = None
    skip_users: CommaList[int] | None = None


@attrs.frozen(kw_only=True)
class ListMemberships(Paginated):
    id: int
    type: Literal["Project", "Namespace"] | None = None


@overview_routes.get("/projects/{id}/users", access=project(), answers="200 [UserBasic]")
async def list_project_users(
    request: web.Request, params: ListProjectUsers, project: Project
) -> web.Response:
    """List direct and inherited members."""
    page = requested_page(params, USERS)
    database, finds_private = context.services(request).database, caller(request).admin
    rows = await USERS.read(
        database,
        page,
        **source_of(project).everywhere,
        search=params.search,
        found=await SEARCH.find(database, params.search, finds_private=finds_private),
        finds_private=finds_private,
        user_ids=None,
        skip_users=params.skip_users,
    )
    return await paginated(request, page, rows)


@overview_routes.get(
    "/users/{id}/memberships", access=ADMINISTRATOR, scopes=READ_USER_SCOPES, answers="200 [Membership]"
)
async def list_memberships(request: web.Request, params: ListMemberships) -> web.Response:
    """List the projects and groups in which the user is a direct member."""
    database = context.services(request).database
    await existing_user(database, params.id)
    page = requested_page(params, MEMBERSHIPS)
    rows = await MEMBERSHIPS.read(database, page, user_id=params.id, type=params.type)
    return await paginated(request, page, rows)
