"""`/-/user_settings`: pages where users manage their own email addresses, password, access tokens and sessions."""

import asyncio
import datetime
import functools
import re
from collections.abc import Mapping

import attrs
import orjson
from aiohttp import web

from api_server.accounts import email_queries, emails, passwords, token_queries, tokens
from api_server.accounts.passwords import problem_with
from api_server.accounts.tokens import NewToken
from api_server.accounts.user_queries import User
from api_server.pages import page, problems, queries, sessions, shown_once
from api_server.pages.forms import too_many_attempts
from api_server.pages.page import pager
from api_server.pages.queries import Account
from api_server.pages.routes import Pages
from api_server.pages.sessions import Form, Visitor
from api_server.services import Key, Services
from api_server.state.listing import Page
from api_server.state.preconditions import Precondition
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.errors import bad_parameters, invalid, not_found
from api_server.web.pagination import MAX_PER_PAGE, Paginated, requested_page
from api_server.web.params import Name
from api_server.web.rate_limits import RateLimiter
from api_server.web.routes import SIGNED_IN

pages = Pages()

PROFILE = "/-/user_settings"


@attrs.frozen(kw_only=True)
class EmailId:
    id: int


def user_of(visitor: Visitor) -> User:
    """Return the signed-in user. Raise `SignInFirst` if there is none."""
    if visitor.user is None:
        raise problems.SignInFirst
    return visitor.user


@pages.get(PROFILE, access=SIGNED_IN)
async def show_profile(request: web.Request, visitor: Visitor) -> web.Response:
    first_page = Page(MAX_PER_PAGE, descending=False, counted=False)
    emails = await email_queries.list_emails(
        context.services(request).database, first_page, user_of(visitor).id
    )
    return page.answer(request, visitor, "account/profile.html", emails=orjson.loads(emails.body))


