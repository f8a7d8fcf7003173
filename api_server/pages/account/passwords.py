"""`/-/password/new`: asking for a link to set a new password; `/-/password/<token>`: the page that it leads to.

The first tells nobody whether an address is an account's. Opening the second changes nothing; its form does, once.
"""

import asyncio
import functools

from aiohttp import web

from api_server.accounts import password_queries, passwords
from api_server.accounts.password_queries import Account
from api_server.accounts.passwords import problem_with
from api_server.pages import page, sessions
from api_server.pages.sessions import Form, Visitor
from api_server.state.secrets import digest
from api_server.web import context, grounds
from api_server.web.grounds import Ground
from api_server.web.rate_limits import RateLimiter

#: Forms a minute from one address.
FORMS_BY_ADDRESS = 10

BY_ADDRESS = web.AppKey("passwords_by_address", RateLimiter)


def setup(app: web.Application) -> None:
    app[BY_ADDRESS] = RateLimiter("passwords by address", lambda: FORMS_BY_ADDRESS)
    app.router.add_get("/-/password/new", show_question)
    app.router.add_post("/-/password", page.form(ask, BY_ADDRESS))
    app.router.add_get("/-/password/{token}", show_form)
    app.router.add_post("/-/password/{token}", page.form(set_password, BY_ADDRESS))


async def show_question(request: web.Request) -> web.Response:
    return page.answer(request, await sessions.visitor(request), "account/password_question.html")


async def ask(request: web.Request, who: Visitor, form: Form) -> web.StreamResponse:
    email = str(form.get("email", "")).strip()
    async with context.database(request).transaction() as transaction:
        await passwords.ask_for_link(transaction, context.settings(request), email, request.remote)
    text = "If there is an account with that address, a link to set a new password is on its way to it."
    return page.say(request, who, "Look into your mail", text)


async def show_form(request: web.Request) -> web.Response:
    who = await sessions.visitor(request)
    account = await password_queries.find(context.database(request), digest(_token(request)))
    return _unknown(request, who) if account is None else _form(request, who, account)


async def set_password(request: web.Request, who: Visitor, form: Form) -> web.StreamResponse:
    """Ends all sessions of the account."""
    read = functools.partial(password_queries.find, digest=digest(_token(request)))
    account = await read(context.database(request))
    if account is None:
        return _unknown(request, who)
    password, again = str(form.get("password", "")), str(form.get("password_confirmation", ""))
    problem = f"Password {text}." if (text := problem_with(password)) else None
    if problem or password != again:
        return _form(request, who, account, problem or "The two passwords are not the same.", status=400)
    # Takes some 50 ms of computing.
    hashed = await asyncio.to_thread(context.vault(request).hash_password, password)
    grounds.rely_on(request, Ground((f"user:{account.id}",), account, read))
    grounds.end(request, f"user:{account.id}")
    async with context.database(request).transaction() as transaction:
        if await passwords.use_link(transaction, _token(request), hashed, request.remote) is None:
            return _unknown(request, who)
    return page.answer(request, await sessions.visitor(request), "account/password_set.html")


def _form(
    request: web.Request, who: Visitor, account: Account, problem: str = "", status: int = 200
) -> web.Response:
    values = {"token": _token(request), "username": account.username, "problem": problem}
    return page.answer(request, who, "account/password_form.html", status, **values)


def _token(request: web.Request) -> str:
    return request.match_info["token"]


def _unknown(request: web.Request, who: Visitor) -> web.Response:
    text = "It may have expired, or been used or replaced already. Ask for a new one."
    return page.say(request, who, "There is no such link", text, status=404)
