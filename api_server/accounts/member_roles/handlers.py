"""`/member_roles` (supporting resource): the custom roles that invitations may name (endpoint 31).

A custom role is a name for a level; abilities beyond its level are not among what this service knows.
"""

import attrs
from aiohttp import web

from api_server.accounts.member_roles import queries
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE
from api_server.state.database import Conflict
from api_server.web import context
from api_server.web.access import ADMINISTRATOR, Role
from api_server.web.answers import json_text, no_content
from api_server.web.authorship import author
from api_server.web.errors import bad_request, invalid, not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import parse
from api_server.web.routes import Routes
from api_server.web.tiers import Feature

routes = Routes()

CUSTOM_ROLES = Feature("custom roles", "ultimate")


@attrs.frozen(kw_only=True)
class CreateRole:
    name: str = attrs.field(metadata={"present": True})
    base_access_level: Role
    description: str = ""


@attrs.frozen(kw_only=True)
class OneRole:
    id: int


@routes.get("/member_roles", access=ADMINISTRATOR, feature=CUSTOM_ROLES)
async def list_roles(request: web.Request) -> web.Response:
    wanted = await parse(request, Paginated)
    page = wanted_page(wanted, queries.LISTING)
    return await paginated(request, page, await queries.list_roles(context.database(request), page))


@routes.post("/member_roles", access=ADMINISTRATOR, feature=CUSTOM_ROLES)
async def create_role(request: web.Request) -> web.Response:
    wanted = await parse(request, CreateRole)
    try:
        async with context.database(request).transaction() as transaction:
            made = await queries.create(
                transaction, wanted.name, wanted.description, wanted.base_access_level
            )
            await audit_trail.record(
                transaction,
                "member_role_created",
                author=author(request),
                entity=INSTANCE,
                target_id=made.id,
                target_details=wanted.name,
                message=f"Created custom role {wanted.name}",
            )
    except Conflict:
        raise invalid({"name": ["has already been taken"]}) from None
    return json_text(made.entity, status=201)


@routes.delete("/member_roles/{id}", access=ADMINISTRATOR, feature=CUSTOM_ROLES)
async def delete_role(request: web.Request) -> web.Response:
    """Only one that nobody carries, and nobody is invited with."""
    wanted = await parse(request, OneRole)
    async with context.database(request).transaction() as transaction:
        role = await queries.lock(transaction, wanted.id)
        if role is None:
            raise not_found("Member Role")
        if role.is_carried:
            text = "Role is assigned to one or more members. Remove role from all members, then delete role."
            raise bad_request(text)
        await queries.remove(transaction, role.id)
        await audit_trail.record(
            transaction,
            "member_role_deleted",
            author=author(request),
            entity=INSTANCE,
            target_id=role.id,
            target_details=role.name,
            message=f"Deleted custom role {role.name}",
        )
    return no_content()
