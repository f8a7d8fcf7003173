# mypy: disable-error-code="empty-body"
"""Statements about protected branches and tags."""

from collections.abc import Sequence
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql

_ENTITIES = read_sql("api_server.code")
_BRANCH, _TAG = _ENTITIES["protected_branch"], _ENTITIES["protected_tag"]

BRANCH_LISTING = ListQuery(
    _BRANCH,
    """
    SELECT rules.* FROM protected_branches rules WHERE rules.project_id = %(project_id)s
        AND (%(search)s::text IS NULL OR strpos(lower(rules.name), lower(%(search)s)) > 0)
    """,
    {"name": "name"},
)


async def list_protected_branches(
    database: Executor, page: Page, project_id: int, search: str | None
) -> ListPage:
    return await BRANCH_LISTING.read(database, page, project_id=project_id, search=search)


@statement(
    entity_statement(
        _BRANCH,
        """
    SELECT rules.* FROM protected_branches rules
    WHERE rules.project_id = %(project_id)s AND rules.name = %(name)s
    """,
    )
)
async def show_protected_branch(database: Executor, project_id: int, name: str) -> str:
    """Return the rule with this name as JSON. Raise `NotFound`."""


@attrs.frozen
class ProtectedBranch:
    """A rule for the branches that match its name."""

    id: int
    name: str
    push_access_level: int
    merge_access_level: int
    allow_force_push: bool
    code_owner_approval_required: bool


_COLUMNS = "id, name, push_access_level, merge_access_level, allow_force_push, code_owner_approval_required"


@statement(
    f"SELECT {_COLUMNS} FROM protected_branches WHERE project_id = %(project_id)s AND name = %(name)s FOR UPDATE"
)
async def lock_protected_branch(transaction: Transaction, project_id: int, name: str) -> ProtectedBranch:
    """Lock and return the rule. Raise `NotFound`."""


@statement(f"""
    INSERT INTO protected_branches (project_id, name, push_access_level, merge_access_level, allow_force_push,
        code_owner_approval_required, created_at, updated_at)
    VALUES (%(project_id)s, %(name)s, %(push_access_level)s, %(merge_access_level)s, %(allow_force_push)s,
        %(code_owner_approval_required)s, %(now)s, %(now)s)
    RETURNING {_COLUMNS}
    """)
async def protect_branch(
    transaction: Transaction, project_id: int, name: str, **values: Any
) -> ProtectedBranch:
    """Create a rule and return it. Raise `Conflict` on `protected_branches_name`."""


@statement("""
    UPDATE protected_branches SET push_access_level = %(push_access_level)s,
        merge_access_level = %(merge_access_level)s, allow_force_push = %(allow_force_push)s,
        code_owner_approval_required = %(code_owner_approval_required)s, updated_at = %(now)s
    WHERE id = %(rule_id)s
""")
async def update_protected_branch(transaction: Transaction, rule_id: int, **values: Any) -> None: ...


@statement("""
    DELETE FROM protected_branches WHERE id = %(rule_id)s
""")
async def unprotect_branch(transaction: Transaction, rule_id: int) -> None: ...


@attrs.frozen
class BranchRules:
    """The combination of all rules that match the branch `name`."""

    name: str
    push_levels: list[int]
    merge_levels: list[int]
    allow_force_push: bool


@statement(
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
    prepared=True,
)
async def branch_rules(database: Executor, project_id: int, names: Sequence[str]) -> list[BranchRules]:
    """Return the combined rules for each of these branches that a rule matches."""


TAG_LISTING = ListQuery(
    _TAG, "SELECT rules.* FROM protected_tags rules WHERE rules.project_id = %(project_id)s"
)


async def list_protected_tags(database: Executor, page: Page, project_id: int) -> ListPage:
    return await TAG_LISTING.read(database, page, project_id=project_id)


@statement(
    entity_statement(
        _TAG,
        """
    SELECT rules.* FROM protected_tags rules
    WHERE rules.project_id = %(project_id)s AND rules.name = %(name)s
    """,
    )
)
async def show_protected_tag(database: Executor, project_id: int, name: str) -> str:
    """Return the rule with this name as JSON. Raise `NotFound`."""


@attrs.frozen
class ProtectedTag:
    """A rule for the tags that match its name."""

    id: int
    create_access_level: int


@statement("""
    INSERT INTO protected_tags (project_id, name, create_access_level, created_at)
    VALUES (%(project_id)s, %(name)s, %(create_access_level)s, %(now)s)
    RETURNING id, create_access_level
    """)
async def protect_tag(
    transaction: Transaction, project_id: int, name: str, create_access_level: int
) -> ProtectedTag:
    """Create a rule and return it. Raise `Conflict` on `protected_tags_name`."""


@statement("""
    DELETE FROM protected_tags WHERE project_id = %(project_id)s AND name = %(name)s
    RETURNING id, create_access_level
    """)
async def unprotect_tag(transaction: Transaction, project_id: int, name: str) -> ProtectedTag:
    """Delete the rule and return it. Raise `NotFound`."""


@attrs.frozen
class TagRules:
    """The combination of all rules that match the tag `name`."""

    name: str
    create_levels: list[int]


@statement(
    """
    SELECT wanted.name, array_agg(DISTINCT rules.create_access_level::int) AS create_levels
    FROM unnest(%(names)s::text[]) AS wanted (name)
    JOIN protected_tags rules
        ON rules.project_id = %(project_id)s AND wildcard_matches(rules.name, wanted.name)
    GROUP BY wanted.name
    """,
    prepared=True,
)
async def tag_rules(database: Executor, project_id: int, names: Sequence[str]) -> list[TagRules]:
    """Return the combined rules for each of these tags that a rule matches."""
