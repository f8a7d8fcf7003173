# mypy: disable-error-code="empty-body"
"""Statements about namespaces: groups and users' own namespaces."""

from typing import Any, Literal

import attrs

from api_server.namespaces.resources import Group
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.listing import ListPage, ListQuery, Page, Search, entity_statement, read_sql
from api_server.state.statements import Query
from api_server.web.routes import Role

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
    """Create a namespace and return its id. `above` are the ids of the groups above it, from the root
    down."""
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


#: Full names of lower groups begin with those of the groups above.
@statement("""
    UPDATE namespaces SET
        name = CASE WHEN namespaces.id = %(namespace_id)s THEN %(name)s ELSE namespaces.name END,
        full_name = above.prefix || %(name)s || substr(namespaces.full_name, length(before.full_name) + 1),
        updated_at = %(now)s
    FROM namespaces before
    CROSS JOIN LATERAL (
        SELECT coalesce(
            (SELECT parents.full_name || ' / ' FROM namespaces parents WHERE parents.id = before.parent_id), ''
        ) AS prefix) above
    WHERE before.id = %(namespace_id)s AND namespaces.lineage @> ARRAY[%(namespace_id)s]::bigint[]
""")
async def rename(transaction: Transaction, namespace_id: int, name: str) -> None:
    """Rename a namespace and update the full names of all groups below it."""


@attrs.frozen
class LockedNamespace:
    """The data of a namespace that is held unchanged."""

    full_path: str
    visibility: str


HOLD = Query(
    """
    SELECT namespaces.full_path, namespaces.visibility FROM namespaces WHERE namespaces.id = ANY (%(lineage)s::bigint[])
    ORDER BY cardinality(namespaces.lineage) FOR SHARE
    """,
    LockedNamespace,
)


async def hold(transaction: Transaction, lineage: list[int]) -> LockedNamespace:
    """Return the last of these namespaces. Until the transaction ends, none of them is removed, moved or made
    less visible. Raise NotFound if one no longer exists."""
    rows = await transaction.rows(HOLD, lineage=lineage)
    if len(rows) < len(lineage):
        raise NotFound
    return rows[-1]


LOCK = """
    SELECT namespaces.id FROM namespaces WHERE namespaces.id = %(id)s FOR UPDATE
"""


async def lock(transaction: Transaction, namespace_id: int) -> None:
    """Wait for transactions that `hold` the namespace, and make others wait. Raise NotFound."""
    if await transaction.value(LOCK, id=namespace_id) is None:
        raise NotFound


#: Maximum number of characters of a description in lists, which is GitLab's limit for projects. It keeps a page within
#: its own limit, so that descriptions of other users cannot make a list too large to be read.
LISTED_DESCRIPTION = 2000
ENTITIES = read_sql("api_server.namespaces", extra={"description": "page.description"})
IN_LISTS = read_sql(
    "api_server.namespaces", extra={"description": f"left(page.description, {LISTED_DESCRIPTION})"}
)

#: Groups in which the user has at least `min_level`: those of the user's memberships, and those below them.
_IS_HERS = """
    namespaces.kind = 'group' AND namespaces.lineage && ARRAY(
        SELECT members.namespace_id FROM members
        WHERE members.user_id = %(user_id)s AND members.namespace_id IS NOT NULL
            AND members.access_level >= %(min_level)s::int
            AND counts(members, %(now)s))
"""
_HERS = f"SELECT namespaces.id FROM namespaces WHERE {_IS_HERS}"
_SEARCH = Search("namespaces", "path", "name")
_FILTERS = f"""
    (%(parent_id)s::bigint IS NULL OR namespaces.parent_id = %(parent_id)s)
    AND (%(ancestor_id)s::bigint IS NULL
        OR namespaces.lineage @> ARRAY[%(ancestor_id)s::bigint] AND namespaces.id <> %(ancestor_id)s)
    AND (NOT %(top_level_only)s OR namespaces.parent_id IS NULL)
    AND namespaces.id <> ALL (%(skipped)s::bigint[])
    AND {_SEARCH.condition}
"""
_ORDERS = {"name": "name", "path": "path"}
LISTING = ListQuery(
    IN_LISTS["group"],
    f"""
    SELECT namespaces.* FROM namespaces
    WHERE namespaces.kind = 'group' AND {_FILTERS}
        AND (%(admin)s
            OR is_visible(namespaces.visibility, namespaces.id IN ({_HERS}), (SELECT is_insider(%(user_id)s))))
    """,
    _ORDERS,
)
#: These may be few of all groups: OFFSET 0 keeps the planner from searching for them in the order of the
#: list.
_OF_HERS = ListQuery(
    IN_LISTS["group"],
    f"SELECT * FROM (SELECT namespaces.* FROM namespaces WHERE {_IS_HERS} AND {_FILTERS} OFFSET 0) hers",
    _ORDERS,
)


