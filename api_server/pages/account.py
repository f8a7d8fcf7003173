"""`/-/user_settings`: pages on which somebody looks after her own account: addresses, password, tokens and sessions."""

import asyncio
import datetime
import functools
import re
from collections.abc import Mapping
from typing import Any

import attrs
import orjson
from aiohttp import web

from api_server.accounts import email_queries, emails, passwords, token_queries, tokens
from api_server.accounts.passwords import problem_with
from api_server.accounts.tokens import NewToken
from api_server.accounts.user_queries import User
from api_server.pages import page, problems, queries, sessions
from api_server.pages.page import pager
from api_server.pages.queries import Account
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.services import Key, Services
from api_server.state.listing import Page
from api_server.state.preconditions import Precondition
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.errors import not_found
from api_server.web.pagination import MAX_PER_PAGE, Paginated, wanted_page
from api_server.web.rate_limits import RateLimiter
from api_server.web.routes import SIGNED_IN

pages = Pages()

PROFILE = "/-/user_settings"


@attrs.frozen(kw_only=True)
class EmailId:
    id: int


def user_of(visitor: Visitor) -> User:
    """Who has signed in; for pages that nobody else reaches."""
    if visitor.user is None:
        raise problems.SignInFirst
    return visitor.user


@pages.get(PROFILE, access=SIGNED_IN)
async def show_profile(request: web.Request, visitor: Visitor) -> web.Response:
    most = Page(MAX_PER_PAGE, descending=False, counted=False)
    listed = await email_queries.list_emails(context.services(request).database, most, user_of(visitor).id)
    return page.answer(request, visitor, "account/profile.html", emails=orjson.loads(listed.body))


