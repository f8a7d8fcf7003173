# mypy: disable-error-code="empty-body"
"""Statements about members, the ends of memberships, and the resulting lists of people and memberships.

A membership belongs to a project (`project_id`) or a group (`namespace_id`). Lists take several:
`namespace_ids` are groups from the root down, whose members have their role in everything below too.
"""

import datetime

import attrs

from api_server.accounts.user_queries import SEARCH
from api_server.namespaces.namespace_queries import ENTITIES
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement
from api_server.state.statements import Query

_MEMBER = ENTITIES["member"]

_FILTERS = f"""
    {SEARCH.condition}
    AND (%(user_ids)s::bigint[] IS NULL OR users.id = ANY (%(user_ids)s::bigint[]))
"""
#: The users with a membership in any of the groups or the project, each once.
EVERYBODY = f"""
    SELECT users.* FROM users
    WHERE users.id IN (
            SELECT members.user_id FROM members
            WHERE members.project_id = %(project_id)s::bigint AND counts(members, %(now)s)
            UNION ALL
            SELECT members.user_id FROM members
            WHERE members.namespace_id = ANY (%(namespace_ids)s::bigint[]) AND counts(members, %(now)s))
        AND {_FILTERS}
"""
LISTING = ListQuery(_MEMBER, EVERYBODY)
#: In a single group or project nobody occurs twice, and an index has its members in the order of the list.
_IN_ONE_GROUP = ListQuery(
    _MEMBER,
    f"""
    SELECT users.* FROM members JOIN users ON users.id = members.user_id
    WHERE members.namespace_id = (%(namespace_ids)s::bigint[])[1] AND counts(members, %(now)s) AND {_FILTERS}
    """,
)
_IN_ONE_PROJECT = ListQuery(
    _MEMBER,
    f"""
    SELECT users.* FROM members JOIN users ON users.id = members.user_id
    WHERE members.project_id = %(project_id)s::bigint AND counts(members, %(now)s) AND {_FILTERS}
    """,
)


async def list_members(
    database: Executor,
    page: Page,
    *,
    project_id: int | None,
    namespace_ids: list[int],
    query: str | None,
    finds_private: bool,
    user_ids: list[int] | None,
) -> ListPage:
    """Return a page of the users with a membership in any of these places, each with the greatest role, by
    id. `query` also searches private addresses if `finds_private`."""
    listing = LISTING
    if project_id is None and len(namespace_ids) == 1:
        listing = _IN_ONE_GROUP
    elif project_id is not None and not namespace_ids:
        listing = _IN_ONE_PROJECT
    return await listing.read(
        database,
        page,
        project_id=project_id,
        namespace_ids=namespace_ids,
        search=query,
        found=await SEARCH.find(database, query, finds_private=finds_private),
        finds_private=finds_private,
        user_ids=user_ids,
        changed=None,
    )


@statement(entity_statement(_MEMBER, "SELECT users.* FROM users WHERE users.id = %(user_id)s"))
async def show_member(
    database: Executor,
    user_id: int,
    *,
    project_id: int | None,
    namespace_ids: list[int],
    changed: int | None = None,
) -> str:
    """Return the user's entity with the greatest role in these places. Expired memberships do not count,
    except for the one with the id `changed`. Raise NotFound if the user is not a member of any."""


@attrs.frozen
class Member:
    """A direct membership, with its user's name."""

    id: int
    user_id: int
    access_level: int
    expires_at: datetime.date | None
    member_role_id: int | None
    name: str
    bot: bool


@statement(
    """
    SELECT members.id, members.user_id, members.access_level, members.expires_at, members.member_role_id, users.name,
        users.bot
    FROM members JOIN users ON users.id = members.user_id
    WHERE members.user_id = %(user_id)s
        AND (members.project_id = %(project_id)s::bigint OR members.namespace_id = %(namespace_id)s::bigint)
        AND counts(members, %(now)s)
    """,
    prepared=True,
)
async def find_member(
    database: Executor, user_id: int, *, namespace_id: int | None, project_id: int | None
) -> Member | None: ...


@attrs.frozen
class InheritedRole:
    access_level: int
    group_name: str


@statement("""
    SELECT members.access_level, namespaces.name AS group_name
    FROM members JOIN namespaces ON namespaces.id = members.namespace_id
    WHERE members.user_id = %(user_id)s AND members.namespace_id = ANY (%(namespace_ids)s::bigint[])
        AND counts(members, %(now)s)
    ORDER BY members.access_level DESC, array_position(%(namespace_ids)s::bigint[], members.namespace_id) DESC
    LIMIT 1
    """)
async def find_inherited(database: Executor, user_id: int, namespace_ids: list[int]) -> InheritedRole | None:
    """Return the user's membership with the greatest role in these groups."""


#: A custom role is removed when the access level changes.
@statement("""
    UPDATE members SET access_level = %(access_level)s, expires_at = %(expires_at)s,
        member_role_id = CASE WHEN access_level = %(access_level)s THEN member_role_id END
    WHERE id = %(member_id)s
""")
async def update(
    transaction: Transaction, member_id: int, access_level: int, expires_at: datetime.date | None
) -> None: ...


@statement("""
    DELETE FROM members WHERE id = %(member_id)s
""")
async def remove(transaction: Transaction, member_id: int) -> None: ...


LOCK_GROUP = """
    SELECT namespaces.id FROM namespaces WHERE namespaces.id = %(id)s FOR NO KEY UPDATE
"""


async def lock_group(transaction: Transaction, group_id: int) -> None:
    """Prevent others from changing the owners of the group until the transaction ends. Raise NotFound."""
    if await transaction.value(LOCK_GROUP, id=group_id) is None:
        raise NotFound


