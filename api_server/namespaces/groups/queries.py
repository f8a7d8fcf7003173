"""Statements about groups and namespaces."""

from typing import Any

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Statement
from api_server.web.access import Role

_ENTITIES = read_sql("api_server.namespaces.groups")
GROUP = _ENTITIES["group"]

#: Groups in which the user has at least `min_level`: those at or below her memberships.
_IS_HERS = """
    namespaces.kind = 'group' AND namespaces.lineage && ARRAY(
        SELECT members.namespace_id FROM members
        WHERE members.user_id = %(user_id)s AND members.namespace_id IS NOT NULL
            AND members.access_level >= %(min_level)s::int
            AND counts(members, %(now)s))
"""
_HERS = f"SELECT namespaces.id FROM namespaces WHERE {_IS_HERS}"
_FILTERS = """
    (%(parent_id)s::bigint IS NULL OR namespaces.parent_id = %(parent_id)s)
    AND (%(ancestor_id)s::bigint IS NULL
        OR namespaces.lineage @> ARRAY[%(ancestor_id)s::bigint] AND namespaces.id <> %(ancestor_id)s)
    AND (NOT %(top_level_only)s OR namespaces.parent_id IS NULL)
    AND (%(search)s::text IS NULL OR strpos(lower(namespaces.name), lower(%(search)s)) > 0
        OR strpos(lower(namespaces.path), lower(%(search)s)) > 0)
"""
_ORDERS = {"name": "name", "path": "path"}
LISTING = Listing(
    GROUP,
    f"""
    SELECT namespaces.* FROM namespaces
    WHERE namespaces.kind = 'group' AND {_FILTERS}
        AND (%(admin)s OR namespaces.visibility = 'public'
            OR (namespaces.visibility = 'internal'
                AND NOT (SELECT users.external FROM users WHERE users.id = %(user_id)s))
            OR namespaces.id IN ({_HERS}))
    """,
    _ORDERS,
)
#: Few of all groups, perhaps: OFFSET 0 keeps the planner from looking for them along the order of the list.
_OF_HERS = Listing(
    GROUP,
    f"SELECT * FROM (SELECT namespaces.* FROM namespaces WHERE {_IS_HERS} AND {_FILTERS} OFFSET 0) hers",
    _ORDERS,
)


async def list_groups(
    database: Executor, page: Page, *, user_id: int, admin: bool, min_level: int | None, **filters: Any
) -> Listed:
    """The groups that the user can see; with `min_level`, those where she has that role."""
    if min_level is not None:
        return await _OF_HERS.read(database, page, user_id=user_id, min_level=min_level, **filters)
    return await LISTING.read(database, page, user_id=user_id, admin=admin, min_level=1, **filters)


_FOUND = "(%(search)s::text IS NULL OR strpos(lower(namespaces.full_path), lower(%(search)s)) > 0)"
NAMESPACES = Listing(_ENTITIES["namespace"], f"SELECT namespaces.* FROM namespaces WHERE {_FOUND}")
_HER_NAMESPACES = Listing(
    _ENTITIES["namespace"],
    f"""
    SELECT * FROM (
        SELECT namespaces.* FROM namespaces WHERE namespaces.owner_id = %(user_id)s AND {_FOUND}
        UNION ALL
        SELECT namespaces.* FROM namespaces WHERE {_IS_HERS} AND {_FOUND}
        OFFSET 0) hers
    """,
)


async def list_namespaces(
    database: Executor, page: Page, *, user_id: int, admin: bool, search: str | None
) -> Listed:
    """The user's own namespace and the groups that she is a member of; all of them for administrators."""
    if admin:
        return await NAMESPACES.read(database, page, search=search)
    return await _HER_NAMESPACES.read(
        database, page, user_id=user_id, min_level=int(Role.GUEST), search=search
    )


SHOW_NAMESPACE = one(
    _ENTITIES["namespace"],
    """
    SELECT namespaces.* FROM namespaces
    WHERE (namespaces.id = %(id)s OR lower(namespaces.full_path) = lower(%(path)s))
        AND (%(admin)s OR namespaces.owner_id = %(user_id)s
            OR (namespaces.kind = 'group' AND namespace_role(namespaces, %(user_id)s, %(now)s) >= 10))
    """,
)


async def show_namespace(
    database: Executor, *, namespace_id: int | None, path: str | None, user_id: int, admin: bool
) -> str | None:
    return await database.entity_if_there(
        SHOW_NAMESPACE, id=namespace_id, path=path, user_id=user_id, admin=admin
    )


#: What a caller cannot see has taken its path all the same; only below a hidden group nothing is told.
PATHS_LIKE = """
    SELECT lower(namespaces.path) AS path FROM namespaces
    WHERE namespaces.parent_id IS NOT DISTINCT FROM %(parent_id)s::bigint
        AND starts_with(lower(namespaces.path), lower(%(path)s))
        AND (%(parent_id)s::bigint IS NULL OR EXISTS (SELECT FROM namespaces parents WHERE parents.id = %(parent_id)s
            AND (%(admin)s OR parents.visibility <> 'private' OR namespace_role(parents, %(user_id)s, %(now)s) > 0)))
    LIMIT 10000
"""


