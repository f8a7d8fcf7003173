"""Statements of static objects."""

from api_server.state.database import Executor, Row
from api_server.state.statements import Statement

FIND_BY_TOKEN = Statement("""
    SELECT users.id, users.admin, users.state, users.static_object_seed FROM users
    WHERE users.static_object_digest = %(digest)s
""")


async def user_of_token(database: Executor, digest: bytes) -> Row | None:
    """id, admin, state and static_object_seed of the user whose static-object token has this digest."""
    return await database.row(FIND_BY_TOKEN, digest=digest)


FIND_SEED = """
    SELECT users.id, users.admin, users.state, users.static_object_seed FROM users WHERE users.id = %(id)s
"""


async def user(database: Executor, user_id: int) -> Row | None:
    return await database.row(FIND_SEED, id=user_id)
