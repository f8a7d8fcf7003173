"""Statements about namespaces of both kinds, groups and users' own."""

from typing import Any, Literal

import attrs

from api_server.state.database import Transaction
from api_server.state.errors import NotFound
from api_server.state.statements import Query

CREATE = """
    INSERT INTO namespaces (kind, owner_id, parent_id, name, path, full_path, full_name, description, visibility,
        project_creation_level, created_at, updated_at)
    VALUES (%(kind)s, %(owner_id)s, %(parent_id)s, %(name)s, %(path)s, %(full_path)s,
        coalesce((SELECT above.full_name || ' / ' FROM namespaces above WHERE above.id = %(parent_id)s), '')
            || %(name)s,
        %(description)s, %(visibility)s, %(project_creation_level)s, %(now)s, %(now)s)
    RETURNING id
"""

SET_LINEAGE = """
    UPDATE namespaces SET lineage = %(above)s::bigint[] || id WHERE id = %(id)s
"""


async def create(
    transaction: Transaction,
    kind: Literal["group", "user"],
    above: list[int],
    *,
    owner_id: int | None = None,
    description: str | None = None,
    project_creation_level: str = "developer",
    **values: Any,
) -> int:
    """The new id. `above` are the ids of the groups above it, from the root down."""
    parent_id = above[-1] if above else None
    namespace_id: int = await transaction.value(
        CREATE,
        kind=kind,
        parent_id=parent_id,
        owner_id=owner_id,
        description=description,
        project_creation_level=project_creation_level,
        **values,
    )
    await transaction.run(SET_LINEAGE, id=namespace_id, above=above)
    return namespace_id


#: Names of what is below begin with those of what is above.
RENAME = """
    UPDATE namespaces SET
        name = CASE WHEN namespaces.id = %(id)s THEN %(name)s ELSE namespaces.name END,
        full_name = above.prefix || %(name)s || substr(namespaces.full_name, length(before.full_name) + 1),
        updated_at = %(now)s
    FROM namespaces before
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT parents.full_name || ' / ' FROM namespaces parents WHERE parents.id = before.parent_id), ''
        ) AS prefix) above
    WHERE before.id = %(id)s AND namespaces.lineage @> ARRAY[%(id)s]::bigint[]
"""


async def rename(transaction: Transaction, namespace_id: int, name: str) -> None:
    """Gives a namespace another name; the full names of all groups below it follow."""
    await transaction.run(RENAME, id=namespace_id, name=name)


@attrs.frozen
class Held:
    """A namespace as it stays for as long as it is held."""

    full_path: str
    visibility: str


HOLD = Query(
    """
    SELECT namespaces.full_path, namespaces.visibility FROM namespaces WHERE namespaces.id = ANY (%(lineage)s::bigint[])
    ORDER BY cardinality(namespaces.lineage) FOR SHARE
    """,
    Held,
)


async def hold(transaction: Transaction, lineage: list[int]) -> Held:
    """The last of these namespaces. Until the transaction ends none of them is removed, moved or shown to fewer people.
    Raises NotFound where one is gone."""
    held = await transaction.rows(HOLD, lineage=lineage)
    if len(held) < len(lineage):
        raise NotFound
    return held[-1]


LOCK = """
    SELECT namespaces.id FROM namespaces WHERE namespaces.id = %(id)s FOR UPDATE
"""


async def lock(transaction: Transaction, namespace_id: int) -> None:
    """Waits for those who `hold` it, and makes others wait. Raises NotFound."""
    if await transaction.value(LOCK, id=namespace_id) is None:
        raise NotFound
