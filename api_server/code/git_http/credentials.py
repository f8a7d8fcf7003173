"""Who runs git: a token as the password of Basic authentication, with any user name."""

import base64
import binascii

from aiohttp import web

from api_server.state.database import Transaction
from api_server.state.secrets import JOB_TOKEN
from api_server.web import auth
from api_server.web.auth import ANONYMOUS, Anonymous, Caller
from api_server.web.errors import ApiError

READ_SCOPES = frozenset({"api", "read_repository", "write_repository"})
WRITE_SCOPES = frozenset({"api", "write_repository"})


async def git_caller(request: web.Request) -> Caller | Anonymous:
    """The user behind the token, or nobody without credentials. Raises 401 for a token that is not valid, 403 for
    whoever would act for somebody else."""
    auth.refuse_sudo_outside_of_api(request)
    password = _password(request)
    if password is None:
        return ANONYMOUS
    try:
        if password.startswith(JOB_TOKEN):
            return await auth.caller_of_job_token(request, password)
        return await auth.caller_of_personal_access_token(request, password)
    except ApiError as error:
        raise (blocked() if error.status == 403 else challenge()) from None


async def current_caller(transaction: Transaction, who: Caller) -> Caller:
    """The same user as the transaction sees her and her token. Raises 401, 403."""
    try:
        return await auth.still_valid(transaction, who)
    except ApiError as error:
        raise (blocked() if error.status == 403 else challenge()) from None


def challenge() -> web.HTTPUnauthorized:
    """Makes git ask for (or send) credentials."""
    return web.HTTPUnauthorized(
        text="HTTP Basic: Access denied. The password must be a token with the scope read_repository, "
        "write_repository or api.\n",
        headers={"WWW-Authenticate": 'Basic realm="forgelet"'},
    )


def blocked() -> web.HTTPForbidden:
    return web.HTTPForbidden(text="Your account has been blocked.\n")


def _password(request: web.Request) -> str | None:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        decoded = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise challenge() from None
    return decoded.partition(":")[2] or None
