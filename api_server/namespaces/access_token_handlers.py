"""`/projects/:id/access_tokens` and `/groups/:id/access_tokens` (supporting resources)."""

import datetime
from typing import Literal

import attrs
from aiohttp import web

from api_server.accounts import user_queries
from api_server.accounts.token_handlers import TokenFilters
from api_server.namespaces import access_token_queries, access_tokens
from api_server.namespaces.access import group, project
from api_server.namespaces.access_token_queries import Token
from api_server.namespaces.members import Source, source_of
from api_server.namespaces.resources import Group, Project
from api_server.services import Services
from api_server.state.database import Executor
from api_server.web.answers import json_text, no_content
from api_server.web.auth import SELF_ROTATE_SCOPES, Actor
from api_server.web.errors import ApiError, forbidden, not_found, unauthorized
from api_server.web.pagination import paginated, requested_page
from api_server.web.params import CommaList, Description, Name
from api_server.web.routes import Role, Routes

routes = Routes()

#: GitLab's scopes of access tokens of bots.
Scope = Literal[
    "api",
    "read_api",
    "read_repository",
    "write_repository",
    "create_runner",
    "manage_runner",
    "self_rotate",
    "ai_features",
    "k8s_proxy",
    "read_registry",
    "write_registry",
    "read_virtual_registry",
    "write_virtual_registry",
]


@attrs.frozen(kw_only=True)
class ListAccessTokens(TokenFilters):
    id: str


@attrs.frozen(kw_only=True)
class AccessTokenId:
    id: str
    token_id: int


@attrs.frozen(kw_only=True)
class CreateAccessToken:
    id: str
    name: Name = attrs.field(metadata={"present": True})
    scopes: CommaList[Scope] = attrs.field(metadata={"present": True})
    access_level: Literal[10, 15, 20, 30, 40, 50] = 40
    description: Description | None = None
    expires_at: datetime.date | None = None


@attrs.frozen(kw_only=True)
class RotateOwnAccessToken:
    id: str
    expires_at: datetime.date | None = None


@attrs.frozen(kw_only=True)
class RotateAccessToken(RotateOwnAccessToken):
    token_id: int


@routes.get(
    "/projects/{id}/access_tokens", access=project(Role.MAINTAINER), answers="200 [ResourceAccessToken]"
)
@routes.get("/groups/{id}/access_tokens", access=group(Role.OWNER), answers="200 [ResourceAccessToken]")
async def list_access_tokens(
    request: web.Request, services: Services, params: ListAccessTokens, resource: Group | Project
) -> web.Response:
    page = requested_page(params, access_token_queries.LISTING)
    rows = await access_token_queries.list_tokens(
        services.database, page, source_of(resource).ids, **params.filters
    )
    return await paginated(request, page, rows)


@routes.get(
    "/projects/{id}/access_tokens/{token_id}",
    access=project(Role.MAINTAINER),
    answers="200 ResourceAccessToken",
)
@routes.get(
    "/groups/{id}/access_tokens/{token_id}", access=group(Role.OWNER), answers="200 ResourceAccessToken"
)
async def show_access_token(
    services: Services, params: AccessTokenId, resource: Group | Project
) -> web.Response:
    database = services.database
    token = await _token_of(database, source_of(resource), params.token_id)
    return json_text(await access_token_queries.show_token(database, token.id))


@routes.post(
    "/projects/{id}/access_tokens",
    access=project(Role.MAINTAINER),
    answers="201 ResourceAccessTokenWithToken",
)
@routes.post(
    "/groups/{id}/access_tokens", access=group(Role.OWNER), answers="201 ResourceAccessTokenWithToken"
)
async def create_access_token(
    services: Services, actor: Actor, params: CreateAccessToken, resource: Group | Project
) -> web.Response:
    """Create a token and a bot that owns it; the bot is a member with at most the caller's role. Only this
    answer contains the token's text."""
    new = access_tokens.NewAccessToken(
        name=params.name,
        scopes=list(dict.fromkeys(params.scopes)),
        level=Role(params.access_level),
        description=params.description,
        expires_at=params.expires_at,
    )
    async with services.database.transaction() as transaction:
        new_token = await access_tokens.create(services, transaction, source_of(resource), new, actor.author)
    return json_text(new_token, status=201)


@routes.delete(
    "/projects/{id}/access_tokens/{token_id}",
    access=project(Role.MAINTAINER),
    revokes="token:{token_id}",
    answers="204",
)
@routes.delete(
    "/groups/{id}/access_tokens/{token_id}",
    access=group(Role.OWNER),
    revokes="token:{token_id}",
    answers="204",
)
async def revoke_access_token(
    services: Services, actor: Actor, params: AccessTokenId, resource: Group | Project
) -> web.Response:
    """Revoke the token and all other tokens of its bot, and end the bot's membership."""
    source = source_of(resource)
    token = await _token_of(services.database, source, params.token_id)
    services.revoke(f"user:{token.user_id}")
    async with services.database.transaction() as transaction:
        token = await _token_of(transaction, source, params.token_id)
        await access_tokens.revoke(services, transaction, source, token, actor.author)
    return no_content()


@routes.post(
    "/projects/{id}/access_tokens/self/rotate",
    access=project(),
    scopes=SELF_ROTATE_SCOPES,
    revokes="token:{token_id}",
    answers="200 ResourceAccessTokenWithToken",
)
@routes.post(
    "/groups/{id}/access_tokens/self/rotate",
    access=group(),
    scopes=SELF_ROTATE_SCOPES,
    revokes="token:{token_id}",
    answers="200 ResourceAccessTokenWithToken",
)
async def rotate_own_access_token(
    services: Services, actor: Actor, params: RotateOwnAccessToken, resource: Group | Project
) -> web.Response:
    """Rotate the token that the request is made with; 405 for tokens of people, 401 for tokens of another
    project or group."""
    source = source_of(resource)
    async with services.database.transaction() as transaction:
        if not await user_queries.is_bot(transaction, actor.user_id):
            raise ApiError(405, {"message": "405 Method Not Allowed"})
        token = await access_token_queries.find_token(transaction, actor.token_id or 0, source.ids)
        if token is None:
            raise unauthorized()
        new_token = await access_tokens.rotate(transaction, source, token, params.expires_at, actor.author)
    return json_text(new_token)


@routes.post(
    "/projects/{id}/access_tokens/{token_id}/rotate",
    access=project(Role.MAINTAINER),
    revokes="token:{token_id}",
    answers="200 ResourceAccessTokenWithToken",
)
@routes.post(
    "/groups/{id}/access_tokens/{token_id}/rotate",
    access=group(Role.OWNER),
    revokes="token:{token_id}",
    answers="200 ResourceAccessTokenWithToken",
)
async def rotate_access_token(
    services: Services, actor: Actor, params: RotateAccessToken, resource: Group | Project
) -> web.Response:
    """Create a new token of the same bot, valid for a week unless `expires_at` is given; 403 for bots, which
    could otherwise obtain a token of another bot."""
    source = source_of(resource)
    async with services.database.transaction() as transaction:
        if await user_queries.is_bot(transaction, actor.user_id):
            raise forbidden()
        token = await _token_of(transaction, source, params.token_id)
        new_token = await access_tokens.rotate(transaction, source, token, params.expires_at, actor.author)
    return json_text(new_token)


async def _token_of(database: Executor, source: Source, token_id: int) -> Token:
    token = await access_token_queries.find_token(database, token_id, source.ids)
    if token is None:
        raise not_found(f"{source.kind} Access Token")
    return token
