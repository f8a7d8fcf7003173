"""Callers of static objects: their credentials, what they can read, and their rate limits."""

import hmac
from collections.abc import Awaitable, Callable

import attrs
from aiohttp import web

from api_server.namespaces.project_queries import find_project
from api_server.namespaces.resources import Project
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state import secrets
from api_server.static_objects import queries
from api_server.web import auth, context
from api_server.web.errors import ApiError
from api_server.web.rate_limits import RateLimiter
from common import static_paths
from common.static_paths import (
    EXTERNAL_STORAGE_TOKEN_HEADER,
    STATIC_OBJECT_TOKEN_HEADER,
    Kind,
    StaticPath,
    StaticPathError,
    TooLongError,
)

#: A function that returns the id of the user whose browser session sent the request, or None; set by the pages.
SIGNED_IN_USER = Key[Callable[[web.Request], Awaitable[int | None]]]("signed_in_user")


@attrs.frozen
class Reader:
    """The user who asks for a static object, or nobody. The user's static-object token is derived from `seed`."""

    id: int | None = None
    admin: bool = False
    seed: bytes = attrs.field(default=b"", repr=False)


def path_of(request: web.Request) -> StaticPath:
    """Return the parsed path of the request. Raise 404 if it is not valid, and 414 if it is too long."""
    try:
        return static_paths.parse(request.raw_path)
    except TooLongError:
        raise web.HTTPRequestURITooLong(text="414 Request-URI Too Long\n") from None
    except StaticPathError as problem:
        raise web.HTTPNotFound(text=f"404 Not Found: {problem}\n") from None


def is_external_storage(request: web.Request, expected: str) -> bool:
    """Return whether the request has the external storage's token. Raise 403 if it has a wrong one."""
    token = request.headers.get(EXTERNAL_STORAGE_TOKEN_HEADER, "")
    if not token:
        return False
    if not expected or not hmac.compare_digest(token.encode("utf-8", "replace"), expected.encode()):
        raise web.HTTPForbidden(text="The external storage token is not the configured one.\n")
    return True


async def find_reader(request: web.Request, path: StaticPath) -> Reader:
    """Return the user by a static-object token (parameter before header), otherwise by a token of the API, otherwise by
    a browser session, or nobody without any of them. Raise 401 or 403 if the credentials are not valid."""
    services = context.services(request)
    auth.refuse_sudo_outside_of_api(request)
    token = path.token or request.headers.get(STATIC_OBJECT_TOKEN_HEADER)
    database = services.database
    if token:
        user = await queries.user_of_token(database, secrets.digest(token))
        if user is None:
            raise web.HTTPUnauthorized(text="The static object token is not valid (any more).\n")
        if user.state != "active":
            raise web.HTTPForbidden(text="Your account has been blocked.\n")
        return Reader(user.id, user.admin, user.static_object_seed)
    caller = await _caller(request)
    user_id = caller.user_id if caller else await services[SIGNED_IN_USER](request)
    if user_id is None:
        return Reader()
    user = await queries.user(database, user_id)
    if user is None:
        raise web.HTTPUnauthorized(text="The token is not valid.\n")
    return Reader(user.id, user.admin, user.static_object_seed)


async def _caller(request: web.Request) -> auth.Actor | None:
    try:
        caller = await auth.authenticate(request, context.services(request), reads_body=False)
    except ApiError as error:
        raise (web.HTTPForbidden if error.status == 403 else web.HTTPUnauthorized)(
            text="The token is not valid.\n"
        ) from None
    if caller is not None and not caller.scopes & {"api", "read_api", "read_repository"}:
        raise web.HTTPForbidden(text="The token needs the scope read_repository, read_api or api.\n")
    return caller


async def readable_project(services: Services, path: StaticPath, reader: Reader) -> Project:
    """Return the project. Raise 404 if the reader cannot read its repository.

    It is read now, without a cache: an edge that has been told of a change keeps the next answer for long.
    """
    project = await find_project(
        services.database,
        project_id=None,
        path=path.project,
        user_id=reader.id,
        admin=reader.admin,
        job_project_id=None,
    )
    if project is None or not project.reads_repository:
        raise web.HTTPNotFound(text="404 Not Found\n")
    return project


class Limits:
    """Rate limits of raw files for each project and path (with any ref), and of archives for each user and for all
    anonymous callers together."""

    def __init__(self, settings: Settings) -> None:
        self._raw = RateLimiter("raw", lambda: settings.raw_rate_limit)
        self._archives = RateLimiter("archives", lambda: settings.archive_rate_limit)
        self._anonymous_archives = RateLimiter(
            "anonymous archives", lambda: settings.anonymous_archive_rate_limit
        )

    def forget(self) -> None:
        """Reset all counts."""
        for limiter in (self._raw, self._archives, self._anonymous_archives):
            limiter.forget()

    def check(self, path: StaticPath, project: Project, reader: Reader) -> None:
        """Count the request. Raise 429 above the limit."""
        if path.kind is Kind.RAW:
            wait = self._raw.retry_after((project.id, path.rest.partition("/")[2]))
        else:
            wait = self.archive(reader.id)
        if wait:
            raise web.HTTPTooManyRequests(
                text="This endpoint has been requested too many times. Try again later.\n",
                headers={"Retry-After": str(wait)},
            )

    def archive(self, user_id: int | None) -> int:
        """Count an archive for the user, or for all anonymous callers. Return the seconds to wait, or 0 within the
        limit."""
        if user_id is None:
            return self._anonymous_archives.retry_after("everybody")
        return self._archives.retry_after(user_id)


LIMITS = Key[Limits]("static_object_limits")