async def list_groups(
    database: Executor, page: Page, *, user_id: int | None, admin: bool, min_level: int | None, **filters: Any
) -> ListPage:
    """Return a page of the groups that the user can see; without a user, the public ones; with `min_level`,
    those where the user has that role."""
    filters["found"] = await _SEARCH.find(database, filters["search"])
    if min_level is not None:
        return await _OF_HERS.read(database, page, user_id=user_id, min_level=min_level, **filters)
    return await LISTING.read(database, page, user_id=user_id, admin=admin, min_level=1, **filters)


NAMESPACES = ListQuery(
    ENTITIES["namespace"], f"SELECT namespaces.* FROM namespaces WHERE {_SEARCH.condition}"
)
_HER_NAMESPACES = ListQuery(
    ENTITIES["namespace"],
    f"""
    SELECT * FROM (
        SELECT namespaces.* FROM namespaces WHERE namespaces.owner_id = %(user_id)s AND {_SEARCH.condition}
        UNION ALL
        SELECT namespaces.* FROM namespaces WHERE {_IS_HERS} AND {_SEARCH.condition}
        OFFSET 0) hers
    """,
)


async def list_namespaces(
    database: Executor, page: Page, *, user_id: int, admin: bool, search: str | None
) -> ListPage:
    """Return a page of the user's own namespace and the groups that the user is a member of; all for
    administrators."""
    filters = {"search": search, "found": await _SEARCH.find(database, search)}
    if admin:
        return await NAMESPACES.read(database, page, **filters)
    return await _HER_NAMESPACES.read(database, page, user_id=user_id, min_level=Role.GUEST, **filters)


@statement(
    entity_statement(
        ENTITIES["namespace"],
        """
    SELECT namespaces.* FROM namespaces
    WHERE namespaces.id = coalesce(%(namespace_id)s::bigint, (
            SELECT routes.namespace_id FROM routes WHERE routes.path = lower(%(path)s::text) AND NOT routes.moved))
        AND (%(admin)s OR namespace_role(namespaces, %(user_id)s, %(now)s) >= 10)
    """,
    )
)
async def show_namespace(
    database: Executor, *, namespace_id: int | None, path: str | None, user_id: int, admin: bool
) -> str | None:
    """Return the user's own namespace, or a group that the user is a member of; any namespace for
    administrators."""


@attrs.frozen
class _Path:
    path: str


#: Paths that the caller cannot see are taken all the same; but nothing is revealed about paths below a hidden
#: group.
PATHS_LIKE = Query(
    """
    SELECT lower(namespaces.path) AS path FROM namespaces
    WHERE namespaces.parent_id IS NOT DISTINCT FROM %(parent_id)s::bigint
        AND starts_with(lower(namespaces.path), lower(%(path)s))
        AND (%(parent_id)s::bigint IS NULL OR %(admin)s OR EXISTS (
            SELECT FROM namespaces parents WHERE parents.id = %(parent_id)s AND is_visible(
                parents.visibility, namespace_role(parents, %(user_id)s, %(now)s) > 0, is_insider(%(user_id)s))))
    LIMIT 10000
    """,
    _Path,
)


async def namespace_paths_like(
    database: Executor, path: str, *, parent_id: int | None, user_id: int, admin: bool
) -> set[str]:
    """Return the last segments, in lower case, of the namespaces there whose path begins with `path`."""
    rows = await database.rows(PATHS_LIKE, path=path, parent_id=parent_id, user_id=user_id, admin=admin)
    return {row.path for row in rows}


