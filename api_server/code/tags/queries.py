"""Statements about protected tags."""

from collections.abc import Sequence

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Query, Statement

_ENTITY = read_sql("api_server.code.tags")["protected_tag"]

LISTING = Listing(_ENTITY, "SELECT rules.* FROM protected_tags rules WHERE rules.project_id = %(project_id)s")


async def list_protected(database: Executor, page: Page, project_id: int) -> Listed:
    return await LISTING.read(database, page, project_id=project_id)


SHOW = one(
    _ENTITY,
    """
    SELECT rules.* FROM protected_tags rules
    WHERE rules.project_id = %(project_id)s AND rules.name = %(name)s
    """,
)


async def show_protected(database: Executor, project_id: int, name: str) -> str:
    """Raises NotFound where no rule has that name."""
    return await database.entity(SHOW, project_id=project_id, name=name)


@attrs.frozen
class Protected:
    """A rule, which means the tags that match its name."""

    id: int
    create_access_level: int


PROTECT = Query(
    """
    INSERT INTO protected_tags (project_id, name, create_access_level, created_at)
    VALUES (%(project_id)s, %(name)s, %(create_access_level)s, %(now)s)
    RETURNING id, create_access_level
    """,
    Protected,
)


async def protect(
    transaction: Transaction, project_id: int, name: str, create_access_level: int
) -> Protected:
    """The new rule. Raises Conflict on `protected_tags_name`."""
    return await transaction.one(
        PROTECT, project_id=project_id, name=name, create_access_level=create_access_level
    )


UNPROTECT = Query(
    """
    DELETE FROM protected_tags WHERE project_id = %(project_id)s AND name = %(name)s
    RETURNING id, create_access_level
    """,
    Protected,
)


async def unprotect(transaction: Transaction, project_id: int, name: str) -> Protected:
    """The rule as it was. Raises NotFound."""
    return await transaction.one(UNPROTECT, project_id=project_id, name=name)


@attrs.frozen
class RulesTogether:
    """What the rules that match one tag's `name` say together."""

    name: str
    create_levels: list[int]


RULES_FOR = Statement(
    """
    SELECT wanted.name, array_agg(DISTINCT rules.create_access_level::int) AS create_levels
    FROM unnest(%(names)s::text[]) AS wanted (name)
    JOIN protected_tags rules
        ON rules.project_id = %(project_id)s AND wildcard_matches(rules.name, wanted.name)
    GROUP BY wanted.name
    """,
    RulesTogether,
)


async def rules_for(database: Executor, project_id: int, names: Sequence[str]) -> list[RulesTogether]:
    """Of each of these tags that a rule matches."""
    return await database.rows(RULES_FOR, project_id=project_id, names=list(names))
