"""Statements that end memberships, and take back what their users have invited others to."""

import datetime

import attrs

from api_server.state.database import Transaction
from api_server.state.statements import Query


@attrs.frozen
class Ended:
    """What a membership was: with its user's name, and the full path of its place."""

    id: int
    user_id: int
    access_level: int
    expires_at: datetime.date | None
    member_role_id: int | None
    namespace_id: int | None
    project_id: int | None
    name: str
    full_path: str


_ENDED = """
    RETURNING members.id, members.user_id, members.access_level, members.expires_at, members.member_role_id,
        members.namespace_id, members.project_id, users.name,
        coalesce((SELECT projects.full_path FROM projects WHERE projects.id = members.project_id),
            (SELECT namespaces.full_path FROM namespaces WHERE namespaces.id = members.namespace_id)) AS full_path
"""

REMOVE_BELOW = Query(
    f"""
    DELETE FROM members USING users
    WHERE users.id = members.user_id AND members.user_id = %(user_id)s AND (
        members.namespace_id IN (SELECT namespaces.id FROM namespaces
            WHERE namespaces.lineage @> ARRAY[%(group_id)s]::bigint[] AND namespaces.id <> %(group_id)s)
        OR members.project_id IN (SELECT projects.id FROM projects
            JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE namespaces.lineage @> ARRAY[%(group_id)s]::bigint[]))
    {_ENDED}
    """,
    Ended,
)


async def remove_below(transaction: Transaction, group_id: int, user_id: int) -> list[Ended]:
    """Ends the user's direct memberships of the group's subgroups and projects, and gives them."""
    return await transaction.rows(REMOVE_BELOW, group_id=group_id, user_id=user_id)


REMOVE_ALL_OF = Query(
    f"DELETE FROM members USING users WHERE users.id = members.user_id AND members.user_id = %(user_id)s {_ENDED}",
    Ended,
)


async def remove_all_of(transaction: Transaction, user_id: int) -> list[Ended]:
    """Ends all memberships of a user, and gives them."""
    return await transaction.rows(REMOVE_ALL_OF, user_id=user_id)


REMOVE_EXPIRED = Query(
    f"""
    DELETE FROM members USING users
    WHERE users.id = members.user_id AND NOT counts(members, %(now)s)
        AND (%(user_id)s::bigint IS NULL OR (members.user_id = %(user_id)s
            AND (members.project_id = %(project_id)s::bigint OR members.namespace_id = %(namespace_id)s::bigint)))
    {_ENDED}
    """,
    Ended,
)


async def remove_expired(
    transaction: Transaction, user_id: int | None, namespace_id: int | None, project_id: int | None
) -> list[Ended]:
    """Ends memberships that have expired, and gives them: one user's at one place, or (None) all."""
    return await transaction.rows(
        REMOVE_EXPIRED, user_id=user_id, namespace_id=namespace_id, project_id=project_id
    )


@attrs.frozen
class Withdrawn:
    """What an invitation was, with the full path of its place."""

    email: str
    access_level: int
    namespace_id: int | None
    project_id: int | None
    full_path: str


#: With the invitations below a group where %(below)s, with all where %(everywhere)s; in any case those that she may not
#: make any more.
REMOVE_INVITATIONS = Query(
    """
    DELETE FROM invitations
    WHERE invitations.created_by_id = %(user_id)s AND (
        %(everywhere)s OR NOT invitation_holds(invitations, %(now)s)
        OR invitations.project_id = %(project_id)s::bigint OR invitations.namespace_id = %(namespace_id)s::bigint
        OR %(below)s AND (
            invitations.namespace_id IN (SELECT namespaces.id FROM namespaces
                WHERE namespaces.lineage @> ARRAY[%(namespace_id)s]::bigint[])
            OR invitations.project_id IN (SELECT projects.id FROM projects
                JOIN namespaces ON namespaces.id = projects.namespace_id
                WHERE namespaces.lineage @> ARRAY[%(namespace_id)s]::bigint[])))
    RETURNING invitations.email, invitations.access_level, invitations.namespace_id, invitations.project_id,
        coalesce((SELECT projects.full_path FROM projects WHERE projects.id = invitations.project_id),
            (SELECT namespaces.full_path FROM namespaces WHERE namespaces.id = invitations.namespace_id)) AS full_path
    """,
    Withdrawn,
)


async def remove_invitations_by(
    transaction: Transaction,
    user_id: int,
    *,
    namespace_id: int | None = None,
    project_id: int | None = None,
    below: bool = False,
    everywhere: bool = False,
) -> list[Withdrawn]:
    """Takes back what the user has invited others to there, and what she may not invite to any more: those."""
    return await transaction.rows(
        REMOVE_INVITATIONS,
        user_id=user_id,
        namespace_id=namespace_id,
        project_id=project_id,
        below=below,
        everywhere=everywhere,
    )
