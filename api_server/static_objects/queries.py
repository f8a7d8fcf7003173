"""Statements of static objects."""

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Statement


@attrs.frozen
class User:
    """Who may be given static objects; the seed makes her token."""

    id: int
    admin: bool
    state: str
    static_object_seed: bytes = attrs.field(repr=False)


_USERS = "SELECT users.id, users.admin, users.state, users.static_object_seed FROM users"
FIND_BY_TOKEN = Statement(f"{_USERS} WHERE users.static_object_digest = %(digest)s", User)
FIND = Statement(f"{_USERS} WHERE users.id = %(id)s", User)


async def user_of_token(database: Executor, digest: bytes) -> User | None:
    """Whose static-object token has this digest."""
    return await database.row(FIND_BY_TOKEN, digest=digest)


async def user(database: Executor, user_id: int) -> User | None:
    return await database.row(FIND, id=user_id)
