"""Invitations to groups and projects: endpoints 31 to 34 (decision D8)."""

import datetime
from typing import Annotated

import attrs
from aiohttp import web

from api_server.accounts.member_role_handlers import CUSTOM_ROLES
from api_server.invitations import changes, queries
from api_server.invitations.changes import MailTools, Offer
from api_server.namespaces.access import group, project
from api_server.namespaces.members import source_of
from api_server.namespaces.resources import Group, Project
from api_server.services import Services
from api_server.web import routes as tiers
from api_server.web.answers import json_text, json_value, no_content
from api_server.web.auth import Actor
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import KEEPS_BLANKS, UNSET, AtMost, CommaList, Name, Unset
from api_server.web.routes import Role, Routes

routes = Routes()

#: Blank items are kept, because GitLab answers only commas with another error than an empty text.
Recipient = Annotated[str, AtMost(2**20), KEEPS_BLANKS]


@attrs.frozen(kw_only=True)
class Invite:
    id: str
    access_level: Role
    email: CommaList[Recipient] | None = None
    user_id: CommaList[Recipient] | None = None
    expires_at: datetime.date | None = None
    member_role_id: int | None = None
    invite_source: Name = "invitations-api"


@attrs.frozen(kw_only=True)
class ListInvitations(Paginated):
    id: str
    query: str | None = None


@attrs.frozen(kw_only=True)
class InvitationEmail:
    id: str
    email: str


@attrs.frozen(kw_only=True)
class UpdateInvitation(InvitationEmail):
    access_level: Role = Role.DEVELOPER
    expires_at: datetime.date | Unset | None = attrs.field(
        default=UNSET, metadata={"takes": datetime.date | datetime.datetime | None}
    )


@routes.post("/groups/{id}/invitations", access=group(Role.OWNER), answers="201 RefusedOutcome | Outcomes")
@routes.post(
    "/projects/{id}/invitations", access=project(Role.MAINTAINER), answers="201 RefusedOutcome | Outcomes"
)
async def invite(services: Services, actor: Actor, params: Invite, resource: Project | Group) -> web.Response:
    """Endpoint 31. Invite people. The status is 201 even if recipients are refused; the body contains the problems."""
    if params.member_role_id is not None:
        tiers.require_license(CUSTOM_ROLES, services.settings)
    invited = changes.read_recipients(params.email, params.user_id)
    offer = Offer(
        source=source_of(resource),
        level=params.access_level,
        member_role_id=params.member_role_id,
        expires_at=params.expires_at,
    )
    tools = MailTools(services.vault, services.settings)
    async with services.database.transaction() as transaction:
        problems = await changes.invite(transaction, offer, invited, actor.author, tools)
    answer = {"status": "error", "message": problems} if problems else {"status": "success"}
    return json_value(answer, status=201)


@routes.get("/groups/{id}/invitations", access=group(Role.OWNER), answers="200 [Invitation]")
@routes.get("/projects/{id}/invitations", access=project(Role.MAINTAINER), answers="200 [Invitation]")
async def list_invitations(
    request: web.Request, services: Services, params: ListInvitations, resource: Project | Group
) -> web.Response:
    """Endpoint 32. List the unanswered invitations to exactly this group or project, oldest first."""
    page = requested_page(params, queries.LISTING, default_sort="asc")
    rows = await queries.list_invitations(
        services.database, page, **source_of(resource).ids, query=params.query or None
    )
    return await paginated(request, page, rows)


@routes.put("/groups/{id}/invitations/{email}", access=group(Role.OWNER), answers="200 ChangedInvitation")
@routes.put(
    "/projects/{id}/invitations/{email}", access=project(Role.MAINTAINER), answers="200 ChangedInvitation"
)
async def update_invitation(
    services: Services, actor: Actor, params: UpdateInvitation, resource: Project | Group
) -> web.Response:
    """Endpoint 33. Update an invitation. The access level is 30 if it is not sent, and a null `expires_at` removes the
    expiry date. No mail is sent again."""
    async with services.database.transaction() as transaction:
        entity = await changes.update(
            transaction,
            source_of(resource),
            params.email,
            params.access_level,
            params.expires_at,
            actor.author,
        )
    return json_text(entity)


@routes.delete("/groups/{id}/invitations/{email}", access=group(Role.OWNER), answers="204")
@routes.delete("/projects/{id}/invitations/{email}", access=project(Role.MAINTAINER), answers="204")
async def delete_invitation(
    services: Services, actor: Actor, params: InvitationEmail, resource: Project | Group
) -> web.Response:
    """Endpoint 34. Delete an invitation. The link in its mail becomes invalid."""
    async with services.database.transaction() as transaction:
        await changes.withdraw(transaction, source_of(resource), params.email, actor.author)
    return no_content()
