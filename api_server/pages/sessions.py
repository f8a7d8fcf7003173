"""Sessions of browsers: the cookie, signing in and out, and the token that protects forms.

The cookie's value is random. The database stores its digest once a user has signed in. Anonymous visitors have a cookie
too, because the token in each form (against cross-site requests) is derived from it. Signing in always sets a new one.
"""

import datetime
import functools
import hmac
import re
import secrets
from collections.abc import Mapping
from typing import Any

import attrs
from aiohttp import web

from api_server.accounts.user_queries import User
from api_server.pages import queries
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.state.preconditions import Precondition
from api_server.state.secrets import digest
from api_server.web import context
from api_server.web.auth import WRITE_SCOPES, Actor, note_activity
from api_server.web.request_data import cookie_value
from api_server.web.routes import CALLER

#: The fields of a sent form.
Form = Mapping[str, Any]

#: Instead of the id of an anonymous visitor, for statements that need one.
NOBODY = 0

LIFETIME = datetime.timedelta(days=14)
_LONGEST_USER_AGENT = 255
_COOKIE_NAME = "forgelet_session"
_COOKIE = re.compile(r"[\w-]{43}", re.ASCII)


@attrs.frozen
class Visitor:
    """The sender of a request to a page. `user` is None before signing in."""

    cookie: str = attrs.field(repr=False)
    user: User | None
    csrf_token: str = attrs.field(repr=False)
    ip_address: str | None
    #: Whether the browser has sent no cookie yet. Pages with a form set it.
    is_new: bool = False

    @property
    def user_id(self) -> int | None:
        return self.user.id if self.user else None

    @property
    def is_admin(self) -> bool:
        return self.user is not None and self.user.admin

    def author(self, name: str = "") -> Author:
        """Return the author for audit events. `name` is used for an anonymous visitor."""
        if self.user is None:
            return Author(id=-1, name=name, ip_address=self.ip_address)
        return Author(
            id=self.user.id,
            name=self.user.name,
            email=self.user.email,
            username=self.user.username,
            ip_address=self.ip_address,
        )

    def accepts_form(self, form: Form) -> bool:
        """Return whether the sent form came from one of our pages in this browser."""
        token = form.get("csrf_token", "")
        return isinstance(token, str) and hmac.compare_digest(token.encode(), self.csrf_token.encode())


VISITOR = web.RequestKey("visitor", Visitor)


async def visitor(request: web.Request) -> Visitor:
    """Return the visitor of the cookie, or one with a new cookie. A signed-in user becomes the request's caller, with
    the rights of a token of scope `api`."""
    services = context.services(request)
    sent_cookie = cookie_value(request, _cookie_name(request))
    is_valid = _COOKIE.fullmatch(sent_cookie) is not None
    cookie = sent_cookie if is_valid else _new_cookie()
    user = await queries.user_of_session(services.database, digest(cookie)) if is_valid else None
    if user is not None:
        await note_activity(services, user.id, user.last_activity_on)
        read = functools.partial(queries.user_of_session, digest=digest(cookie))
        services.require_unchanged(Precondition((f"user:{user.id}",), user, read))
        scopes = frozenset(WRITE_SCOPES)
        request[CALLER] = Actor(
            user.id, user.username, user.name, user.email, user.admin, scopes, address=request.remote
        )
    result = request[VISITOR] = _visitor(request, cookie, user, is_new=not is_valid)
    return result


async def signed_in_user(request: web.Request) -> int | None:
    """Return the id of the user who is signed in with this browser, for routes that are no pages. Query nothing without
    a cookie."""
    return (await visitor(request)).user_id if cookie_value(request, _cookie_name(request)) else None


def anonymous_visitor(request: web.Request) -> Visitor:
    """Return an anonymous visitor, for answers that cannot use the database."""
    return request.get(VISITOR) or _visitor(request, _new_cookie(), None)


def _visitor(request: web.Request, cookie: str, user: User | None, *, is_new: bool = False) -> Visitor:
    token = context.services(request).vault.derived_token("", b"form of a page:" + cookie.encode())
    return Visitor(cookie, user, token, request.remote, is_new)


async def begin(request: web.Request, transaction: Transaction, user: User) -> Visitor:
    """Begin a session of `user`, and end the one that the browser had."""
    await end(request, transaction)
    cookie = _new_cookie()
    await queries.create_session(
        transaction,
        digest(cookie),
        user.id,
        transaction.now + LIFETIME,
        ip_address=request.remote,
        user_agent=_user_agent(request),
    )
    return _visitor(request, cookie, user)


async def end(request: web.Request, transaction: Transaction) -> None:
    """End the request's session, if it has one."""
    cookie = cookie_value(request, _cookie_name(request))
    await queries.delete_session(transaction, digest(cookie))


def remember(request: web.Request, response: web.StreamResponse, visitor: Visitor) -> None:
    """Set the cookie for as long as the session lasts, or until the browser is closed."""
    response.set_cookie(
        _cookie_name(request),
        visitor.cookie,
        max_age=int(LIFETIME.total_seconds()) if visitor.user else None,
        path="/",
        secure=is_secure(request),
        httponly=True,
        samesite="Lax",
    )


def begins_session(response: web.StreamResponse) -> bool:
    """Return whether the response begins a new session of the browser."""
    return any(name.endswith(_COOKIE_NAME) for name in response.cookies)


def forget(request: web.Request, response: web.StreamResponse) -> None:
    response.del_cookie(_cookie_name(request), path="/", secure=is_secure(request), httponly=True)


def _user_agent(request: web.Request) -> str:
    """Return the browser's `User-Agent`, made fit for the database."""
    return request.headers.get("User-Agent", "")[:_LONGEST_USER_AGENT].encode(errors="replace").decode()


def _new_cookie() -> str:
    return secrets.token_urlsafe(32)


def is_secure(request: web.Request) -> bool:
    """Return whether browsers reach the service over TLS."""
    return context.services(request).settings.base_url.startswith("https://")


def _cookie_name(request: web.Request) -> str:
    # With this prefix, browsers accept the cookie only from this host itself, and only over TLS.
    return f"__Host-{_COOKIE_NAME}" if is_secure(request) else _COOKIE_NAME