@pages.post(f"{PROFILE}/emails", form_page=show_profile)
async def add_email(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Unconfirmed, until somebody has followed the link that is mailed there."""
    services = context.services(request)
    email, settings = str(form.get("email", "")).strip(), services.settings
    async with services.database.transaction() as transaction:
        await emails.add(transaction, user_of(visitor), email, visitor.author(), settings, confirmed=False)
    return page.see_other(
        request, visitor, PROFILE, f"A mail with a link that confirms it is on its way to {email}."
    )


@pages.post(f"{PROFILE}/emails/{{id}}/remove")
async def remove_email(request: web.Request, visitor: Visitor, params: EmailId) -> web.Response:
    async with context.services(request).database.transaction() as transaction:
        await emails.remove(transaction, params.id, user_of(visitor).id, visitor.author())
    return page.see_other(request, visitor, PROFILE, "The address is removed.")


PASSWORD = f"{PROFILE}/password"
#: Attempts a minute of one account. Not counted with those to sign in, which anybody can make in her name.
ATTEMPTS = 5

BY_USER = Key[RateLimiter]("password_changes_by_user")


def setup(services: Services) -> None:
    services[BY_USER] = RateLimiter("password changes", lambda: ATTEMPTS)


@pages.get(PASSWORD, access=SIGNED_IN)
async def show_password_form(request: web.Request, visitor: Visitor) -> web.Response:
    return page.answer(request, visitor, "account/password.html", problems=[])


@pages.post(PASSWORD)
async def change_password(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Ends all other sessions."""
    services = context.services(request)
    user = user_of(visitor)
    if wait := services[BY_USER].retry_after(user.id):
        return _password_refused(
            request, visitor, f"There were too many attempts. Try again in {wait} seconds.", 429
        )
    read = functools.partial(queries.find_account, login=user.username)
    account = await read(services.database)
    if account is None:
        raise not_found("User")
    if problem := await _password_problem(request, account, form):
        return _password_refused(request, visitor, problem, 400)
    vault = services.vault
    hashed = await asyncio.to_thread(vault.hash_password, str(form.get("password", "")))
    services.require_unchanged(Precondition((f"user:{user.id}",), account, read))
    services.revoke(f"user:{user.id}")
    async with services.database.transaction() as transaction:
        await passwords.change(transaction, user.id, hashed, request.remote)
        begun = await sessions.begin(request, transaction, user)
    response = page.see_other(
        request, begun, PASSWORD, "Your password is changed. All other sessions have ended."
    )
    sessions.remember(request, response, begun)
    return response


async def _password_problem(request: web.Request, account: Account, form: Form) -> str:
    """Why the password cannot be changed to that, or ""."""
    present, new = str(form.get("present_password", "")), str(form.get("password", ""))
    # Takes some 50 ms of computing.
    matches = await asyncio.to_thread(
        context.services(request).vault.password_matches, present, account.password_hash
    )
    if not matches or account.password_hash is None:
        return "The present password is not right."
    if text := problem_with(new):
        return f"Password {text}."
    return "" if new == form.get("password_confirmation") else "The two new passwords are not the same."


def _password_refused(request: web.Request, visitor: Visitor, problem: str, status: int) -> web.Response:
    return page.answer(request, visitor, "account/password.html", status, problems=[problem])


TOKENS = f"{PROFILE}/personal_access_tokens"
#: What is offered, and what it opens.
SCOPES: Mapping[str, str] = {
    "api": "Everything that you may, by the API and git",
    "read_api": "Read everything that you may, by the API",
    "read_user": "Read users",
    "read_repository": "Clone and fetch, read files",
    "write_repository": "Clone, fetch and push",
    "create_runner": "Make runners",
    "manage_runner": "Change and remove runners",
    "self_rotate": "Take its own place by a new token",
}
FOR_ADMINISTRATORS: Mapping[str, str] = {"sudo": "Act with the rights of any user"}
_LIFETIME = datetime.timedelta(days=30)
_LONGEST_NAME = 255


@attrs.frozen(kw_only=True)
class ListTokens(Paginated):
    pass


@attrs.frozen(kw_only=True)
class TokenId:
    id: int


@pages.get(TOKENS, access=SIGNED_IN)
async def list_tokens(request: web.Request, visitor: Visitor, params: ListTokens) -> web.Response:
    until = context.services(request).now.date() + _LIFETIME
    return await _token_page(request, visitor, params, {"expires_at": until.isoformat()})


@pages.post(TOKENS)
async def create_token(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Answered at once, and not by a redirect: the token's text is in no address, cookie or table."""
    services = context.services(request)
    user, today = user_of(visitor), services.now.date()
    scopes = [scope for scope in _offered(visitor) if f"scope_{scope}" in form]
    name, until = str(form.get("name", "")).strip(), str(form.get("expires_at", "")).strip()
    problems = _token_problems(name, scopes, until, today)
    if problems:
        return await _token_page(request, visitor, ListTokens(), form, problems=problems, status=400)
    expires_at = datetime.date.fromisoformat(until) if until else None
    new = NewToken(user_id=user.id, name=name, scopes=scopes, expires_at=expires_at)
    async with services.database.transaction() as transaction:
        made = await tokens.create(transaction, new, user.username, user.name, visitor.author())
    return await _token_page(request, visitor, ListTokens(), {}, made=orjson.loads(made))


@pages.post(f"{TOKENS}/{{id}}/revoke")
async def revoke_token(request: web.Request, visitor: Visitor, params: TokenId) -> web.Response:
    services = context.services(request)
    token = await token_queries.find_token(services.database, params.id)
    if token is None or token.user_id != user_of(visitor).id:
        raise not_found("Token")
    services.revoke(f"token:{token.id}")
    async with services.database.transaction() as transaction:
        await tokens.revoke(services, transaction, token, visitor.author())
    return page.see_other(request, visitor, TOKENS, f"The token {token.name} is revoked.")


def _offered(visitor: Visitor) -> dict[str, str]:
    return {**SCOPES, **(FOR_ADMINISTRATORS if visitor.is_admin else {})}


def _token_problems(name: str, scopes: list[str], until: str, today: datetime.date) -> list[str]:
    """What is wrong with a token to be, in sentences."""
    found = []
    if not name:
        found.append("Give it a name, by which you know it again.")
    if len(name) > _LONGEST_NAME:
        found.append(f"The name is too long (maximum is {_LONGEST_NAME} characters).")
    if not scopes:
        found.append("Choose at least one scope.")
    try:
        passed = bool(until) and datetime.date.fromisoformat(until) <= today
    except ValueError:
        found.append("The last day has to be written as 2026-12-31.")
    else:
        found += ["The last day has to be in the future."] if passed else []
    return found


async def _token_page(
    request: web.Request,
    visitor: Visitor,
    params: ListTokens,
    form: Form,
    *,
    made: dict[str, Any] | None = None,
    problems: list[str] | None = None,
    status: int = 200,
) -> web.Response:
    part = wanted_page(params, token_queries.LISTING)
    listed = await token_queries.list_tokens(
        context.services(request).database,
        part,
        user_id=user_of(visitor).id,
        revoked=None,
        active=True,
        search=None,
    )
    return page.answer(
        request,
        visitor,
        "account/tokens.html",
        status,
        tokens=orjson.loads(listed.body),
        pages=pager(request, part, listed),
        offered=_offered(visitor),
        form=form,
        made=made,
        problems=problems or [],
    )


SESSIONS = f"{PROFILE}/active_sessions"
#: Sessions that are listed; all others can be ended together.
MOST_SESSIONS = 100

#: What browsers and systems say of themselves, of which the first that fits is meant.
_BROWSERS = {"Edg": "Edge", "OPR": "Opera", "Firefox": "Firefox", "Chrom": "Chromium", "Safari": "Safari"}
_SYSTEMS = {
    "Android": "Android",
    "iPhone": "iOS",
    "iPad": "iOS",
    "Windows": "Windows",
    "Mac OS": "macOS",
    "Linux": "Linux",
}


@attrs.frozen(kw_only=True)
class SessionId:
    id: int


@pages.get(SESSIONS, access=SIGNED_IN)
async def list_sessions(request: web.Request, visitor: Visitor) -> web.Response:
    found = await queries.list_sessions(
        context.services(request).database, user_of(visitor).id, digest(visitor.cookie), MOST_SESSIONS
    )
    shown = [(each, browser_named(each.user_agent or "")) for each in found]
    return page.answer(request, visitor, "account/sessions.html", sessions=shown)


@pages.post(f"{SESSIONS}/{{id}}/end")
async def end_session(request: web.Request, visitor: Visitor, params: SessionId) -> web.Response:
    services = context.services(request)
    user = user_of(visitor)
    services.revoke(f"user:{user.id}")
    async with services.database.transaction() as transaction:
        await queries.end_session(transaction, user.id, params.id)
    return page.see_other(request, visitor, SESSIONS, "The session has ended.")


@pages.post(f"{SESSIONS}/end_others")
async def end_others(request: web.Request, visitor: Visitor) -> web.Response:
    services = context.services(request)
    user = user_of(visitor)
    services.revoke(f"user:{user.id}")
    async with services.database.transaction() as transaction:
        await queries.end_other_sessions(transaction, user.id, digest(visitor.cookie))
    return page.see_other(request, visitor, SESSIONS, "All other sessions have ended.")


def browser_named(user_agent: str) -> str:
    """`Firefox on Linux`, of what a browser calls itself; the beginning of that where it is none of those known."""
    browser = next((name for word, name in _BROWSERS.items() if word in user_agent), "")
    system = next((name for word, name in _SYSTEMS.items() if word in user_agent), "")
    if browser:
        return f"{browser} on {system}" if system else browser
    return re.sub(r"\s+", " ", user_agent)[:60] or "Unknown"