OTHER_OWNER = """
    SELECT members.id FROM members JOIN users ON users.id = members.user_id
    WHERE members.namespace_id = ANY (%(lineage)s::bigint[]) AND members.access_level = 50 AND members.id <> %(id)s
        AND NOT users.bot AND counts(members, %(now)s)
    LIMIT 1
"""


async def has_other_owner(transaction: Transaction, lineage: list[int], member_id: int) -> bool:
    """Return whether any other membership makes a person (not a bot) an Owner of a group with that
    `lineage`."""
    return await transaction.value(OTHER_OWNER, lineage=lineage, id=member_id) is not None


LOCK_OWNED = """
    SELECT namespaces.id FROM members JOIN namespaces ON namespaces.id = members.namespace_id
    WHERE members.user_id = %(user_id)s AND members.access_level = 50 AND counts(members, %(now)s)
    ORDER BY namespaces.id FOR NO KEY UPDATE OF namespaces
"""


@attrs.frozen
class _Owned:
    id: int
    lineage: list[int]


ONLY_OWNER = Query(
    """
    SELECT namespaces.id, namespaces.lineage FROM members own JOIN namespaces ON namespaces.id = own.namespace_id
    WHERE own.user_id = %(user_id)s AND own.access_level = 50 AND counts(own, %(now)s) AND NOT EXISTS (
        SELECT FROM members JOIN users ON users.id = members.user_id
        WHERE members.namespace_id = ANY (namespaces.lineage) AND members.access_level = 50
            AND members.user_id <> %(user_id)s AND NOT users.bot AND counts(members, %(now)s))
    ORDER BY namespaces.id
    """,
    _Owned,
)


async def groups_of_only_owner(transaction: Transaction, user_id: int) -> list[int]:
    """Return the ids of the groups that have, also by inheritance, no Owner except the user (and bots); of
    nested groups only the uppermost. Prevent others from changing their owners until the transaction ends."""
    await transaction.run(LOCK_OWNED, user_id=user_id)
    owned = await transaction.rows(ONLY_OWNER, user_id=user_id)
    ids = {group.id for group in owned}
    return [group.id for group in owned if ids.isdisjoint(group.lineage[:-1])]


OWNS_NAMESPACE = """
    SELECT namespaces.id FROM namespaces WHERE namespaces.id = %(id)s AND namespaces.owner_id = %(user_id)s
"""


async def owns_namespace(database: Executor, namespace_id: int, user_id: int) -> bool:
    """Return whether it is the user's own namespace, the one that holds personal projects."""
    return await database.value(OWNS_NAMESPACE, id=namespace_id, user_id=user_id) is not None


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
    """Add a membership and return its id, or None if the user already has one there."""
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


@attrs.frozen
class EndedMembership:
    """A membership that has ended, with its user's name and the full path of its group or project."""

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


@statement(f"""
    DELETE FROM members USING users
    WHERE users.id = members.user_id AND members.user_id = %(user_id)s AND (
        members.namespace_id IN (SELECT namespaces.id FROM namespaces
            WHERE namespaces.lineage @> ARRAY[%(group_id)s]::bigint[] AND namespaces.id <> %(group_id)s)
        OR members.project_id IN (SELECT projects.id FROM projects
            JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE namespaces.lineage @> ARRAY[%(group_id)s]::bigint[]))
    {_ENDED}
    """)
async def remove_below(transaction: Transaction, group_id: int, user_id: int) -> list[EndedMembership]:
    """End the user's direct memberships of the group's subgroups and projects, and return them."""


@statement(
    f"DELETE FROM members USING users WHERE users.id = members.user_id AND members.user_id = %(user_id)s {_ENDED}"
)
async def remove_all_of(transaction: Transaction, user_id: int) -> list[EndedMembership]:
    """End all memberships of a user, and return them."""


@statement(f"""
    DELETE FROM members USING users
    WHERE users.id = members.user_id AND NOT counts(members, %(now)s)
        AND (%(user_id)s::bigint IS NULL OR (members.user_id = %(user_id)s
            AND (members.project_id = %(project_id)s::bigint OR members.namespace_id = %(namespace_id)s::bigint)))
    {_ENDED}
    """)
async def remove_expired(
    transaction: Transaction, user_id: int | None, namespace_id: int | None, project_id: int | None
) -> list[EndedMembership]:
    """End expired memberships and return them: those of one user in one group or project, or (None) all."""


@attrs.frozen
class WithdrawnInvitation:
    """A withdrawn invitation, with the full path of its group or project."""

    email: str
    access_level: int
    namespace_id: int | None
    project_id: int | None
    full_path: str


#: Includes the invitations below a group if %(below)s, all invitations if %(everywhere)s, and in any case
#: those that the user may no longer make.
@statement("""
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
    """)
async def remove_invitations_by(
    transaction: Transaction,
    user_id: int,
    *,
    namespace_id: int | None = None,
    project_id: int | None = None,
    below: bool = False,
    everywhere: bool = False,
) -> list[WithdrawnInvitation]:
    """Withdraw and return the user's invitations in that place, and those that the user may no longer
    make."""


USERS = ListQuery(
    ENTITIES["user"],
    f"{EVERYBODY} AND (%(skip_users)s::bigint[] IS NULL OR users.id <> ALL (%(skip_users)s::bigint[]))",
)
MEMBERSHIPS = ListQuery(
    ENTITIES["membership"],
    """
    SELECT members.* FROM members
    WHERE members.user_id = %(user_id)s AND counts(members, %(now)s)
        AND (%(type)s::text IS NULL OR (members.project_id IS NOT NULL) = (%(type)s = 'Project'))
    """,
)
