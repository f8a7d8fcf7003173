# mypy: disable-error-code="empty-body"
"""Statements about the users who ask for static objects."""

import attrs

from api_server.state.database import Executor
from api_server.state.declarations import statement


@attrs.frozen
class User:
    """A user who can read static objects. The user's static-object token is derived from the seed."""

    id: int
    admin: bool
    state: str
    static_object_seed: bytes = attrs.field(repr=False)


_USERS = "SELECT users.id, users.admin, users.state, users.static_object_seed FROM users"


#: A bot exists for its access token: without a valid one, its static-object token does not count either.
@statement(
    f"""
    {_USERS} WHERE users.static_object_digest = %(digest)s AND (NOT users.bot OR EXISTS (
        SELECT FROM personal_access_tokens tokens
        WHERE tokens.user_id = users.id AND NOT tokens.revoked AND NOT has_expired(tokens.expires_at, %(now)s)))
    """,
    prepared=True,
)
async def user_of_token(database: Executor, digest: bytes) -> User | None:
    """Return the user whose static-object token has this digest, or None. Bots need a valid access token, too."""


@statement(f"{_USERS} WHERE users.id = %(user_id)s", prepared=True)
async def user(database: Executor, user_id: int) -> User | None: ...
