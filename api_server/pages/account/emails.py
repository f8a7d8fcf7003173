"""`/-/emails/<id>/<token>`: the page that confirms an address. Opening it changes nothing; its form does.

Who confirms has proven two things: that she reads the mail of the address, and that the account is hers. A stranger's
address is not won by a click of its owner.
"""

from aiohttp import web

from api_server.accounts import email_queries, emails
from api_server.accounts.email_queries import Email
from api_server.pages import page, sessions
from api_server.pages.sessions import Form, Visitor
from api_server.web import context


def setup(app: web.Application) -> None:
    app.router.add_get(r"/-/emails/{id:\d{1,18}}/{token}", show)
    app.router.add_post(r"/-/emails/{id:\d{1,18}}/{token}", page.form(confirm))


async def show(request: web.Request) -> web.Response:
    who = await sessions.visitor(request)
    email = _linked(request, await email_queries.find(context.database(request), _id(request)))
    if email is None:
        return _unknown(request, who)
    own = who.user is not None and who.user.id == email.user_id
    return page.answer(request, who, "account/email.html", email=email, own_account=own, path=request.path)


async def confirm(request: web.Request, who: Visitor, _form: Form) -> web.StreamResponse:
    async with context.database(request).transaction() as transaction:
        email = _linked(request, await email_queries.lock(transaction, _id(request)))
        if email is None:
            return _unknown(request, who)
        if who.user is None or email.user_id != who.user.id:
            text = f"It was added to the account @{email.username}. Sign in with that one, and try again."
            return page.say(request, who, "The address could not be confirmed", text, status=403)
        await emails.confirm(transaction, email, who.author())
    return page.say(request, who, f"{email.email} is confirmed")


def _id(request: web.Request) -> int:
    return int(request.match_info["id"])


def _linked(request: web.Request, email: Email | None) -> Email | None:
    """The address, where the link is one to it."""
    if email is None:
        return None
    token = request.match_info["token"]
    return email if emails.is_token_of(context.vault(request), email, token) else None


def _unknown(request: web.Request, who: Visitor) -> web.Response:
    text = "The address may have been removed from the account. Add it again to get a new link."
    return page.say(request, who, "There is no such address", text, status=404)
