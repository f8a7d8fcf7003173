"""Pages that mails link to: confirming an address, answering an invitation, setting a new password.

Opening such a page changes nothing; its form does, once. Whoever confirms an address has proven two things: that she
reads its mail, and that the account is hers; a stranger's address is not won by a click of its owner. The page that
asks for a link to set a new password tells nobody whether an address is an account's.
"""

import asyncio
import functools

from aiohttp import web

from api_server.accounts import email_queries, emails, password_queries, passwords
from api_server.accounts.email_queries import Email
from api_server.accounts.password_queries import Account
from api_server.accounts.passwords import problem_with
from api_server.invitations import changes as invitation_changes
from api_server.invitations import queries as invitation_queries
from api_server.pages import page, sessions
from api_server.pages.sessions import Form, Visitor
from api_server.services import Key
from api_server.state.preconditions import Precondition
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.context import SERVICES
from api_server.web.rate_limits import RateLimiter


async def show_email(request: web.Request) -> web.Response:
    visitor = await sessions.visitor(request)
    email = _linked(request, await email_queries.find(context.services(request).database, _email_id(request)))
    if email is None:
        return _unknown_email(request, visitor)
    own = visitor.user is not None and visitor.user.id == email.user_id
    return page.answer(
        request, visitor, "account/email.html", email=email, own_account=own, path=request.path
    )


async def confirm_email(request: web.Request, visitor: Visitor, _form: Form) -> web.StreamResponse:
    async with context.services(request).database.transaction() as transaction:
        email = _linked(request, await email_queries.lock(transaction, _email_id(request)))
        if email is None:
            return _unknown_email(request, visitor)
        if visitor.user is None or email.user_id != visitor.user.id:
            text = f"It was added to the account @{email.username}. Sign in with that one, and try again."
            return page.say(request, visitor, "The address could not be confirmed", text, status=403)
        await emails.confirm(transaction, email, visitor.author())
    return page.say(request, visitor, f"{email.email} is confirmed")


def _email_id(request: web.Request) -> int:
    return int(request.match_info["id"])


def _linked(request: web.Request, email: Email | None) -> Email | None:
    """The address, where the link is one to it."""
    if email is None:
        return None
    token = request.match_info["token"]
    return email if emails.is_token_of(context.services(request).vault, email, token) else None


def _unknown_email(request: web.Request, visitor: Visitor) -> web.Response:
    text = "The address may have been removed from the account. Add it again to get a new link."
    return page.say(request, visitor, "There is no such address", text, status=404)


async def show_invitation(request: web.Request) -> web.Response:
    visitor = await sessions.visitor(request)
    database = context.services(request).database
    invitation = await invitation_queries.find_by_token(database, _digest(request))
    if invitation is None:
        return _unknown_invitation(request, visitor)
    own = visitor.user is not None and await invitation_queries.is_own_address(
        database, visitor.user.id, invitation.email
    )
    return page.answer(
        request,
        visitor,
        "account/invite.html",
        invitation=invitation,
        token=request.match_info["token"],
        own_address=own,
    )


async def accept_invitation(request: web.Request, visitor: Visitor, _form: Form) -> web.StreamResponse:
    """Only for somebody who has confirmed that the invited address is hers."""
    await _rely_on_inviter(request)
    async with context.services(request).database.transaction() as transaction:
        invitation = await invitation_queries.lock_by_token(transaction, _digest(request))
        if invitation is None:
            return _unknown_invitation(request, visitor)
        if (
            visitor.user is None
        ):  # only here, where what was sent is known to be a token, and fit for a header
            here = f"/-/invites/{request.match_info['token']}"
            return web.Response(status=303, headers={"Location": f"/-/sign_in?return_to={here}"})
        if not await invitation_queries.is_own_address(transaction, visitor.user.id, invitation.email):
            text = f"{invitation.email} is not a confirmed address of your account."
            return page.say(request, visitor, "The invitation could not be accepted", text, status=403)
        await invitation_changes.accept(transaction, invitation, visitor.user, visitor.author())
    return page.say(request, visitor, f"Welcome to the {invitation.kind} {invitation.source_name}")


async def decline_invitation(request: web.Request, visitor: Visitor, _form: Form) -> web.StreamResponse:
    """For anyone who has the link."""
    async with context.services(request).database.transaction() as transaction:
        invitation = await invitation_queries.lock_by_token(transaction, _digest(request))
        if invitation is None:
            return _unknown_invitation(request, visitor)
        await invitation_changes.decline(transaction, invitation, visitor.author(invitation.email))
    return page.say(request, visitor, "You have declined the invitation", "Whoever invited you is told.")


