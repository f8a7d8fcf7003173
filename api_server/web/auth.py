"""Authentication of callers by their tokens (decision D1), and administrators who act for others with `Sudo`
(decision D11)."""

import base64
import datetime
import functools
import re
from typing import Any, Literal, get_args

import attrs
from aiohttp import web

from api_server.services import Key, Services
from api_server.state.audit_trail import Author
from api_server.state.database import MAX_BIGINT, Executor, LookupCache
from api_server.state.preconditions import Precondition
from api_server.state.secrets import JOB_TOKEN, digest
from api_server.web import auth_queries
from api_server.web.auth_queries import ActingUser, RunningJob, TokenRow
from api_server.web.errors import (
    ApiError,
    bad_parameters,
    forbidden,
    insufficient_scope,
    invalid_token,
    not_found,
    unauthorized,
)
from api_server.web.rate_limits import Rate
from api_server.web.request_data import in_url, merged, with_credentials

READ_SCOPES = ("api", "read_api")
#: Scopes that may read users.
READ_USER_SCOPES = (*READ_SCOPES, "read_user")
WRITE_SCOPES = ("api",)
#: Scopes that may use routes for which there is a special scope.
CREATE_RUNNER_SCOPES = (*WRITE_SCOPES, "create_runner")
READ_RUNNER_SCOPES = (*READ_SCOPES, "manage_runner")
MANAGE_RUNNER_SCOPES = (*WRITE_SCOPES, "manage_runner")
SELF_ROTATE_SCOPES = (*WRITE_SCOPES, "self_rotate")
#: GitLab's scopes. A scope gives no right if no route names it and neither git nor static objects require it.
Scope = Literal[
    "api",
    "read_api",
    "read_user",
    "read_repository",
    "write_repository",
    "sudo",
    "create_runner",
    "manage_runner",
    "self_rotate",
    "admin_mode",
    "ai_features",
    "k8s_proxy",
    "read_registry",
    "write_registry",
    "read_virtual_registry",
    "write_virtual_registry",
    "read_service_ping",
]
ALL_SCOPES: tuple[Scope, ...] = get_args(Scope)


@attrs.frozen
class Actor:
    """The user for whom a request is made: by a personal access token with `scopes`, or by the token of job
    `job_id` of project `job_project_id`."""

    user_id: int
    username: str
    name: str
    email: str
    admin: bool = False
    scopes: frozenset[str] = frozenset()
    token_id: int | None = None
    job_id: int | None = None
    job_project_id: int | None = None
    #: The rate limit of the user's requests to the API; None if there is none.
    rate: Rate | None = None
    #: The administrator who makes the request for this user (`Sudo`) and owns the token.
    impersonator: "Actor | None" = None
    #: The address that the request came from.
    address: str | None = attrs.field(default=None, eq=False)

    @property
    def author(self) -> Author:
        """The author named in audit events: the user, and the administrator who acts for the user
        (`Sudo`)."""
        return Author(
            id=self.user_id,
            name=self.name,
            email=self.email,
            username=self.username,
            ip_address=self.address,
            impersonated_by=self.impersonator.username if self.impersonator else None,
            impersonated_by_id=self.impersonator.user_id if self.impersonator else None,
        )


@attrs.frozen
class Anonymous:
    """A caller without credentials, if the route allows that."""

    user_id: None = None
    admin: bool = False
    job_project_id: None = None
    address: str | None = None


TOKENS = Key[LookupCache[TokenRow]]("tokens")
#: The owner of a request's valid token, even if the token may not do what is asked.
TOKEN_OWNER = web.RequestKey("token_owner", Actor)


async def authenticate(
    request: web.Request, services: Services, *, takes_job_token: bool = False, reads_body: bool = True
) -> Actor | None:
    """Return the caller, or None without credentials. Raise 401 for invalid credentials and 403 for blocked
    users."""
    data: dict[str, Any] = await with_credentials(request) if reads_body else dict(request.query)
    token = _text(data.get("private_token")) or request.headers.get("PRIVATE-TOKEN")
    if token and not token.startswith(JOB_TOKEN):
        return await caller_of_personal_access_token(request, services, token)
    bearer = _bearer(request)
    if bearer and not (takes_job_token and bearer.startswith(JOB_TOKEN)):
        return await caller_of_personal_access_token(request, services, bearer)
    if not takes_job_token:
        return None
    token = (
        bearer or _text(data.get("job_token")) or _text(data.get("token")) or request.headers.get("JOB-TOKEN")
    )
    return await caller_of_job_token(request, services, token) if token else None


