"""`Sudo`: an administrator's request that is made with the rights of another user (decision D11)."""

import re
from typing import Any

from aiohttp import web

from api_server.state.database import MAX_BIGINT
from api_server.web import auth_queries, context
from api_server.web.auth import Caller, acting_as
from api_server.web.errors import ApiError, bad_parameters, forbidden, insufficient_scope, not_found
from api_server.web.request_data import in_url, merged

HEADER = "Sudo"
PARAMETER = "sudo"

_USERNAME = re.compile(r"[\w.-]{1,255}", re.ASCII)


async def acting(request: web.Request, who: Caller, *, reads_body: bool) -> Caller:
    """The user whom the request names, by id or user name, with the token of `who` as her `impersonator`; `who` where
    it names nobody. Raises 403 for whom it is not meant, 404, and 400 for what is neither."""
    identifier = await _named(request, reads_body=reads_body)
    if identifier is None:
        return who
    if who.job_id is not None:
        raise needs_personal_access_token()
    if not who.admin:
        raise forbidden("Must be admin to use sudo")
    if "sudo" not in who.scopes:
        raise insufficient_scope("sudo")
    user = await _find(request, identifier)
    if user is None:
        raise not_found(f"User with ID or username '{identifier}'")
    if user.id == who.user_id:
        return who
    return acting_as(user, who)


async def refuse(request: web.Request, *, reads_body: bool) -> None:
    """Raises 403 where a request names a user whose caller has another kind of token, or none."""
    if await _named(request, reads_body=reads_body) is not None:
        raise needs_personal_access_token()


def refuse_outside_of_api(request: web.Request) -> None:
    """Raises 403 for the header where nobody can act for somebody else (git, static objects): what was to be done with
    less rights is not done with all of them."""
    if HEADER in request.headers:
        raise web.HTTPForbidden(text="Sudo is for requests of the API only.\n")


def needs_personal_access_token() -> ApiError:
    return forbidden("Must be authenticated using an OAuth or personal access token to use sudo")


async def _named(request: web.Request, *, reads_body: bool) -> str | None:
    """Whom the request names: by the parameter, else by the header."""
    sent: dict[str, Any] = await merged(request) if reads_body else in_url(request)
    value = sent.get(PARAMETER)
    if value is None:
        lines = request.headers.getall(HEADER, None)
        return None if lines is None else ", ".join(lines).encode("utf-8", "replace").decode()
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise bad_parameters(f"{PARAMETER} is invalid")
    return str(value)


async def _find(request: web.Request, identifier: str) -> auth_queries.ActingUser | None:
    if not _USERNAME.fullmatch(identifier):
        return None
    number = int(identifier) if identifier.isdecimal() else None
    if number is not None and number > MAX_BIGINT:
        return None
    return await auth_queries.find_acting_user(context.database(request), user_id=number, username=identifier)