async def _rely_on_inviter(request: web.Request) -> None:
    """Nobody takes away from whoever has invited what that needs, before it is accepted."""
    services = context.services(request)
    read = functools.partial(invitation_queries.find_by_token, digest=_digest(request))
    invitation = await read(services.database)
    if invitation is not None:
        services.require_unchanged(Precondition((f"user:{invitation.created_by_id}",), invitation, read))


def _digest(request: web.Request) -> bytes:
    return digest(request.match_info["token"])


def _unknown_invitation(request: web.Request, visitor: Visitor) -> web.Response:
    text = "It may have expired, been answered already, or been taken back. Ask for a new one."
    return page.say(request, visitor, "There is no such invitation", text, status=404)


#: Forms a minute from one address.
FORMS_BY_ADDRESS = 10

BY_ADDRESS = Key[RateLimiter]("passwords_by_address")


async def show_password_question(request: web.Request) -> web.Response:
    sends_mail = bool(context.services(request).settings.smtp_url)
    visitor = await sessions.visitor(request)
    return page.answer(request, visitor, "account/password_question.html", sends_mail=sends_mail)


async def send_password_link(request: web.Request, visitor: Visitor, form: Form) -> web.StreamResponse:
    services = context.services(request)
    email = str(form.get("email", "")).strip()
    async with services.database.transaction() as transaction:
        await passwords.ask_for_link(transaction, services.settings, email, request.remote)
    text = "If there is an account with that address, a link to set a new password is on its way to it."
    return page.say(request, visitor, "Look into your mail", text)


async def show_password_form(request: web.Request) -> web.Response:
    visitor = await sessions.visitor(request)
    account = await password_queries.find(context.services(request).database, digest(_token(request)))
    return _unknown_link(request, visitor) if account is None else _password_form(request, visitor, account)


async def set_password(request: web.Request, visitor: Visitor, form: Form) -> web.StreamResponse:
    """Ends all sessions of the account."""
    services = context.services(request)
    read = functools.partial(password_queries.find, digest=digest(_token(request)))
    account = await read(services.database)
    if account is None:
        return _unknown_link(request, visitor)
    password, again = str(form.get("password", "")), str(form.get("password_confirmation", ""))
    problem = f"Password {text}." if (text := problem_with(password)) else None
    if problem or password != again:
        return _password_form(
            request, visitor, account, problem or "The two passwords are not the same.", status=400
        )
    # Takes some 50 ms of computing.
    hashed = await asyncio.to_thread(services.vault.hash_password, password)
    services.require_unchanged(Precondition((f"user:{account.id}",), account, read))
    services.revoke(f"user:{account.id}")
    async with services.database.transaction() as transaction:
        if await passwords.use_link(transaction, _token(request), hashed, request.remote) is None:
            return _unknown_link(request, visitor)
    return page.answer(request, await sessions.visitor(request), "account/password_set.html")


def _password_form(
    request: web.Request, visitor: Visitor, account: Account, problem: str = "", status: int = 200
) -> web.Response:
    values = {"token": _token(request), "username": account.username, "problem": problem}
    return page.answer(request, visitor, "account/password_form.html", status, **values)


def _token(request: web.Request) -> str:
    return request.match_info["token"]


def _unknown_link(request: web.Request, visitor: Visitor) -> web.Response:
    text = "It may have expired, or been used or replaced already. Ask for a new one."
    return page.say(request, visitor, "There is no such link", text, status=404)


def setup(app: web.Application) -> None:
    app.router.add_get(r"/-/emails/{id:\d{1,18}}/{token}", show_email)
    app.router.add_post(r"/-/emails/{id:\d{1,18}}/{token}", page.form(confirm_email))
    app.router.add_get("/-/invites/{token}", show_invitation)
    app.router.add_post("/-/invites/{token}/accept", page.form(accept_invitation))
    app.router.add_post("/-/invites/{token}/decline", page.form(decline_invitation))
    app[SERVICES][BY_ADDRESS] = RateLimiter("passwords by address", lambda: FORMS_BY_ADDRESS)
    app.router.add_get("/-/password/new", show_password_question)
    app.router.add_post("/-/password", page.form(send_password_link, BY_ADDRESS))
    app.router.add_get("/-/password/{token}", show_password_form)
    app.router.add_post("/-/password/{token}", page.form(set_password, BY_ADDRESS))
