"""Statements about invitations, and about who owns which address."""

import datetime
from typing import Any

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_ENTITIES = read_sql("api_server.invitations")
_LISTS = {
    kind: Listing(
        _ENTITIES["invitation"],
        f"""
        SELECT invitations.* FROM invitations
        WHERE invitations.{kind}_id = %({kind}_id)s::bigint
            AND (%(query)s::text IS NULL OR lower(invitations.email) = lower(%(query)s))
        """,
    )
    for kind in ("namespace", "project")
}
LISTING = _LISTS["project"]


async def list_invitations(
    database: Executor, page: Page, *, namespace_id: int | None, project_id: int | None, query: str | None
) -> Listed:
    if project_id is not None:
        return await _LISTS["project"].read(database, page, project_id=project_id, query=query)
    return await _LISTS["namespace"].read(database, page, namespace_id=namespace_id, query=query)


#: Of the addresses in %(emails)s (lower case), those that somebody has confirmed to be hers.
OWNERS = """
    SELECT address AS email, owner.id, owner.username, owner.name
    FROM unnest(%(emails)s::text[]) address CROSS JOIN owner_of_address(address) owner
"""


async def owners_of(database: Executor, emails: list[str]) -> dict[str, Row]:
    """Users (id, username, name) by the confirmed addresses, in lower case, among `emails`."""
    rows = await database.rows(OWNERS, emails=[email.lower() for email in emails])
    return {row.email: row for row in rows}


USERS = """
    SELECT users.id, users.username, users.name FROM users WHERE users.id = ANY (%(ids)s::bigint[])
"""


async def users_with(database: Executor, ids: list[int]) -> list[Row]:
    """id, username and name of those that exist."""
    return await database.rows(USERS, ids=ids)


CREATE = """
    INSERT INTO invitations (namespace_id, project_id, email, access_level, member_role_id, expires_at,
        created_by_id, token_seed, token_digest)
    VALUES (%(namespace_id)s, %(project_id)s, %(email)s, %(access_level)s, %(member_role_id)s, %(expires_at)s,
        %(created_by_id)s, %(token_seed)s, %(token_digest)s)
    ON CONFLICT DO NOTHING
    RETURNING id
"""


async def create(transaction: Transaction, **values: Any) -> int | None:
    """The new id; None where the address has been invited there already."""
    row = await transaction.row(CREATE, **values)
    return row and int(row.id)


_WITH_SOURCE = """
    SELECT invitations.*, inviter.name AS inviter_name, inviter.email AS inviter_email,
        coalesce(projects.name, namespaces.name) AS source_name,
        coalesce(projects.full_path, namespaces.full_path) AS source_path,
        coalesce(projects.description, namespaces.description, '') AS source_description,
        coalesce(namespaces.lineage, holders.lineage) AS lineage
    FROM invitations
    LEFT JOIN users inviter ON inviter.id = invitations.created_by_id
    LEFT JOIN projects ON projects.id = invitations.project_id
    LEFT JOIN namespaces holders ON holders.id = projects.namespace_id
    LEFT JOIN namespaces ON namespaces.id = invitations.namespace_id
"""

FIND_BY_EMAIL = f"""
    {_WITH_SOURCE}
    WHERE (invitations.project_id = %(project_id)s::bigint OR invitations.namespace_id = %(namespace_id)s::bigint)
        AND lower(invitations.email) = lower(%(email)s)
    FOR UPDATE OF invitations
"""


async def lock_by_email(transaction: Transaction, email: str, **place: int | None) -> Row | None:
    """The invitation with its source and who made it; nobody else changes it until the transaction ends."""
    return await transaction.row(FIND_BY_EMAIL, email=email, **place)


FIND_BY_TOKEN = f"{_WITH_SOURCE} WHERE invitations.token_digest = %(digest)s"
LOCK_BY_TOKEN = f"{FIND_BY_TOKEN} FOR UPDATE OF invitations"


async def find_by_token(database: Executor, digest: bytes, *, locked: bool = False) -> Row | None:
    """As `lock_by_email`."""
    return await database.row(LOCK_BY_TOKEN if locked else FIND_BY_TOKEN, digest=digest)


FIND = f"{_WITH_SOURCE} WHERE invitations.id = %(id)s"


async def find(database: Executor, invitation_id: int) -> Row | None:
    return await database.row(FIND, id=invitation_id)


UPDATE = one(
    _ENTITIES["changed"],
    """
    UPDATE invitations SET access_level = %(access_level)s, expires_at = %(expires_at)s, updated_at = now(),
        member_role_id = CASE WHEN access_level = %(access_level)s THEN member_role_id END
    WHERE id = %(id)s RETURNING *
    """,
)


async def update(
    transaction: Transaction, invitation_id: int, access_level: int, expires_at: datetime.date | None
) -> str:
    """The JSON that endpoint 33 answers with."""
    return await transaction.entity(
        UPDATE, id=invitation_id, access_level=access_level, expires_at=expires_at
    )


DELETE = """
    DELETE FROM invitations WHERE id = %(id)s
"""


async def delete(transaction: Transaction, invitation_id: int) -> None:
    await transaction.row(DELETE, id=invitation_id)


IS_OWN_ADDRESS = """
    SELECT EXISTS (SELECT FROM owner_of_address(%(email)s) owner WHERE owner.id = %(user_id)s)
"""


async def is_own_address(database: Executor, user_id: int, email: str) -> bool:
    """Whether the user has confirmed that the address is hers."""
    return bool(await database.value(IS_OWN_ADDRESS, user_id=user_id, email=email))


#: Those that may get a reminder: an inviter is still there, and nobody has come with that address.
WITHOUT_ANSWER = """
    SELECT invitations.id, invitations.created_at, invitations.expires_at, invitations.reminders_sent
    FROM invitations
    WHERE invitations.reminders_sent < %(most)s AND invitations.created_by_id IS NOT NULL
        AND NOT EXISTS (SELECT FROM owner_of_address(invitations.email))
    ORDER BY invitations.id FOR UPDATE SKIP LOCKED
"""


async def without_answer(transaction: Transaction, most: int) -> list[Row]:
    """id, created_at, expires_at, reminders_sent of those with fewer than `most` reminders."""
    return await transaction.rows(WITHOUT_ANSWER, most=most)


NOTE_REMINDER = """
    UPDATE invitations SET reminders_sent = %(sent)s WHERE id = %(id)s
"""


async def note_reminder(transaction: Transaction, invitation_id: int, sent: int) -> None:
    await transaction.row(NOTE_REMINDER, id=invitation_id, sent=sent)


OVER = f"""
    {_WITH_SOURCE}
    WHERE invitations.expires_at <= %(today)s OR invitations.created_at < %(oldest)s
    ORDER BY invitations.id FOR UPDATE OF invitations SKIP LOCKED
"""


async def lock_over(transaction: Transaction, today: datetime.date, oldest: datetime.datetime) -> list[Row]:
    """Invitations that have expired, or that were made before `oldest`."""
    return await transaction.rows(OVER, today=today, oldest=oldest)
