"""Statements about custom roles."""

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_ENTITY = read_sql("api_server.accounts.member_roles")["member_role"]

LISTING = Listing(_ENTITY, "SELECT member_roles.* FROM member_roles")


async def list_roles(database: Executor, page: Page) -> Listed:
    return await LISTING.read(database, page)


# The new row is not yet there for the rest of its own statement.
CREATE = """
    INSERT INTO member_roles (name, description, base_access_level)
    VALUES (%(name)s, %(description)s, %(base_access_level)s) RETURNING id
"""
SHOW = one(_ENTITY, "SELECT member_roles.* FROM member_roles WHERE member_roles.id = %(id)s")


async def create(transaction: Transaction, name: str, description: str, base_access_level: int) -> Row:
    """The role's id and its entity. Raises Conflict for a name that exists."""
    role_id = await transaction.value(
        CREATE, name=name, description=description, base_access_level=base_access_level
    )
    row: Row = await transaction.row(SHOW, id=role_id)
    return row


#: For as long as the transaction lasts, the role stays.
FIND = """
    SELECT member_roles.* FROM member_roles WHERE member_roles.id = %(id)s FOR KEY SHARE
"""


async def find(transaction: Transaction, role_id: int) -> Row | None:
    return await transaction.row(FIND, id=role_id)


LOCK = """
    SELECT member_roles.*,
        EXISTS (SELECT FROM members WHERE members.member_role_id = member_roles.id)
            OR EXISTS (SELECT FROM invitations WHERE invitations.member_role_id = member_roles.id) AS is_carried
    FROM member_roles WHERE member_roles.id = %(id)s FOR UPDATE
"""


async def lock(transaction: Transaction, role_id: int) -> Row | None:
    """The role, which nobody can be given meanwhile, and whether anybody carries it."""
    if await transaction.row(LOCK, id=role_id) is None:
        return None
    return await transaction.row(LOCK, id=role_id)  # what waited for the lock sees who has got it before


REMOVE = """
    DELETE FROM member_roles WHERE id = %(id)s
"""


async def remove(transaction: Transaction, role_id: int) -> None:
    await transaction.row(REMOVE, id=role_id)
