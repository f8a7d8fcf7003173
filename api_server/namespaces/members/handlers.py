"""`/groups/:id/members` and `/projects/:id/members` (supporting resources)."""

import datetime

import attrs
from aiohttp import web

from api_server.accounts.users import queries as users
from api_server.namespaces.groups.access import group
from api_server.namespaces.members import changes, queries
from api_server.namespaces.members.sources import Places, Source, find_source
from api_server.namespaces.projects.access import project
from api_server.state.database import Row, Transaction
from api_server.web import context
from api_server.web.access import Role
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.authorship import author
from api_server.web.errors import ApiError, bad_parameters, bad_request, not_found, record_not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import UNSET, CommaList, Unset, parse
from api_server.web.routes import Routes, caller

routes = Routes()

#: Users that one request may add.
MOST_USERS = 100


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
    username: str | None = None
    expires_at: datetime.date | None = None


@attrs.frozen(kw_only=True)
class UpdateMember(MemberId):
    access_level: Role
    expires_at: datetime.date | Unset | None = UNSET


@attrs.frozen(kw_only=True)
class RemoveMember(MemberId):
    skip_subresources: bool = False


@routes.get("/groups/{id}/members", access=group())
@routes.get("/projects/{id}/members", access=project())
async def list_members(request: web.Request) -> web.Response:
    """Direct members, by their ids."""
    wanted = await parse(request, ListMembers)
    source = await find_source(request, wanted.id)
    return await _listed(request, wanted, source.direct)


@routes.get("/groups/{id}/members/all", access=group())
@routes.get("/projects/{id}/members/all", access=project())
async def list_all_members(request: web.Request) -> web.Response:
    """Direct and inherited members, each with her greatest role."""
    wanted = await parse(request, ListMembers)
    source = await find_source(request, wanted.id)
    return await _listed(request, wanted, source.everywhere)


async def _listed(request: web.Request, wanted: ListMembers, places: Places) -> web.Response:
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    listed = await queries.list_members(
        context.database(request), page, **places, query=wanted.query, user_ids=wanted.user_ids
    )
    return await paginated(request, page, listed)


@routes.get("/groups/{id}/members/{user_id}", access=group())
@routes.get("/projects/{id}/members/{user_id}", access=project())
async def show_member(request: web.Request) -> web.Response:
    """A direct member."""
    wanted = await parse(request, MemberId)
    source = await find_source(request, wanted.id)
    return await _shown(request, wanted.user_id, source.direct)


@routes.get("/groups/{id}/members/all/{user_id}", access=group())
@routes.get("/projects/{id}/members/all/{user_id}", access=project())
async def show_any_member(request: web.Request) -> web.Response:
    """A direct or inherited member, with her greatest role."""
    wanted = await parse(request, MemberId)
    source = await find_source(request, wanted.id)
    return await _shown(request, wanted.user_id, source.everywhere)


async def _shown(request: web.Request, user_id: int, places: Places) -> web.Response:
    shown = await queries.show_member(context.database(request), user_id, **places)
    if shown is None:
        raise record_not_found()
    return json_text(shown)


@routes.post("/groups/{id}/members", access=group(Role.OWNER))
@routes.post("/projects/{id}/members", access=project(Role.MAINTAINER))
async def add_members(request: web.Request) -> web.Response:
    """One member, or several at once, each of whom succeeds or fails for herself."""
    wanted = await parse(request, AddMember)
    if wanted.user_id and wanted.username:
        raise bad_parameters("user_id, username are mutually exclusive")
    if not (wanted.user_id or wanted.username):
        raise bad_parameters("user_id, username are missing, at least one parameter must be provided")
    source = await find_source(request, wanted.id)
    if wanted.user_id and len(wanted.user_id) > 1:
        return json_value(await _added(request, source, wanted, wanted.user_id), status=201)
    async with context.database(request).transaction() as transaction:
        user = await _user(transaction, wanted.user_id[0] if wanted.user_id else wanted.username or "")
        if user is None:
            raise not_found("User")
        await _add(request, transaction, source, wanted, user)
        shown = await queries.show_member(transaction, user.id, **source.direct)
    return json_text(shown or "null", status=201)


async def _added(
    request: web.Request, source: Source, wanted: AddMember, user_ids: list[int]
) -> dict[str, object]:
    if len(user_ids) > MOST_USERS:
        raise bad_request(f"Too many users specified (limit is {MOST_USERS})")
    problems: dict[str, object] = {}
    async with context.database(request).transaction() as transaction:
        for user_id in user_ids:
            user = await _user(transaction, user_id)
            if user is None:
                problems[str(user_id)] = "404 User Not Found"
                continue
            try:
                await _add(request, transaction, source, wanted, user)
            except ApiError as refused:
                problems[user.username] = refused.body["message"]
    return {"status": "error", "message": problems} if problems else {"status": "success"}


async def _user(transaction: Transaction, reference: int | str) -> Row | None:
    if isinstance(reference, int):
        return await users.find_user(transaction, reference)
    return await users.find_user_by_username(transaction, reference)


async def _add(
    request: web.Request, transaction: Transaction, source: Source, wanted: AddMember, user: Row
) -> None:
    await changes.add(
        transaction, source, user, wanted.access_level, author(request), expires_at=wanted.expires_at
    )


@routes.put("/groups/{id}/members/{user_id}", access=group(Role.OWNER))
@routes.put("/projects/{id}/members/{user_id}", access=project(Role.MAINTAINER))
async def update_member(request: web.Request) -> web.Response:
    """Another role; the expiry stays where it is not sent, and goes away where it is null."""
    wanted = await parse(request, UpdateMember)
    source = await find_source(request, wanted.id)
    async with context.database(request).transaction() as transaction:
        await changes.update(
            transaction,
            source,
            wanted.user_id,
            wanted.access_level,
            wanted.expires_at,
            author(request),
        )
        shown = await queries.show_member(transaction, wanted.user_id, **source.direct)
    return json_text(shown or "null")


@routes.delete("/groups/{id}/members/{user_id}", access=group())
@routes.delete("/projects/{id}/members/{user_id}", access=project())
async def remove_member(request: web.Request) -> web.Response:
    """Everybody may leave; others are removed by who manages the members. A group keeps its last owner."""
    wanted = await parse(request, RemoveMember)
    source = await find_source(request, wanted.id)
    if wanted.user_id != caller(request).user_id:
        source.require_manager()
    async with context.database(request).transaction() as transaction:
        await changes.remove(
            transaction, source, wanted.user_id, author(request), leaves_below=wanted.skip_subresources
        )
    return no_content()
