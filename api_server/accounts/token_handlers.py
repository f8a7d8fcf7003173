"""`/personal_access_tokens` (supporting resource)."""

import datetime
from typing import Any, Literal

import attrs
from aiohttp import web

from api_server.accounts import token_queries, tokens
from api_server.accounts.token_queries import Token
from api_server.accounts.users import existing_user
from api_server.services import Services
from api_server.web.answers import json_text, no_content
from api_server.web.auth import ALL_SCOPES, SELF_ROTATE_SCOPES, Actor, Scope
from api_server.web.errors import forbidden, record_not_found
from api_server.web.pagination import Paginated, paginated, requested_page
from api_server.web.params import CommaList, Description, Name
from api_server.web.routes import ADMINISTRATOR, SIGNED_IN, Routes

routes = Routes()


@attrs.frozen(kw_only=True)
class CreateToken:
    user_id: int
    name: Name = attrs.field(metadata={"present": True})
    scopes: CommaList[Scope] = attrs.field(metadata={"present": True})
    description: Description | None = None
    expires_at: datetime.date | None = None


@attrs.frozen(kw_only=True)
class CreateOwnToken:
    name: Name = attrs.field(metadata={"present": True})
    scopes: CommaList[Literal["k8s_proxy", "self_rotate"]] = attrs.field(metadata={"present": True})
    description: Description | None = None
    expires_at: datetime.date | None = None


@attrs.frozen(kw_only=True)
class TokenFilters(Paginated):
    revoked: bool | None = None
    state: Literal["active", "inactive"] | None = None
    search: str | None = None
    created_after: datetime.datetime | None = None
    created_before: datetime.datetime | None = None
    last_used_after: datetime.datetime | None = None
    last_used_before: datetime.datetime | None = None
    expires_after: datetime.date | None = None
    expires_before: datetime.date | None = None

    @property
    def active(self) -> bool | None:
        return None if self.state is None else self.state == "active"

    @property
    def filters(self) -> dict[str, Any]:
        """The filters of the lists' statements."""
        return {name: getattr(self, name) for name in token_queries.NO_FILTERS}


@attrs.frozen(kw_only=True)
class ListTokens(TokenFilters):
    user_id: int | None = None


@attrs.frozen(kw_only=True)
class TokenId:
    id: int


@attrs.frozen(kw_only=True)
class RotateOwnToken:
    expires_at: datetime.date | None = None


@attrs.frozen(kw_only=True)
class RotateToken(RotateOwnToken):
    id: int


@routes.post(
    "/users/{user_id}/personal_access_tokens",
    access=ADMINISTRATOR,
    answers="201 PersonalAccessTokenWithToken",
)
async def create_token(services: Services, actor: Actor, params: CreateToken) -> web.Response:
    """Create a token for any user. Only this answer contains the token's text."""
    async with services.database.transaction() as transaction:
        user = await existing_user(transaction, params.user_id)
        new = tokens.NewToken(**attrs.asdict(params) | {"scopes": list(dict.fromkeys(params.scopes))})
        entity = await tokens.create(transaction, new, user.username, user.name, actor.author)
    return json_text(entity, status=201)


@routes.post("/user/personal_access_tokens", access=SIGNED_IN, answers="201 PersonalAccessTokenWithToken")
async def create_own_token(services: Services, actor: Actor, params: CreateOwnToken) -> web.Response:
    """Create a token for the caller with very limited scopes, valid until the end of the day unless
    `expires_at` is given."""
    new = tokens.NewToken(
        user_id=actor.user_id,
        name=params.name,
        scopes=list(dict.fromkeys(params.scopes)),
        description=params.description,
        expires_at=params.expires_at or services.now.date() + datetime.timedelta(days=1),
    )
    async with services.database.transaction() as transaction:
        entity = await tokens.create(transaction, new, actor.username, actor.name, actor.author)
    return json_text(entity, status=201)


@routes.get("/personal_access_tokens", access=SIGNED_IN, answers="200 [PersonalAccessToken]")
async def list_tokens(
    request: web.Request, services: Services, actor: Actor, params: ListTokens
) -> web.Response:
    """List the caller's tokens; administrators see those of all users."""
    page = requested_page(params, token_queries.LISTING)
    if not actor.admin and params.user_id not in (None, actor.user_id):
        raise forbidden()
    list_page = await token_queries.list_tokens(
        services.database,
        page,
        user_id=params.user_id if actor.admin else actor.user_id,
        **params.filters,
    )
    return await paginated(request, page, list_page)


@routes.get(
    "/personal_access_tokens/self", access=SIGNED_IN, scopes=ALL_SCOPES, answers="200 PersonalAccessToken"
)
async def show_own_token(services: Services, actor: Actor) -> web.Response:
    """Show the token that the request is made with, whatever its scopes."""
    return await _token_answer(services, await _own(services, actor))


@routes.get("/personal_access_tokens/{id}", access=SIGNED_IN, answers="200 PersonalAccessToken")
async def show_token(services: Services, actor: Actor, params: TokenId) -> web.Response:
    return await _token_answer(services, await _token_of(services, actor, params.id))


@routes.delete(
    "/personal_access_tokens/self",
    access=SIGNED_IN,
    scopes=ALL_SCOPES,
    revokes="token:{token_id}",
    answers="204",
)
async def revoke_own_token(services: Services, actor: Actor) -> web.Response:
    return await _revoked(services, actor, await _own(services, actor))


@routes.delete("/personal_access_tokens/{id}", access=SIGNED_IN, revokes="token:{id}", answers="204")
async def revoke_token(services: Services, actor: Actor, params: TokenId) -> web.Response:
    """Revoke a token."""
    return await _revoked(services, actor, await _token_of(services, actor, params.id))


@routes.post(
    "/personal_access_tokens/self/rotate",
    access=SIGNED_IN,
    scopes=SELF_ROTATE_SCOPES,
    revokes="token:{token_id}",
    answers="200 PersonalAccessTokenWithToken",
)
async def rotate_own_token(services: Services, actor: Actor, params: RotateOwnToken) -> web.Response:
    return await _rotated(services, actor, await _own(services, actor), params.expires_at)


@routes.post(
    "/personal_access_tokens/{id}/rotate",
    access=SIGNED_IN,
    revokes="token:{id}",
    answers="200 PersonalAccessTokenWithToken",
)
async def rotate_token(services: Services, actor: Actor, params: RotateToken) -> web.Response:
    """Replace a token by a new one, valid for a week unless `expires_at` is given."""
    return await _rotated(services, actor, await _token_of(services, actor, params.id), params.expires_at)


async def _own(services: Services, actor: Actor) -> Token:
    return await _token_of(services, actor, actor.token_id or 0)


async def _token_of(services: Services, actor: Actor, token_id: int) -> Token:
    token = await token_queries.find_token(services.database, token_id)
    if token is None or not (actor.admin or token.user_id == actor.user_id):
        raise record_not_found()
    return token


async def _token_answer(services: Services, token: Token) -> web.Response:
    return json_text(await token_queries.show_token(services.database, token.id))


async def _revoked(services: Services, actor: Actor, token: Token) -> web.Response:
    async with services.database.transaction() as transaction:
        await tokens.revoke(services, transaction, token, actor.author)
    return no_content()


async def _rotated(
    services: Services, actor: Actor, token: Token, expires_at: datetime.date | None
) -> web.Response:
    async with services.database.transaction() as transaction:
        entity = await tokens.rotate(transaction, token, expires_at, actor.author)
    return json_text(entity)
