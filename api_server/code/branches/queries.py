"""Statements about protected branches."""

from collections.abc import Sequence
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Query, Statement

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


async def show_protected(database: Executor, project_id: int, name: str) -> str:
    """Raises NotFound where no rule has that name."""
    return await database.entity(SHOW, project_id=project_id, name=name)


@attrs.frozen
class Protected:
    """A rule, which means the branches that match its name."""

    id: int
    name: str
    push_access_level: int
    merge_access_level: int
    allow_force_push: bool
    code_owner_approval_required: bool


_COLUMNS = "id, name, push_access_level, merge_access_level, allow_force_push, code_owner_approval_required"

LOCK = Query(
    f"SELECT {_COLUMNS} FROM protected_branches WHERE project_id = %(project_id)s AND name = %(name)s FOR UPDATE",
    Protected,
)


async def lock_protected(transaction: Transaction, project_id: int, name: str) -> Protected:
    """The rule, which nobody else changes until the transaction ends. Raises NotFound."""
    return await transaction.one(LOCK, project_id=project_id, name=name)


PROTECT = Query(
    f"""
    INSERT INTO protected_branches (project_id, name, push_access_level, merge_access_level, allow_force_push,
        code_owner_approval_required, created_at, updated_at)
    VALUES (%(project_id)s, %(name)s, %(push_access_level)s, %(merge_access_level)s, %(allow_force_push)s,
        %(code_owner_approval_required)s, %(now)s, %(now)s)
    RETURNING {_COLUMNS}
    """,
    Protected,
)


async def protect(transaction: Transaction, project_id: int, name: str, **values: Any) -> Protected:
    """The new rule. Raises Conflict on `protected_branches_name`."""
    return await transaction.one(PROTECT, project_id=project_id, name=name, **values)


UPDATE = """
    UPDATE protected_branches SET push_access_level = %(push_access_level)s,
        merge_access_level = %(merge_access_level)s, allow_force_push = %(allow_force_push)s,
        code_owner_approval_required = %(code_owner_approval_required)s, updated_at = %(now)s
    WHERE id = %(id)s
"""


async def update_protected(transaction: Transaction, rule_id: int, **values: Any) -> None:
    await transaction.run(UPDATE, id=rule_id, **values)


UNPROTECT = """
    DELETE FROM protected_branches WHERE id = %(id)s
"""


async def unprotect(transaction: Transaction, rule_id: int) -> None:
    await transaction.run(UNPROTECT, id=rule_id)


@attrs.frozen
class RulesTogether:
    """What the rules that match one branch's `name` say together."""

    name: str
    push_levels: list[int]
    merge_levels: list[int]
    allow_force_push: bool


RULES_FOR = Statement(
    """
    SELECT wanted.name,
        array_agg(DISTINCT rules.push_access_level::int) AS push_levels,
        array_agg(DISTINCT rules.merge_access_level::int) AS merge_levels,
        bool_or(rules.allow_force_push) AS allow_force_push
    FROM unnest(%(names)s::text[]) AS wanted (name)
    JOIN protected_branches rules
        ON rules.project_id = %(project_id)s AND wildcard_matches(rules.name, wanted.name)
    GROUP BY wanted.name
    """,
    RulesTogether,
)


async def rules_for(database: Executor, project_id: int, names: Sequence[str]) -> list[RulesTogether]:
    """Of each of these branches that a rule matches."""
    return await database.rows(RULES_FOR, project_id=project_id, names=list(names))
