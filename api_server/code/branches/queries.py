"""Statements about protected branches."""

from typing import Any

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_ENTITY = read_sql("api_server.code.branches")["protected_branch"]

LISTING = Listing(
    _ENTITY,
    """
    SELECT rules.* FROM protected_branches rules WHERE rules.project_id = %(project_id)s
        AND (%(search)s::text IS NULL OR strpos(lower(rules.name), lower(%(search)s)) > 0)
    """,
    {"name": "name"},
)


async def list_protected(database: Executor, page: Page, project_id: int, search: str | None) -> Listed:
    return await LISTING.read(database, page, project_id=project_id, search=search)


SHOW = one(
    _ENTITY,
    """
    SELECT rules.* FROM protected_branches rules
    WHERE rules.project_id = %(project_id)s AND rules.name = %(name)s
    """,
)


async def show_protected(database: Executor, project_id: int, name: str) -> str | None:
    return await database.entity_if_there(SHOW, project_id=project_id, name=name)


LOCK = """
    SELECT rules.* FROM protected_branches rules
    WHERE rules.project_id = %(project_id)s AND rules.name = %(name)s FOR UPDATE
"""


async def lock_protected(transaction: Transaction, project_id: int, name: str) -> Row | None:
    """The whole row, which nobody else changes until the transaction ends."""
    return await transaction.row(LOCK, project_id=project_id, name=name)


PROTECT = """
    INSERT INTO protected_branches (project_id, name, push_access_level, merge_access_level, allow_force_push,
        code_owner_approval_required)
    VALUES (%(project_id)s, %(name)s, %(push_access_level)s, %(merge_access_level)s, %(allow_force_push)s,
        %(code_owner_approval_required)s)
    RETURNING *
"""


async def protect(transaction: Transaction, project_id: int, name: str, **values: Any) -> Row:
    """The new row. Raises Conflict on `protected_branches_name`."""
    return await transaction.row(PROTECT, project_id=project_id, name=name, **values)


UPDATE = """
    UPDATE protected_branches SET push_access_level = %(push_access_level)s,
        merge_access_level = %(merge_access_level)s, allow_force_push = %(allow_force_push)s,
        code_owner_approval_required = %(code_owner_approval_required)s, updated_at = now()
    WHERE id = %(id)s
"""


async def update_protected(transaction: Transaction, rule_id: int, **values: Any) -> None:
    await transaction.row(UPDATE, id=rule_id, **values)


UNPROTECT = """
    DELETE FROM protected_branches WHERE id = %(id)s
"""


async def unprotect(transaction: Transaction, rule_id: int) -> None:
    await transaction.row(UNPROTECT, id=rule_id)
