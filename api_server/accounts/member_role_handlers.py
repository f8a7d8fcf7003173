"""`/member_roles` (supporting resource): the custom roles that invitations may name (endpoint 31).

A custom role is a name for a level; this service does not support abilities beyond that level.
"""

import attrs
from aiohttp import web

from api_server.accounts import member_role_queries, member_roles
from api_server.services import Services
from api_server.web.answers import json_text, no_content
from api_server.web.auth import Actor
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import Description, Name
from api_server.web.routes import ADMINISTRATOR, License, Role, Routes

routes = Routes()

CUSTOM_ROLES = License("custom roles", "ultimate")


@attrs.frozen(kw_only=True)
class CreateRole:
    name: Name = attrs.field(metadata={"present": True})
    base_access_level: Role
    description: Description = ""


@attrs.frozen(kw_only=True)
class RoleId:
    id: int


@routes.get("/member_roles", access=ADMINISTRATOR, license=CUSTOM_ROLES, answers="200 [MemberRole]")
async def list_roles(request: web.Request, services: Services, params: Paginated) -> web.Response:
    page = requested_page(params, member_role_queries.LISTING)
    return await paginated(request, page, await member_role_queries.list_roles(services.database, page))


@routes.post("/member_roles", access=ADMINISTRATOR, license=CUSTOM_ROLES, answers="201 MemberRole")
async def create_role(services: Services, actor: Actor, params: CreateRole) -> web.Response:
    async with services.database.transaction() as transaction:
        entity = await member_roles.create(
            transaction, params.name, params.base_access_level, params.description, actor.author
        )
    return json_text(entity, status=201)


@routes.delete("/member_roles/{id}", access=ADMINISTRATOR, license=CUSTOM_ROLES, answers="204")
async def delete_role(services: Services, actor: Actor, params: RoleId) -> web.Response:
    """Delete a custom role, provided that no member and no invitation has it."""
    async with services.database.transaction() as transaction:
        await member_roles.delete(transaction, params.id, actor.author)
    return no_content()
