"""Pages that mails link to: they confirm an address, answer an invitation or set a new password.

Opening such a page changes nothing; its form does, and only once. To confirm an address, a visitor needs the mailed
link and must be signed in to the account: otherwise one could add another person's address to one's own account, and
that person's click would confirm it. The page that asks for a link to set a new password does not reveal whether an
address belongs to an account.
"""

import functools

import attrs
from aiohttp import web

from api_server.accounts import email_queries, emails, password_queries, passwords
from api_server.accounts.email_queries import Email
from api_server.invitations import changes as invitation_changes
from api_server.invitations import queries as invitation_queries
from api_server.pages import account, page
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.services import Key, Services
from api_server.state.preconditions import Precondition
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.rate_limits import RateLimiter
from api_server.web.routes import ANYONE

pages = Pages()

_EMAIL = r"/-/emails/{id:\d{1,18}}/{token}"
_INVITATION = "/-/invites/{token}"


@attrs.frozen(kw_only=True)
class Link:
    token: str


@attrs.frozen(kw_only=True)
class EmailLink(Link):
    id: int


@pages.get(_EMAIL)
async def show_email(request: web.Request, visitor: Visitor, params: EmailLink) -> web.Response:
    database = context.services(request).database
    email = _linked(request, await email_queries.find(database, params.id), params.token)
    if email is None:
        return _unknown_email(request, visitor)
    return page.answer(
        request, visitor, "account/email.html", email=email, own_account=visitor.user_id == email.user_id
    )


@pages.post(_EMAIL, access=ANYONE, form_page=show_email)
async def confirm_email(request: web.Request, visitor: Visitor, params: EmailLink) -> web.Response:
    async with context.services(request).database.transaction() as transaction:
        email = _linked(request, await email_queries.lock(transaction, params.id), params.token)
        if email is None:
            return _unknown_email(request, visitor)
        if visitor.user_id != email.user_id:
            text = f"The address belongs to the account @{email.username}. Sign in with that account and try again."
            return page.message(request, visitor, "Email address not confirmed", text, status=403)
        await emails.confirm(transaction, email, visitor.author())
    return page.see_other(request, visitor, account.PROFILE, f"{email.email} confirmed.")


def _linked(request: web.Request, email: Email | None, token: str) -> Email | None:
    """Return `email` if the token of the link belongs to it, otherwise None."""
    if email is None:
        return None
    return email if emails.is_token_of(context.services(request).vault, email, token) else None


def _unknown_email(request: web.Request, visitor: Visitor) -> web.Response:
    text = (
        "The email address may have been removed from the account. Add the address again to get a new link."
    )
    return page.message(request, visitor, "Invalid confirmation link", text, status=404)


@pages.get(_INVITATION)
async def show_invitation(request: web.Request, visitor: Visitor, params: Link) -> web.Response:
    database = context.services(request).database
    invitation = await invitation_queries.find_by_token(database, digest(params.token))
    if invitation is None:
        return _unknown_invitation(request, visitor)
    is_own = visitor.user is not None and await invitation_queries.is_own_address(
        database, visitor.user.id, invitation.email
    )
    return page.answer(
        request,
        visitor,
        "account/invite.html",
        invitation=invitation,
        token=params.token,
        own_address=is_own,
    )


@pages.post(f"{_INVITATION}/accept", access=ANYONE, form_page=show_invitation)
async def accept_invitation(request: web.Request, visitor: Visitor, params: Link) -> web.Response:
    """Accept the invitation. Only a user who has confirmed the invited address as hers may do it."""
    await _require_inviter_unchanged(request, params.token)
    async with context.services(request).database.transaction() as transaction:
        invitation = await invitation_queries.lock_by_token(transaction, digest(params.token))
        if invitation is None:
            return _unknown_invitation(request, visitor)
        if visitor.user is None:
            # Not earlier: only now is the token known to be genuine, and therefore fit for a header.
            invitation_path = f"/-/invites/{params.token}"
            return page.see_other(request, visitor, f"/-/sign_in?return_to={invitation_path}")
        if not await invitation_queries.is_own_address(transaction, visitor.user.id, invitation.email):
            text = f"{invitation.email} is not a confirmed address of your account."
            return page.message(request, visitor, "Invitation not accepted", text, status=403)
        await invitation_changes.accept(transaction, invitation, visitor.user, visitor.author())
    path = f"{'/groups' if invitation.kind == 'group' else ''}/{invitation.source_path}"
    return page.see_other(
        request, visitor, path, f"Welcome to the {invitation.kind} {invitation.source_name}."
    )