@statement(
    """
    SELECT namespaces.id, namespaces.full_path, namespaces.lineage, hers.role,
        coalesce(lower(%(path)s::text) <> lower(namespaces.full_path), false) AS moved
    FROM namespaces
    CROSS JOIN LATERAL (
        SELECT CASE WHEN %(admin)s THEN 50 ELSE namespace_role(namespaces, %(user_id)s, %(now)s) END AS role
        OFFSET 0) hers
    WHERE namespaces.kind = 'group'
        AND namespaces.id = coalesce(
            %(group_id)s::bigint, (SELECT routes.namespace_id FROM routes WHERE routes.path = lower(%(path)s::text)))
        AND is_visible(namespaces.visibility, hers.role > 0, is_insider(%(user_id)s))
    """,
    prepared=True,
)
async def find_group(
    database: Executor, *, group_id: int | None, path: str | None, user_id: int | None, admin: bool
) -> Group | None:
    """Find a group by id or, without one, by a current or former path. Return None if the user cannot see it;
    without a user, only public groups are visible."""


@statement(
    entity_statement(
        ENTITIES["group_in_detail"], "SELECT namespaces.* FROM namespaces WHERE namespaces.id = %(group_id)s"
    )
)
async def show_group(database: Executor, group_id: int) -> str:
    """Return the group's entity. Raise NotFound if it no longer exists."""


@attrs.frozen
class LockedGroup:
    """The attributes of a group that can be changed."""

    name: str
    path: str
    full_path: str
    description: str | None
    visibility: str
    project_creation_level: str


@statement("""
    SELECT namespaces.name, namespaces.path, namespaces.full_path, namespaces.description, namespaces.visibility,
        namespaces.project_creation_level
    FROM namespaces WHERE namespaces.id = %(group_id)s FOR UPDATE
    """)
async def lock_group(transaction: Transaction, group_id: int) -> LockedGroup:
    """Return the group's attributes and prevent others from creating anything in it until the transaction
    ends. Raise NotFound."""


@statement("""
    UPDATE namespaces SET description = %(description)s, visibility = %(visibility)s,
        project_creation_level = %(project_creation_level)s, updated_at = %(now)s
    WHERE id = %(group_id)s
""")
async def update_group(transaction: Transaction, group_id: int, after: LockedGroup) -> None:
    """Update the locked row, except for its path and its name."""


@attrs.frozen
class Within:
    """The visibilities that occur among the direct contents of a group."""

    projects: list[str]
    subgroups: list[str]


@statement("""
    SELECT
        ARRAY(SELECT DISTINCT visibility FROM projects WHERE namespace_id = %(group_id)s) AS projects,
        ARRAY(SELECT DISTINCT visibility FROM namespaces WHERE parent_id = %(group_id)s) AS subgroups
    """)
async def within(database: Executor, group_id: int) -> Within: ...


@statement("""
    SELECT users.can_create_group AND NOT users.external FROM users WHERE users.id = %(user_id)s
""")
async def may_create_group(database: Executor, user_id: int) -> bool:
    """Return whether the user may create top-level groups."""


@attrs.frozen
class OwnNamespace:
    id: int
    owner_id: int
    full_path: str


@statement("""
    SELECT namespaces.id, namespaces.owner_id, namespaces.full_path FROM namespaces
    WHERE namespaces.owner_id = %(user_id)s
    """)
async def namespace_of(database: Executor, user_id: int) -> OwnNamespace:
    """Return the user's own namespace. Raise NotFound if there is no such user."""


@statement("""
    SELECT namespaces.id, namespaces.owner_id, namespaces.full_path
    FROM users JOIN namespaces ON namespaces.owner_id = users.id
    WHERE CASE WHEN %(user_id)s::bigint IS NULL THEN lower(users.username) = lower(%(username)s)
        ELSE users.id = %(user_id)s::bigint END
    """)
async def namespace_of_named(
    database: Executor, *, user_id: int | None, username: str
) -> OwnNamespace | None:
    """Return a user's own namespace, by the user's id or (without one) by user name, or None."""
