"""`/-/sign_in` and `/-/sign_out`: sessions begin with a password, or with a link that the operator has created.

Each sign-in and each failure with a password is audited, except for failures above the limits.
"""

import asyncio
import functools
import re
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.accounts import sign_in_links
from api_server.pages import page, queries, sessions
from api_server.pages.forms import too_many_attempts
from api_server.pages.queries import Account, CountedAccount
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.services import Key, Services
from api_server.state import audit_trail
from api_server.state.audit_trail import INSTANCE, Author
from api_server.state.preconditions import Precondition
from api_server.web import context
from api_server.web.errors import ApiError
from api_server.web.rate_limits import RateLimiter
from api_server.web.routes import ANYONE

#: Maximum number of attempts per minute, from one client address and for one account. More are refused and not audited.
ATTEMPTS_BY_ADDRESS = 10
ATTEMPTS_BY_LOGIN = 5
#: Maximum number of audited failures with unknown logins per minute, so that many addresses cannot fill the trail.
RECORDED_UNKNOWN = 60

BY_ADDRESS = Key[RateLimiter]("sign_in_by_address")
BY_LOGIN = Key[RateLimiter]("sign_in_by_login")
UNKNOWN = Key[RateLimiter]("sign_in_unknown")

_LONGEST = 1024
#: Paths to which signing in may redirect: only our own pages, so nothing that a browser takes for a host's name.
_RETURN_TO = re.compile(r"/(?!/)[!-\[\]-~]{0,2000}", re.ASCII)


def _own_page(return_to: object) -> str:
    fits = isinstance(return_to, str) and _RETURN_TO.fullmatch(return_to) and "/.." not in return_to
    return str(return_to) if fits else "/"


pages = Pages()


def setup(services: Services) -> None:
    services[BY_ADDRESS] = RateLimiter("sign in by address", lambda: ATTEMPTS_BY_ADDRESS)
    services[BY_LOGIN] = RateLimiter("sign in by login", lambda: ATTEMPTS_BY_LOGIN)
    services[UNKNOWN] = RateLimiter("unknown sign in", lambda: RECORDED_UNKNOWN)


@attrs.frozen(kw_only=True)
class SignIn:
    """The parameters of the form. `return_to` is the page that the visitor wanted to open."""

    return_to: Any = attrs.field(default="/", converter=_own_page)


@pages.get("/-/sign_in")
async def show_form(request: web.Request, visitor: Visitor, params: SignIn) -> web.Response:
    if visitor.user and request.method != "POST":
        return page.see_other(request, visitor, params.return_to)
    return page.answer(request, visitor, "sign_in.html", return_to=params.return_to)


@pages.post("/-/sign_in", access=ANYONE, form_page=show_form, by_address=BY_ADDRESS)
async def sign_in(request: web.Request, visitor: Visitor, params: SignIn, form: Form) -> web.Response:
    services = context.services(request)
    login, password = _text(form, "login").strip(), _text(form, "password")
    if wait := services[BY_LOGIN].retry_after(login.lower()):
        raise too_many_attempts(wait)
    account = await queries.find_account(services.database, login)
    # It takes about 50 ms of processor time, with or without an account.
    hashed = account.password_hash if account else None
    matches = await asyncio.to_thread(services.vault.password_matches, password, hashed)
    if account is None or not matches or account.password_hash is None or account.state != "active":
        await _record_failure(request, account, login)
        blocked = matches and account is not None and account.state != "active"
        problem = "Your account has been blocked." if blocked else "Invalid login or password."
        raise ApiError(401, {"message": problem})
    # If the password is changed meanwhile, the old one must not begin a session.
    read = functools.partial(queries.find_account, login=login)
    services.require_unchanged(Precondition((f"user:{account.id}",), account, read))
    response = page.see_other(request, visitor, params.return_to)
    sessions.remember(request, response, await _begin(request, account, "password"))
    return response


@attrs.frozen(kw_only=True)
class SignInLink:
    token: str


@pages.get("/-/sign_in/{token}")
async def show_link(request: web.Request, visitor: Visitor, params: SignInLink) -> web.Response:
    """Show the form of a sign-in link. Opening the page does not use up the link, because programs open links too."""
    account = await _linked(request, params.token)
    if account is None:
        return _unknown_link(request, visitor)
    return page.answer(request, visitor, "sign_in_link.html", account=account)


@pages.post("/-/sign_in/{token}", access=ANYONE, form_page=show_link, by_address=BY_ADDRESS)
async def use_link(request: web.Request, visitor: Visitor, params: SignInLink) -> web.Response:
    account = await _linked(request, params.token)
    if account is None:
        return _unknown_link(request, visitor)
    read = functools.partial(queries.find_counted_account, user_id=account.id)
    context.services(request).require_unchanged(Precondition((f"user:{account.id}",), account, read))
    # If the link is used twice at the same time, the second use waits for the first and is then judged again.
    context.services(request).revoke(f"user:{account.id}")
    response = page.see_other(request, visitor, "/")
    sessions.remember(request, response, await _begin(request, account, "link"))
    return response


async def _linked(request: web.Request, token: str) -> CountedAccount | None:
    """Return the account that the link signs in to, or None if the link is not (or no longer) valid or the account is
    not active."""
    services = context.services(request)
    user_id = sign_in_links.user_named(token, services.database.now)
    account = user_id and await queries.find_counted_account(services.database, user_id)
    if not account or account.state != "active":
        return None
    return account if sign_in_links.is_valid(services.vault, token, account.sign_in_count) else None


def _unknown_link(request: web.Request, visitor: Visitor) -> web.Response:
    text = (
        "A sign-in link works once, for 15 minutes, and only until the next sign-in. The operator of this service can "
        "create a new link with `forgelet user sign-in-link NAME`."
    )
    return page.message(request, visitor, "Invalid or expired sign-in link", text, status=404)


@pages.post("/-/sign_out", access=ANYONE)
async def sign_out(request: web.Request, visitor: Visitor) -> web.Response:
    async with context.services(request).database.transaction() as transaction:
        await sessions.end(request, transaction)
    response = page.see_other(request, visitor, "/-/sign_in")
    sessions.forget(request, response)
    return response


@pages.get("/-/sign_out")
async def ask_to_sign_out(request: web.Request, visitor: Visitor) -> web.Response:
    """Show the form that signs out. Opening an address must not do it, because other sites can make a browser open
    it."""
    return page.answer(request, visitor, "sign_out.html")


def _text(form: Form, name: str) -> str:
    return str(form.get(name, ""))[:_LONGEST]


async def _begin(request: web.Request, account: Account, proof: Literal["password", "link"]) -> Visitor:
    """Begin a session of the account, and audit which `proof` it was begun with. Return the signed-in visitor."""
    async with context.services(request).database.transaction() as transaction:
        signed_in = await sessions.begin(request, transaction, account)
        author = signed_in.author()
        await audit_trail.record(transaction, f"authenticated_with_{proof}", author, account.entity)
    return signed_in


async def _record_failure(request: web.Request, account: Account | None, login: str) -> None:
    """Audit a failed attempt: in the account's own trail, or in the instance's if the account is unknown."""
    services = context.services(request)
    if account is None and services[UNKNOWN].retry_after("all"):
        return
    async with services.database.transaction() as transaction:
        author = Author(id=-1, name=login, ip_address=request.remote)
        about = account.entity if account else INSTANCE.target(None, login)
        await audit_trail.record(transaction, "login_failed_with_standard_authentication", author, about)