@pages.post(f"{_INVITATION}/decline", access=ANYONE, form_page=show_invitation)
async def decline_invitation(request: web.Request, visitor: Visitor, params: Link) -> web.Response:
    """Decline the invitation. Anybody who has the link may do it."""
    async with context.services(request).database.transaction() as transaction:
        invitation = await invitation_queries.lock_by_token(transaction, digest(params.token))
        if invitation is None:
            return _unknown_invitation(request, visitor)
        await invitation_changes.decline(transaction, invitation, visitor.author(invitation.email))
    text = "Invitation declined. The person who invited you is notified."
    return page.see_other(request, visitor, "/", text)


async def _require_inviter_unchanged(request: web.Request, token: str) -> None:
    """Prevent others from taking away the rights of the inviter until the transaction that accepts ends."""
    services = context.services(request)
    read = functools.partial(invitation_queries.find_by_token, digest=digest(token))
    invitation = await read(services.database)
    if invitation is not None:
        services.require_unchanged(Precondition((f"user:{invitation.created_by_id}",), invitation, read))


def _unknown_invitation(request: web.Request, visitor: Visitor) -> web.Response:
    text = "The invitation may have expired, been answered or been withdrawn. Ask for a new invitation."
    return page.message(request, visitor, "Invitation not found", text, status=404)


#: Maximum number of forms per minute from one client address.
FORMS_BY_ADDRESS = 10

BY_ADDRESS = Key[RateLimiter]("passwords_by_address")


def setup(services: Services) -> None:
    services[BY_ADDRESS] = RateLimiter("passwords by address", lambda: FORMS_BY_ADDRESS)


@pages.get("/-/password/new")
async def show_password_question(request: web.Request, visitor: Visitor) -> web.Response:
    sends_mail = bool(context.services(request).settings.smtp_url)
    return page.answer(request, visitor, "account/password_question.html", sends_mail=sends_mail)


@pages.post("/-/password", access=ANYONE, form_page=show_password_question, by_address=BY_ADDRESS)
async def send_password_link(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    services = context.services(request)
    email = str(form.get("email", "")).strip()
    async with services.database.transaction() as transaction:
        await passwords.ask_for_link(transaction, services.settings, email, request.remote)
    text = "If an account with this email address exists, a link to reset the password has been sent to it."
    return page.see_other(request, visitor, "/-/sign_in", text)


@pages.get("/-/password/{token}")
async def show_password_form(request: web.Request, visitor: Visitor, params: Link) -> web.Response:
    link = await password_queries.find(context.services(request).database, digest(params.token))
    if link is None:
        return _unknown_link(request, visitor)
    return page.answer(
        request, visitor, "account/password_form.html", token=params.token, username=link.username
    )


@pages.post("/-/password/{token}", access=ANYONE, form_page=show_password_form, by_address=BY_ADDRESS)
async def set_password(request: web.Request, visitor: Visitor, params: Link, form: Form) -> web.Response:
    """Set a new password and end all sessions of the account."""
    services = context.services(request)
    read = functools.partial(password_queries.find, digest=digest(params.token))
    link = await read(services.database)
    if link is None:
        return _unknown_link(request, visitor)
    hashed = await account.hash_new_password(services, form)
    services.require_unchanged(Precondition((f"user:{link.id}",), link, read))
    services.revoke(f"user:{link.id}")
    async with services.database.transaction() as transaction:
        if await passwords.use_link(transaction, params.token, hashed, request.remote) is None:
            return _unknown_link(request, visitor)
    text = "Password changed. All sessions have been signed out. Sign in with the new password."
    return page.see_other(request, visitor, "/-/sign_in", text)


def _unknown_link(request: web.Request, visitor: Visitor) -> web.Response:
    text = "The link may have expired, been used or been replaced. Request a new link."
    return page.message(request, visitor, "Invalid password reset link", text, status=404)
