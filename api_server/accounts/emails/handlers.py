"""`/user/emails` and `/users/:id/emails` (supporting resources), without the address of the account itself."""

import attrs
from aiohttp import web

from api_server.accounts.emails import changes, queries
from api_server.accounts.users.lookup import existing_user
from api_server.web import context
from api_server.web.answers import json_text, no_content
from api_server.web.auth import READ_USER_SCOPES
from api_server.web.errors import not_found
from api_server.web.pagination import Paginated, paginated, wanted_page
from api_server.web.params import Name
from api_server.web.routes import ADMINISTRATOR, SIGNED_IN, Routes, author, caller

routes = Routes()


@attrs.frozen(kw_only=True)
class EmailId:
    email_id: int


@attrs.frozen(kw_only=True)
class AddEmail:
    email: Name = attrs.field(metadata={"present": True})


@attrs.frozen(kw_only=True)
class ListEmailsOf(Paginated):
    id: int


@attrs.frozen(kw_only=True)
class AddEmailTo(AddEmail):
    id: int
    skip_confirmation: bool = False


@attrs.frozen(kw_only=True)
class EmailIdOf(EmailId):
    id: int


@routes.get("/user/emails", access=SIGNED_IN, scopes=READ_USER_SCOPES)
async def list_own_emails(request: web.Request, wanted: Paginated) -> web.Response:
    return await _listed(request, wanted, caller(request).user_id)


@routes.get("/user/emails/{email_id}", access=SIGNED_IN, scopes=READ_USER_SCOPES)
async def show_own_email(request: web.Request, wanted: EmailId) -> web.Response:
    shown = await queries.show_email(context.database(request), wanted.email_id, caller(request).user_id)
    if shown is None:
        raise not_found("Email")
    return json_text(shown)


@routes.post("/user/emails", access=SIGNED_IN)
async def add_own_email(request: web.Request, wanted: AddEmail) -> web.Response:
    """Unconfirmed until the caller has followed the link that is mailed to it."""
    return await _added(request, caller(request).user_id, wanted.email, confirmed=False)


@routes.delete("/user/emails/{email_id}", access=SIGNED_IN)
async def remove_own_email(request: web.Request, wanted: EmailId) -> web.Response:
    return await _removed(request, wanted.email_id, caller(request).user_id)


@routes.get("/users/{id}/emails", access=ADMINISTRATOR, scopes=READ_USER_SCOPES)
async def list_emails(request: web.Request, wanted: ListEmailsOf) -> web.Response:
    await existing_user(context.database(request), wanted.id)
    return await _listed(request, wanted, wanted.id)


@routes.post("/users/{id}/emails", access=ADMINISTRATOR)
async def add_email(request: web.Request, wanted: AddEmailTo) -> web.Response:
    """With `skip_confirmation` the address is confirmed at once, and no mail is sent."""
    return await _added(request, wanted.id, wanted.email, confirmed=wanted.skip_confirmation)


@routes.delete("/users/{id}/emails/{email_id}", access=ADMINISTRATOR)
async def remove_email(request: web.Request, wanted: EmailIdOf) -> web.Response:
    await existing_user(context.database(request), wanted.id)
    return await _removed(request, wanted.email_id, wanted.id)


async def _listed(request: web.Request, wanted: Paginated, user_id: int) -> web.Response:
    page = wanted_page(wanted, queries.LISTING, default_sort="asc")
    return await paginated(request, page, await queries.list_emails(context.database(request), page, user_id))


async def _added(request: web.Request, user_id: int, email: str, *, confirmed: bool) -> web.Response:
    async with context.database(request).transaction() as transaction:
        user = await existing_user(transaction, user_id)
        added = await changes.add(
            transaction, user, email, author(request), context.settings(request), confirmed=confirmed
        )
    return json_text(added, status=201)


async def _removed(request: web.Request, email_id: int, user_id: int) -> web.Response:
    async with context.database(request).transaction() as transaction:
        await changes.remove(transaction, email_id, user_id, author(request))
    return no_content()
