"""Statements about the memberships themselves: what members, and making groups and projects, have in common."""

import datetime

from api_server.state.database import Transaction

ADD_MEMBER = """
    INSERT INTO members (user_id, namespace_id, project_id, access_level, member_role_id, expires_at, created_by_id,
        created_at)
    VALUES (%(user_id)s, %(namespace_id)s, %(project_id)s, %(access_level)s, %(member_role_id)s, %(expires_at)s,
        %(created_by_id)s, %(now)s)
    ON CONFLICT DO NOTHING
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
    member_role_id: int | None = None,
) -> int | None:
    """The new membership's id; None where the user has one there already."""
    added: int | None = await transaction.value(
        ADD_MEMBER,
        user_id=user_id,
        namespace_id=namespace_id,
        project_id=project_id,
        access_level=access_level,
        expires_at=expires_at,
        created_by_id=created_by_id,
        member_role_id=member_role_id,
    )
    return added
