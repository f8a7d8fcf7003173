"""`/-/invites/<token>`: the page that the mail links to (decision D8). Opening it changes nothing; its forms do."""

import functools

from aiohttp import web

from api_server.invitations import changes, queries
from api_server.pages import page, sessions
from api_server.pages.sessions import Form, Visitor
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.grounds import Ground, rely_on


def setup(app: web.Application) -> None:
    app.router.add_get("/-/invites/{token}", show)
    app.router.add_post("/-/invites/{token}/accept", page.form(accept))
    app.router.add_post("/-/invites/{token}/decline", page.form(decline))


async def show(request: web.Request) -> web.Response:
    who = await sessions.visitor(request)
    database = context.database(request)
    invitation = await queries.find_by_token(database, _digest(request))
    if invitation is None:
        return _unknown(request, who)
    own = who.user is not None and await queries.is_own_address(database, who.user.id, invitation.email)
    return page.answer(
        request,
        who,
        "account/invite.html",
        invitation=invitation,
        token=request.match_info["token"],
        own_address=own,
    )


async def accept(request: web.Request, who: Visitor, _form: Form) -> web.StreamResponse:
    """Only for somebody who has confirmed that the invited address is hers."""
    await _rely_on_inviter(request)
    async with context.database(request).transaction() as transaction:
        invitation = await queries.lock_by_token(transaction, _digest(request))
        if invitation is None:
            return _unknown(request, who)
        if who.user is None:  # only here, where what was sent is known to be a token, and fit for a header
            here = f"/-/invites/{request.match_info['token']}"
            return web.Response(status=303, headers={"Location": f"/-/sign_in?return_to={here}"})
        if not await queries.is_own_address(transaction, who.user.id, invitation.email):
            text = f"{invitation.email} is not a confirmed address of your account."
            return page.say(request, who, "The invitation could not be accepted", text, status=403)
        await changes.accept(transaction, invitation, who.user, who.author())
    return page.say(request, who, f"Welcome to the {invitation.kind} {invitation.source_name}")


async def decline(request: web.Request, who: Visitor, _form: Form) -> web.StreamResponse:
    """For anyone who has the link."""
    async with context.database(request).transaction() as transaction:
        invitation = await queries.lock_by_token(transaction, _digest(request))
        if invitation is None:
            return _unknown(request, who)
        await changes.decline(transaction, invitation, who.author(invitation.email))
    return page.say(request, who, "You have declined the invitation", "Whoever invited you is told.")


async def _rely_on_inviter(request: web.Request) -> None:
    """Nobody takes away from whoever has invited what that needs, before it is accepted."""
    read = functools.partial(queries.find_by_token, digest=_digest(request))
    invitation = await read(context.database(request))
    if invitation is not None:
        rely_on(request, Ground((f"user:{invitation.created_by_id}",), invitation, read))


def _digest(request: web.Request) -> bytes:
    return digest(request.match_info["token"])


def _unknown(request: web.Request, who: Visitor) -> web.Response:
    text = "It may have expired, been answered already, or been taken back. Ask for a new one."
    return page.say(request, who, "There is no such invitation", text, status=404)
