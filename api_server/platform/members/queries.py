"""Statements about members."""

import datetime

from api_server.state.database import Executor, Transaction

ADD_MEMBER = """
    INSERT INTO members (user_id, namespace_id, project_id, access_level, expires_at, created_by_id)
    VALUES (%(user_id)s, %(namespace_id)s, %(project_id)s, %(access_level)s, %(expires_at)s, %(created_by_id)s)
    RETURNING id
"""


async def add(
    transaction: Transaction,
    *,
    user_id: int,
    access_level: int,
    created_by_id: int | None,
    namespace_id: int | None = None,
    project_id: int | None = None,
    expires_at: datetime.date | None = None,
) -> int:
    """The new membership's id. Raises Conflict on `members_namespace` or `members_project`."""
    return int(
        await transaction.value(
            ADD_MEMBER,
            user_id=user_id,
            namespace_id=namespace_id,
            project_id=project_id,
            access_level=int(access_level),
            expires_at=expires_at,
            created_by_id=created_by_id,
        )
    )


MAY_CREATE_GROUP = """
    SELECT users.can_create_group AND NOT users.external FROM users WHERE users.id = %(user_id)s
"""


async def may_create_group(database: Executor, user_id: int) -> bool:
    """Whether the user may make top-level groups."""
    return bool(await database.value(MAY_CREATE_GROUP, user_id=user_id))
