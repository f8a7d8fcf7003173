# mypy: disable-error-code="empty-body"
"""Statements of static objects."""

import attrs

from api_server.state.database import Executor
from api_server.state.declarations import statement


@attrs.frozen
class User:
    """Who may be given static objects; the seed makes her token."""

    id: int
    admin: bool
    state: str
    static_object_seed: bytes = attrs.field(repr=False)


_USERS = "SELECT users.id, users.admin, users.state, users.static_object_seed FROM users"


#: A bot is there for its access token, and opens nothing without one.
@statement(
    f"""
    {_USERS} WHERE users.static_object_digest = %(digest)s AND (NOT users.bot OR EXISTS (
        SELECT FROM personal_access_tokens tokens
        WHERE tokens.user_id = users.id AND NOT tokens.revoked AND NOT has_expired(tokens.expires_at, %(now)s)))
    """,
    prepared=True,
)
async def user_of_token(database: Executor, digest: bytes) -> User | None:
    """Whose static-object token has this digest, as long as it is good for something."""


@statement(f"{_USERS} WHERE users.id = %(user_id)s", prepared=True)
async def user(database: Executor, user_id: int) -> User | None: ...