async def caller_of_personal_access_token(request: web.Request, services: Services, token: str) -> Actor:
    """Return the caller with this personal access token. Raise 401 if it is unknown, expired or revoked."""
    key = digest(token)
    row = await services[TOKENS].get(
        key, lambda: auth_queries.find_personal_access_token(services.database, key)
    )
    if row is None:
        raise unauthorized()
    now = services.now
    caller = request[TOKEN_OWNER] = _caller_of_token(row, now, request.remote)
    await _note_use(services, row, now)
    await note_activity(services, row.user_id, row.last_activity_on)
    return caller


async def caller_of_job_token(request: web.Request, services: Services, token: str) -> Actor:
    """Return the caller with this job token. Raise 401 if it is unknown or its job has ended."""
    row = await auth_queries.find_running_job(services.database, digest(token))
    if row is not None and row.unacknowledged and not await acknowledge_job(services, digest(token)):
        raise unauthorized()
    caller = request[TOKEN_OWNER] = _caller_of_job(row, request.remote)
    return caller


async def acknowledge_job(services: Services, token_digest: bytes) -> bool:
    """Record the first request of a runner for its job. Return False if the job has been taken back."""
    async with services.database.transaction() as transaction:
        return await auth_queries.acknowledge_job(transaction, token_digest)


async def still_valid(executor: Executor, caller: Actor) -> Actor:
    """Return the caller with current data after checking token and account again, in a transaction that
    writes or after a long upload. Raise the refusal that a new request would get (401, 403)."""
    if caller.impersonator is not None:
        user = await auth_queries.find_acting_user(executor, user_id=caller.user_id, username="")
        if user is None:
            raise unauthorized()
        return acting_as(user, await still_valid(executor, caller.impersonator))
    if caller.job_id is not None:
        job = await auth_queries.find_job_if_running(executor, caller.job_id)
        return _caller_of_job(job)
    row = await auth_queries.find_token_by_id(executor, caller.token_id or 0)
    return _caller_of_token(row, executor.now)


def acting_as(user: ActingUser, impersonator: Actor) -> Actor:
    """Return an actor with the user's rights and the token of `impersonator`."""
    values = {name: value for name, value in attrs.asdict(user).items() if name != "id"}
    return attrs.evolve(impersonator, user_id=user.id, impersonator=impersonator, **values)


def rely_on_caller(services: Services, caller: Actor) -> None:
    """Let the request write only if `still_valid` still returns the same caller."""
    if services.preconditions is None:
        return
    persons = (caller, caller.impersonator) if caller.impersonator is not None else (caller,)
    names = {f"user:{person.user_id}" for person in persons} | {f"token:{caller.token_id}"}
    services.require_unchanged(
        Precondition(tuple(names), caller, functools.partial(still_valid, caller=caller))
    )


def _caller_of_token(row: TokenRow | None, now: datetime.datetime, address: str | None = None) -> Actor:
    if row is None:
        raise unauthorized()
    refuse_unusable(row, now.date())
    return Actor(
        row.user_id,
        row.username,
        row.name,
        row.email,
        row.admin,
        frozenset(row.scopes),
        token_id=row.id,
        rate=Rate(*row.throttle) if row.throttle else None,
        address=address,
    )


def _caller_of_job(row: RunningJob | None, address: str | None = None) -> Actor:
    if row is None or row.state != "active":
        raise unauthorized()
    return Actor(
        row.user_id,
        row.username,
        row.name,
        row.email,
        job_id=row.id,
        job_project_id=row.project_id,
        address=address,
    )


