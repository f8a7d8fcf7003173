"""Who is calling: personal access tokens and job tokens, looked up as GitLab does (decision D1)."""

import datetime
from typing import Any, Literal, get_args

import attrs
from aiohttp import web

from api_server.state.database import Executor
from api_server.state.lookup_cache import LookupCache
from api_server.state.secrets import JOB_TOKEN, digest
from api_server.web import auth_queries, context
from api_server.web.auth_queries import TokenRow
from api_server.web.errors import ApiError, forbidden, invalid_token, unauthorized
from api_server.web.grounds import Ground, rely_on
from api_server.web.request_data import merged

READ_SCOPES = ("api", "read_api")
#: Of what a token that reads no more than its user may read too.
READ_USER_SCOPES = (*READ_SCOPES, "read_user")
WRITE_SCOPES = ("api",)
Scope = Literal["api", "read_api", "read_user", "read_repository", "write_repository", "sudo"]
ALL_SCOPES: tuple[Scope, ...] = get_args(Scope)


@attrs.frozen
class Caller:
    """Who a request speaks for: a user by a personal access token with `scopes`, or by the token of job `job_id`."""

    user_id: int
    username: str
    name: str
    email: str
    admin: bool = False
    scopes: frozenset[str] = frozenset()
    token_id: int | None = None
    job_id: int | None = None


@attrs.frozen
class Anonymous:
    """A caller without credentials, where a route allows that."""

    user_id: None = None
    admin: bool = False


ANONYMOUS = Anonymous()


TOKENS: web.AppKey[LookupCache[TokenRow]] = web.AppKey("tokens", LookupCache)


async def authenticate(
    request: web.Request, *, takes_job_token: bool = False, reads_body: bool = True
) -> Caller | None:
    """The caller, or None without credentials. Raises 401 for credentials that are not valid, 403 for blocked users."""
    sent: dict[str, Any] = await merged(request) if reads_body else dict(request.query)
    token = _text(sent.get("private_token")) or request.headers.get("PRIVATE-TOKEN")
    if token and not token.startswith(JOB_TOKEN):
        return await caller_of_personal_access_token(request, token)
    bearer = _bearer(request)
    if bearer and not (takes_job_token and bearer.startswith(JOB_TOKEN)):
        return await caller_of_personal_access_token(request, bearer)
    if not takes_job_token:
        return None
    token = (
        bearer or _text(sent.get("job_token")) or _text(sent.get("token")) or request.headers.get("JOB-TOKEN")
    )
    return await caller_of_job_token(request, token) if token else None


async def caller_of_personal_access_token(request: web.Request, token: str) -> Caller:
    """Raises 401 for an unknown, expired or revoked token."""
    key = digest(token)
    row = await request.config_dict[TOKENS].get(
        key, lambda: auth_queries.find_personal_access_token(context.database(request), key)
    )
    if row is None:
        raise unauthorized()
    now = context.now(request)
    refuse_unusable(row, now.date())
    await _note_use(request, row, now)
    _rely_on_token(request, key, row)
    return Caller(
        row.user_id, row.username, row.name, row.email, row.admin, frozenset(row.scopes), token_id=row.id
    )


async def caller_of_job_token(request: web.Request, token: str) -> Caller:
    """Raises 401 for an unknown token and for one whose job no longer runs."""
    row = await auth_queries.find_running_job(context.database(request), digest(token))
    if row is None or row.state != "active":
        raise unauthorized()
    return Caller(row.user_id, row.username, row.name, row.email, job_id=row.id)


def _rely_on_token(request: web.Request, key: bytes, row: TokenRow) -> None:
    """When the token was last used is no part of what it may do."""

    async def read(executor: Executor) -> TokenRow | None:
        found = await auth_queries.find_personal_access_token(executor, key)
        return None if found is None else attrs.evolve(found, last_used_at=row.last_used_at)

    rely_on(request, Ground((f"user:{row.user_id}", f"token:{row.id}"), row, read))


def refuse_unusable(row: TokenRow, today: datetime.date) -> None:
    """Raises the refusal of a token (with its user's state) that was valid once."""
    problem: ApiError | None = None
    if row.revoked:
        problem = invalid_token("Token was revoked. You have to re-authorize from the user.")
    elif row.expires_at is not None and row.expires_at <= today:
        problem = invalid_token("Token is expired. You can either do re-authorization or token refresh.")
    elif row.state != "active":
        problem = forbidden("Your account has been blocked.")
    if problem:
        raise problem


async def _note_use(request: web.Request, row: TokenRow, now: datetime.datetime) -> None:
    """Keeps `last_used_at` true to ten minutes, so that reading does not mean writing."""
    if row.last_used_at is None or now - row.last_used_at > datetime.timedelta(minutes=10):
        async with context.database(request).transaction() as transaction:
            await auth_queries.note_use(transaction, row.id)


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
