"""Lists of projects."""

from typing import Any, Literal

from api_server.namespaces.groups.queries import ENTITIES as NAMESPACES
from api_server.state.database import Executor
from api_server.state.listing import Listed, Listing, Page, Search, read_sql
from api_server.web.routes import Role

ENTITIES = read_sql("api_server.namespaces.projects", known=NAMESPACES)
PROJECT = ENTITIES["project"]

#: Namespaces in which the viewer has at least `min_level`: her own, and those at or below her memberships.
_HER_NAMESPACES = """
    SELECT namespaces.id FROM namespaces WHERE namespaces.owner_id = %(viewer_id)s
    UNION ALL
    SELECT namespaces.id FROM namespaces WHERE namespaces.lineage && ARRAY(
        SELECT members.namespace_id FROM members
        WHERE members.user_id = %(viewer_id)s AND members.namespace_id IS NOT NULL
            AND members.access_level >= %(min_level)s::int
            AND counts(members, %(now)s))
"""
_HER_PROJECTS = """
    SELECT members.project_id FROM members
    WHERE members.user_id = %(viewer_id)s AND members.project_id IS NOT NULL
        AND members.access_level >= %(min_level)s::int
        AND counts(members, %(now)s)
"""
#: As filters: PostgreSQL puts each of the two sets in a hash table once.
_IS_HERS = f"(projects.namespace_id IN ({_HER_NAMESPACES}) OR projects.id IN ({_HER_PROJECTS}))"
_VISIBLE = f"""
    (%(sees_all)s OR is_visible(projects.visibility, {_IS_HERS}, (SELECT is_insider(%(viewer_id)s))))
"""
_HERS_ONLY = f"(NOT %(hers_only)s OR {_IS_HERS})"
_SEARCH = Search("projects", "path", "name")
_FILTERS = f"""
    (%(visibility)s::text IS NULL OR projects.visibility = %(visibility)s)
    AND (%(archived)s::boolean IS NULL OR projects.archived = %(archived)s)
    AND {_SEARCH.condition}
"""
_ORDERS = {
    "name": "name",
    "path": "path",
    "created_at": "id",  # ids are given in that order, and have an index
    "updated_at": "updated_at",
    "last_activity_at": "last_activity_at",
}


def _listings(rows: str) -> dict[bool, Listing]:
    """By whether the `simple` form is wanted."""
    forms = {False: PROJECT, True: ENTITIES["basic_project"]}
    return {simple: Listing(entity, rows, _ORDERS) for simple, entity in forms.items()}


_ALL = _listings(f"SELECT projects.* FROM projects WHERE {_VISIBLE} AND {_FILTERS}")
LISTING = _ALL[False]
#: Few of all projects, perhaps: OFFSET 0 keeps the planner from looking for them along the order of the list.
_HERS = _listings(f"""
    SELECT * FROM (
        SELECT projects.* FROM projects
        WHERE projects.id IN (
            SELECT inside.id FROM projects inside WHERE inside.namespace_id IN ({_HER_NAMESPACES})
            UNION ALL {_HER_PROJECTS})
            AND {_FILTERS}
        OFFSET 0) hers
""")
_OF_GROUP = _listings(f"""
    SELECT projects.* FROM projects
    WHERE projects.namespace_id = %(group_id)s::bigint AND {_VISIBLE} AND {_HERS_ONLY} AND {_FILTERS}
""")
_BELOW_GROUP = _listings(f"""
    SELECT projects.* FROM namespaces CROSS JOIN LATERAL (
        SELECT projects.* FROM projects
        WHERE projects.namespace_id = namespaces.id AND {_VISIBLE} AND {_HERS_ONLY} AND {_FILTERS}
        OFFSET 0) projects
    WHERE namespaces.lineage @> ARRAY[%(group_id)s::bigint]
""")

Below = Literal["directly", "with_subgroups"]


async def list_projects(
    database: Executor,
    page: Page,
    *,
    viewer_id: int | None,
    sees_all: bool,
    min_level: int | None = None,
    group_id: int | None = None,
    below: Below = "directly",
    simple: bool = False,
    **filters: Any,
) -> Listed:
    """The projects that the viewer (None: a stranger) can see, all of them where she `sees_all`: everywhere or in a
    group; with `min_level`, those where she has that role; `simple`: with few keys. `filters` are visibility, archived
    and search, or None."""
    filters["found"] = await _SEARCH.find(database, filters["search"])
    hers = {"viewer_id": viewer_id, "min_level": min_level or Role.GUEST}
    if group_id is not None:
        listing = _OF_GROUP if below == "directly" else _BELOW_GROUP
        return await listing[simple].read(
            database,
            page,
            group_id=group_id,
            sees_all=sees_all,
            hers_only=min_level is not None,
            **hers,
            **filters,
        )
    if min_level is not None or (filters["visibility"] == "private" and not sees_all):
        return await _HERS[simple].read(database, page, **hers, **filters)
    return await _ALL[simple].read(database, page, sees_all=sees_all, **hers, **filters)