def refuse_unusable(row: TokenRow, today: datetime.date) -> None:
    """Raise the refusal of a token that is revoked or expired or whose user is blocked."""
    problem: ApiError | None = None
    if row.revoked:
        problem = invalid_token("Token was revoked. You have to re-authorize from the user.")
    elif row.expires_at is not None and row.expires_at <= today:
        problem = invalid_token("Token is expired. You can either do re-authorization or token refresh.")
    elif row.state != "active":
        problem = forbidden("Your account has been blocked.")
    if problem:
        raise problem


async def _note_use(services: Services, row: TokenRow, now: datetime.datetime) -> None:
    """Keep `last_used_at` accurate to ten minutes, so that not every read causes a write."""
    if row.last_used_at is None or now - row.last_used_at > datetime.timedelta(minutes=10):
        async with services.database.transaction() as transaction:
            await auth_queries.note_use(transaction, row.id)


async def note_activity(services: Services, user_id: int, last: datetime.date | None) -> None:
    """Record the day on which the user was last active, in UTC, at most once a day; `last` is the recorded
    day."""
    day = services.now.date()
    if last is None or last < day:
        async with services.database.transaction() as transaction:
            await auth_queries.note_activity(transaction, user_id, day)


def basic_password(request: web.Request) -> str | None:
    """Return the password of HTTP Basic authentication, if one was sent. Raise ValueError for what is no
    base64."""
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    return base64.b64decode(credentials, validate=True).decode().partition(":")[2] or None


def _bearer(request: web.Request) -> str | None:
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" and token.strip() else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


SUDO_HEADER = "Sudo"
SUDO_PARAMETER = "sudo"

_USERNAME = re.compile(r"[\w.-]{1,255}", re.ASCII)


async def acting_caller(request: web.Request, services: Services, actor: Actor, *, reads_body: bool) -> Actor:
    """Return the user whom the request names by id or user name, with `actor` as the `impersonator`, or
    `actor` if it names nobody. Raise 403 if the actor may not act for others, 404 if the user does not exist,
    and 400 for an invalid value."""
    identifier = await _named_user(request, reads_body=reads_body)
    if identifier is None:
        return actor
    if actor.job_id is not None:
        raise needs_personal_access_token()
    if not actor.admin:
        raise forbidden("Must be admin to use sudo")
    if "sudo" not in actor.scopes:
        raise insufficient_scope("sudo")
    user = await _find_acting_user(services, identifier)
    if user is None:
        raise not_found(f"User with ID or username '{identifier}'")
    if user.id == actor.user_id:
        return actor
    return acting_as(user, actor)


async def refuse_sudo(request: web.Request, *, reads_body: bool) -> None:
    """Raise 403 if a request names a user although its caller has no token or a token that cannot act for
    others."""
    if await _named_user(request, reads_body=reads_body) is not None:
        raise needs_personal_access_token()


def refuse_sudo_outside_of_api(request: web.Request) -> None:
    """Raise 403 for the Sudo header outside of the API (git, static objects), where nobody can act for
    others. Ignoring the header would run the request with the administrator's own, greater rights."""
    if SUDO_HEADER in request.headers:
        raise web.HTTPForbidden(text="Sudo is for requests of the API only.\n")


def needs_personal_access_token() -> ApiError:
    return forbidden("Must be authenticated using an OAuth or personal access token to use sudo")


async def _named_user(request: web.Request, *, reads_body: bool) -> str | None:
    """Return the user named by the parameter, or else by the header, or None."""
    data: dict[str, Any] = await merged(request) if reads_body else in_url(request)
    value = data.get(SUDO_PARAMETER)
    if value is None:
        lines = request.headers.getall(SUDO_HEADER, None)
        return None if lines is None else ", ".join(lines).encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise bad_parameters(f"{SUDO_PARAMETER} is invalid")
    return str(value)


async def _find_acting_user(services: Services, identifier: str) -> auth_queries.ActingUser | None:
    if not _USERNAME.fullmatch(identifier):
        return None
    number = int(identifier) if identifier.isdecimal() else None
    if number is not None and number > MAX_BIGINT:
        return None
    return await auth_queries.find_acting_user(services.database, user_id=number, username=identifier)
