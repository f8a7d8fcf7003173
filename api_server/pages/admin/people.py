"""`/admin/users` and `/admin/tokens`: who may come in, and with what."""

from typing import Literal

import attrs
from aiohttp import web

from api_server.accounts import token_handlers, user_handlers, user_queries
from api_server.pages.admin import list_queries, lists
from api_server.pages.admin.acting import act
from api_server.pages.admin.lists import EMPTY_IS_ALL, Filters
from api_server.pages.routes import Pages
from api_server.pages.sessions import Visitor
from api_server.web import context
from api_server.web.routes import ADMINISTRATOR

pages = Pages()


@attrs.frozen(kw_only=True)
class ListUsers(Filters):
    search: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    state: Literal["active", "blocked"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    kind: Literal["people", "bots"] | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@attrs.frozen(kw_only=True)
class ListTokens(Filters):
    username: str | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)
    state: list_queries.TokenState | None = attrs.field(default=None, metadata=EMPTY_IS_ALL)


@pages.get("/admin/users", access=ADMINISTRATOR)
async def list_users(request: web.Request, who: Visitor, wanted: ListUsers) -> web.Response:
    """Everybody, the newest first; found by name, username or address."""
    listed = await user_queries.list_users(
        context.database(request),
        wanted.page,
        for_administrator=True,
        username=None,
        search=wanted.search,
        active=wanted.state == "active",
        blocked=wanted.state == "blocked",
        bots=None if wanted.kind is None else wanted.kind == "bots",
    )
    return lists.answer(request, who, "users.html", wanted, listed)


act(pages, "/admin/users/{id}/block", user_handlers.block_user, "The user is blocked.")
act(pages, "/admin/users/{id}/unblock", user_handlers.unblock_user, "The user is unblocked.")


@pages.get("/admin/tokens", access=ADMINISTRATOR)
async def list_tokens(request: web.Request, who: Visitor, wanted: ListTokens) -> web.Response:
    """Personal access tokens, the newest first."""
    listed = await list_queries.list_tokens(
        context.database(request), wanted.page, username=wanted.username, state=wanted.state
    )
    return lists.answer(request, who, "tokens.html", wanted, listed)


act(
    pages,
    "/admin/tokens/{id}/revoke",
    token_handlers.revoke_token,
    "The token is revoked: it opens nothing any more.",
)