async def namespace_paths_like(
    database: Executor, path: str, *, parent_id: int | None, user_id: int, admin: bool
) -> set[str]:
    """The last segments, in lower case, of the namespaces there whose path begins with `path`."""
    rows = await database.rows(PATHS_LIKE, path=path, parent_id=parent_id, user_id=user_id, admin=admin)
    return {row.path for row in rows}


FIND_GROUP = Statement("""
    SELECT namespaces.id, namespaces.name, namespaces.path, namespaces.full_path, namespaces.parent_id,
        namespaces.lineage, namespaces.visibility,
        namespace_role(namespaces, %(user_id)s, %(now)s) AS role,
        coalesce((SELECT users.external FROM users WHERE users.id = %(user_id)s), true) AS external,
        coalesce(lower(%(path)s::text) <> lower(namespaces.full_path), false) AS moved
    FROM namespaces
    WHERE namespaces.kind = 'group' AND namespaces.id = coalesce(
        %(id)s::bigint, (SELECT routes.namespace_id FROM routes WHERE routes.path = lower(%(path)s::text)))
""")


async def find_group(
    database: Executor, *, group_id: int | None, path: str | None, user_id: int | None
) -> Row | None:
    return await database.row(FIND_GROUP, id=group_id, path=path, user_id=user_id)


SHOW_GROUP = one(GROUP, "SELECT namespaces.* FROM namespaces WHERE namespaces.id = %(id)s")


async def show_group(database: Executor, group_id: int) -> str:
    return await database.entity(SHOW_GROUP, id=group_id)


CREATE_GROUP = """
    INSERT INTO namespaces (kind, parent_id, name, path, full_path, full_name, description, visibility)
    VALUES ('group', %(parent_id)s, %(name)s, %(path)s, %(full_path)s, %(full_name)s, %(description)s, %(visibility)s)
    RETURNING id
"""

SET_LINEAGE = """
    UPDATE namespaces SET lineage = %(lineage)s WHERE id = %(id)s
"""

FULL_NAME = """
    SELECT namespaces.full_name FROM namespaces WHERE namespaces.id = %(id)s
"""


async def create_group(
    transaction: Transaction, *, lineage: list[int], parent_id: int | None, **values: Any
) -> int:
    """The new id. `lineage` are the ids of the groups above it."""
    above = await transaction.value(FULL_NAME, id=parent_id)
    full_name = f"{above} / {values['name']}" if above else values["name"]
    group_id = int(await transaction.value(CREATE_GROUP, parent_id=parent_id, full_name=full_name, **values))
    await transaction.row(SET_LINEAGE, id=group_id, lineage=[*lineage, group_id])
    return group_id


UPDATE_GROUP = """
    UPDATE namespaces SET
        name = coalesce(%(name)s, name),
        description = coalesce(%(description)s, description),
        visibility = coalesce(%(visibility)s, visibility),
        updated_at = now()
    WHERE id = %(id)s
"""


async def update_group(transaction: Transaction, group_id: int, **values: Any) -> None:
    """Changes what is not None."""
    await transaction.row(UPDATE_GROUP, id=group_id, **values)


PROJECTS_BELOW = """
    SELECT projects.id, projects.full_path FROM projects
    JOIN namespaces ON namespaces.id = projects.namespace_id WHERE %(id)s = ANY (namespaces.lineage)
"""


async def projects_below(database: Executor, group_id: int) -> list[Row]:
    """id and full_path of the projects in the group and its subgroups."""
    return await database.rows(PROJECTS_BELOW, id=group_id)


MOST_VISIBLE_BELOW = """
    SELECT max(CASE visibility WHEN 'public' THEN 2 WHEN 'internal' THEN 1 ELSE 0 END) FROM (
        SELECT namespaces.visibility FROM namespaces WHERE namespaces.parent_id = %(id)s
        UNION ALL SELECT projects.visibility FROM projects WHERE projects.namespace_id = %(id)s
    ) children
"""


async def most_visible_below(database: Executor, group_id: int) -> int:
    """0 private, 1 internal, 2 public; of the direct subgroups and projects."""
    return int(await database.value(MOST_VISIBLE_BELOW, id=group_id) or 0)


DELETE_GROUP = """
    DELETE FROM namespaces WHERE id = %(id)s
"""


async def delete_group(transaction: Transaction, group_id: int) -> None:
    """With its subgroups and projects."""
    await transaction.row(DELETE_GROUP, id=group_id)


MAY_CREATE_GROUP = """
    SELECT users.can_create_group AND NOT users.external FROM users WHERE users.id = %(user_id)s
"""


async def may_create_group(database: Executor, user_id: int) -> bool:
    """Whether the user may make top-level groups."""
    return bool(await database.value(MAY_CREATE_GROUP, user_id=user_id))