@pages.post(f"{PROFILE}/emails", form_page=show_profile)
async def add_email(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Add an address. It is unconfirmed until the link that is mailed to it has been used."""
    services = context.services(request)
    email, settings = str(form.get("email", "")).strip(), services.settings
    async with services.database.transaction() as transaction:
        await emails.add(transaction, user_of(visitor), email, visitor.author(), settings, confirmed=False)
    return page.see_other(request, visitor, PROFILE, f"A confirmation email has been sent to {email}.")


@pages.post(f"{PROFILE}/emails/{{id}}/remove")
async def remove_email(request: web.Request, visitor: Visitor, params: EmailId) -> web.Response:
    async with context.services(request).database.transaction() as transaction:
        await emails.remove(transaction, params.id, user_of(visitor).id, visitor.author())
    return page.see_other(request, visitor, PROFILE, "Email address removed.")


PASSWORD = f"{PROFILE}/password"
#: Maximum number of attempts per minute and user. Attempts to sign in are counted apart: anybody can make them.
ATTEMPTS = 5

BY_USER = Key[RateLimiter]("password_changes_by_user")


def setup(services: Services) -> None:
    services[BY_USER] = RateLimiter("password changes", lambda: ATTEMPTS)


@pages.get(PASSWORD, access=SIGNED_IN)
async def show_password_form(request: web.Request, visitor: Visitor) -> web.Response:
    return page.answer(request, visitor, "account/password.html")


@pages.post(PASSWORD, form_page=show_password_form)
async def change_password(request: web.Request, visitor: Visitor, form: Form) -> web.Response:
    """Change the password and end all other sessions of the user."""
    services = context.services(request)
    user = user_of(visitor)
    if wait := services[BY_USER].retry_after(user.id):
        raise too_many_attempts(wait)
    read = functools.partial(queries.find_account, login=user.username)
    account = await read(services.database)
    if account is None:
        raise not_found("User")
    await _check_present_password(services, account, form)
    hashed = await hash_new_password(services, form)
    services.require_unchanged(Precondition((f"user:{user.id}",), account, read))
    services.revoke(f"user:{user.id}")
    async with services.database.transaction() as transaction:
        await passwords.change(transaction, user.id, hashed, request.remote)
        new_session = await sessions.begin(request, transaction, user)
    response = page.see_other(
        request, new_session, PASSWORD, "Password changed. All other sessions have been signed out."
    )
    sessions.remember(request, response, new_session)
    return response


async def _check_present_password(services: Services, account: Account, form: Form) -> None:
    """Raise 400 if the form does not contain the account's present password."""
    present, stored = str(form.get("present_password", "")), account.password_hash
    # It takes about 50 ms of processor time.
    matches = await asyncio.to_thread(services.vault.password_matches, present, stored)
    if not matches or stored is None:
        raise invalid({"present_password": ["The current password is incorrect."]})


async def hash_new_password(services: Services, form: Form) -> str:
    """Return the hash of the password that was typed twice. Raise 400 if it is unsuitable or the two texts differ."""
    password = str(form.get("password", ""))
    if text := problem_with(password):
        raise invalid({"password": [text]})
    if password != form.get("password_confirmation"):
        raise invalid({"password_confirmation": ["The new passwords do not match."]})
    # It takes about 50 ms of processor time.
    return await asyncio.to_thread(services.vault.hash_password, password)


TOKENS = f"{PROFILE}/personal_access_tokens"
#: The scopes that are offered for new tokens, with what each allows.
SCOPES: Mapping[str, str] = {
    "api": "Full access to the API and Git with your permissions",
    "read_api": "Read access to the API with your permissions",
    "read_user": "Read user profiles",
    "read_repository": "Clone, fetch and read files",
    "write_repository": "Clone, fetch and push",
    "create_runner": "Create runners",
    "manage_runner": "Edit and remove runners",
    "self_rotate": "Rotate this token",
}
FOR_ADMINISTRATORS: Mapping[str, str] = {"sudo": "Perform API actions as any user"}
_LIFETIME = datetime.timedelta(days=30)


@attrs.frozen(kw_only=True)
class ListTokens(Paginated):
    pass


@attrs.frozen(kw_only=True)
class CreateToken:
    name: Name = attrs.field(metadata={"present": True})
    scopes: list[str] = attrs.Factory(list)
    expires_at: datetime.date | None = None


@attrs.frozen(kw_only=True)
class TokenId:
    id: int


@pages.get(TOKENS, access=SIGNED_IN)
async def list_tokens(request: web.Request, visitor: Visitor, params: ListTokens) -> web.Response:
    services = context.services(request)
    part = requested_page(params, token_queries.LISTING)
    rows = await token_queries.list_tokens(services.database, part, user_id=user_of(visitor).id, active=True)
    return page.answer(
        request,
        visitor,
        "account/tokens.html",
        tokens=orjson.loads(rows.body),
        pages=pager(request, part, rows),
        offered=[(scope, scope, meaning) for scope, meaning in _offered(visitor).items()],
        last_day=services.now.date() + _LIFETIME,
        made=shown_once.shown(request, visitor),
    )


@pages.post(TOKENS, form_page=list_tokens)
async def create_token(request: web.Request, visitor: Visitor, params: CreateToken) -> web.Response:
    """Create a token and show it once."""
    services, user = context.services(request), user_of(visitor)
    if not params.scopes:
        raise invalid({"scopes": ["Select at least one scope."]})
    if not set(params.scopes) <= set(_offered(visitor)):
        raise bad_parameters("scopes does not have a valid value")
    if params.expires_at is not None and params.expires_at <= services.now.date():
        raise invalid({"expires_at": ["must be in the future"]})
    new = NewToken(user_id=user.id, **attrs.asdict(params))
    async with services.database.transaction() as transaction:
        created_token = await tokens.create(transaction, new, user.username, user.name, visitor.author())
    text = orjson.loads(created_token)["token"]
    return shown_once.show(request, visitor, TOKENS, shown_once.NewToken(params.name, text))


@pages.post(f"{TOKENS}/{{id}}/revoke")
async def revoke_token(request: web.Request, visitor: Visitor, params: TokenId) -> web.Response:
    services = context.services(request)
    token = await token_queries.find_token(services.database, params.id)
    if token is None or token.user_id != user_of(visitor).id:
        raise not_found("Token")
    services.revoke(f"token:{token.id}")
    async with services.database.transaction() as transaction:
        await tokens.revoke(services, transaction, token, visitor.author())
    return page.see_other(request, visitor, TOKENS, f"Token {token.name} revoked.")


def _offered(visitor: Visitor) -> dict[str, str]:
    return {**SCOPES, **(FOR_ADMINISTRATORS if visitor.is_admin else {})}


SESSIONS = f"{PROFILE}/active_sessions"
#: Maximum number of sessions listed. Older ones can be ended only together with all others.
MAX_SESSIONS = 100

#: Words in `User-Agent` headers, and the browsers and systems that they stand for. The first word found decides.
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
    rows = await queries.list_sessions(
        context.services(request).database, user_of(visitor).id, digest(visitor.cookie), MAX_SESSIONS
    )
    with_browsers = [(session, browser_named(session.user_agent or "")) for session in rows]
    return page.answer(request, visitor, "account/sessions.html", sessions=with_browsers)


@pages.post(f"{SESSIONS}/{{id}}/end")
async def end_session(request: web.Request, visitor: Visitor, params: SessionId) -> web.Response:
    services = context.services(request)
    user = user_of(visitor)
    services.revoke(f"user:{user.id}")
    async with services.database.transaction() as transaction:
        await queries.end_session(transaction, user.id, params.id)
    return page.see_other(request, visitor, SESSIONS, "Session ended.")


@pages.post(f"{SESSIONS}/end_others")
async def end_others(request: web.Request, visitor: Visitor) -> web.Response:
    services = context.services(request)
    user = user_of(visitor)
    services.revoke(f"user:{user.id}")
    async with services.database.transaction() as transaction:
        await queries.end_other_sessions(transaction, user.id, digest(visitor.cookie))
    return page.see_other(request, visitor, SESSIONS, "All other sessions ended.")


def browser_named(user_agent: str) -> str:
    """Return the browser of a `User-Agent`, such as `Firefox on Linux`; the header's beginning if it is unknown."""
    browser = next((name for word, name in _BROWSERS.items() if word in user_agent), "")
    system = next((name for word, name in _SYSTEMS.items() if word in user_agent), "")
    if browser:
        return f"{browser} on {system}" if system else browser
    return re.sub(r"\s+", " ", user_agent)[:60] or "Unknown browser"
