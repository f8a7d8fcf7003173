# mypy: disable-error-code="empty-body"
"""Statements about custom roles."""

import attrs

from api_server.state.database import EntityRow, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query

_ENTITY = read_sql("api_server.accounts")["member_role"]

LISTING = ListQuery(_ENTITY, "SELECT member_roles.* FROM member_roles")


async def list_roles(database: Executor, page: Page) -> ListPage:
    return await LISTING.read(database, page)


# The statement that inserts a row cannot read it yet.
CREATE = """
    INSERT INTO member_roles (name, description, base_access_level, created_at)
    VALUES (%(name)s, %(description)s, %(base_access_level)s, %(now)s) RETURNING id
"""
SHOW = entity_statement(_ENTITY, "SELECT member_roles.* FROM member_roles WHERE member_roles.id = %(id)s")


async def create(transaction: Transaction, name: str, description: str, base_access_level: int) -> EntityRow:
    """Create a role and return it. Raise Conflict if the name exists."""
    role_id = await transaction.value(
        CREATE, name=name, description=description, base_access_level=base_access_level
    )
    return await transaction.one(SHOW, id=role_id)


HOLD = """
    SELECT member_roles.base_access_level FROM member_roles WHERE member_roles.id = %(id)s FOR KEY SHARE
"""


async def hold(transaction: Transaction, role_id: int) -> int | None:
    """Return the level of a role, or None, and prevent its removal until the transaction ends."""
    level: int | None = await transaction.value(HOLD, id=role_id)
    return level


@attrs.frozen
class CustomRole:
    """A role, and whether any member or invitation has it."""

    id: int
    name: str
    is_carried: bool


LOCK = Query(
    """
    SELECT member_roles.id, member_roles.name,
        EXISTS (SELECT FROM members WHERE members.member_role_id = member_roles.id)
            OR EXISTS (SELECT FROM invitations WHERE invitations.member_role_id = member_roles.id) AS is_carried
    FROM member_roles WHERE member_roles.id = %(id)s FOR UPDATE
    """,
    CustomRole,
)


async def lock(transaction: Transaction, role_id: int) -> CustomRole | None:
    """Lock and return the role, so that nobody can be given it meanwhile, or return None."""
    await transaction.run(LOCK, id=role_id)
    return await transaction.row(LOCK, id=role_id)  # the lock is held now: see what changed before


@statement("""
    DELETE FROM member_roles WHERE id = %(role_id)s
""")
async def remove(transaction: Transaction, role_id: int) -> None: ...
