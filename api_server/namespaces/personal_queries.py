"""Statements about users' own namespaces."""

import attrs

from api_server.state.database import Executor
from api_server.state.statements import Query


@attrs.frozen
class OwnNamespace:
    id: int
    owner_id: int
    full_path: str


OF_USER = Query(
    """
    SELECT namespaces.id, namespaces.owner_id, namespaces.full_path FROM namespaces
    WHERE namespaces.owner_id = %(user_id)s
    """,
    OwnNamespace,
)


async def namespace_of(database: Executor, user_id: int) -> OwnNamespace:
    """Raises NotFound where there is no such user."""
    return await database.one(OF_USER, user_id=user_id)


OF_NAMED_USER = Query(
    """
    SELECT namespaces.id, namespaces.owner_id, namespaces.full_path
    FROM users JOIN namespaces ON namespaces.owner_id = users.id
    WHERE CASE WHEN %(id)s::bigint IS NULL THEN lower(users.username) = lower(%(username)s)
        ELSE users.id = %(id)s::bigint END
    """,
    OwnNamespace,
)


async def namespace_of_named(
    database: Executor, *, user_id: int | None, username: str
) -> OwnNamespace | None:
    """By the user's id or (without one) by her user name."""
    return await database.row(OF_NAMED_USER, id=user_id, username=username)
