"""Statements about projects."""

import re
from typing import Any, Literal

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Statement
from api_server.web.access import Role

PROJECT = read_sql("api_server.namespaces.projects")["project"]

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
_VISIBLE = f"""
    (%(sees_all)s OR projects.visibility = 'public'
        OR (projects.visibility = 'internal'
            AND NOT (SELECT users.external FROM users WHERE users.id = %(viewer_id)s))
        OR projects.namespace_id IN ({_HER_NAMESPACES}) OR projects.id IN ({_HER_PROJECTS}))
"""
_FILTERS = """
    (%(visibility)s::text IS NULL OR projects.visibility = %(visibility)s)
    AND (%(archived)s::boolean IS NULL OR projects.archived = %(archived)s)
    AND (%(search)s::text IS NULL OR strpos(lower(projects.name), lower(%(search)s)) > 0
        OR strpos(lower(projects.path), lower(%(search)s)) > 0)
"""
_HERS_ONLY = f"""
    (NOT %(hers_only)s OR projects.namespace_id IN ({_HER_NAMESPACES}) OR projects.id IN ({_HER_PROJECTS}))
"""
_ORDERS = {
    "name": "name",
    "path": "path",
    "created_at": "id",  # ids are given in that order, and have an index
    "updated_at": "updated_at",
    "last_activity_at": "last_activity_at",
}


def _listing(rows: str) -> Listing:
    return Listing(PROJECT, rows, _ORDERS)


LISTING = _listing(f"SELECT projects.* FROM projects WHERE {_VISIBLE} AND {_FILTERS}")
#: Few of all projects, perhaps: OFFSET 0 keeps the planner from looking for them along the order of the list.
_HERS = _listing(f"""
    SELECT * FROM (
        SELECT projects.* FROM projects
        WHERE projects.id IN (
            SELECT inside.id FROM projects inside WHERE inside.namespace_id IN ({_HER_NAMESPACES})
            UNION ALL {_HER_PROJECTS})
            AND {_FILTERS}
        OFFSET 0) hers
""")
_OF_GROUP = _listing(f"""
    SELECT projects.* FROM projects
    WHERE projects.namespace_id = %(group_id)s::bigint AND {_VISIBLE} AND {_HERS_ONLY} AND {_FILTERS}
""")
_BELOW_GROUP = _listing(f"""
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
    viewer_id: int,
    sees_all: bool,
    min_level: int | None = None,
    group_id: int | None = None,
    below: Below = "directly",
    visibility: str | None,
    archived: bool | None,
    search: str | None,
) -> Listed:
    """The projects that the viewer can see (all of them where she `sees_all`): everywhere or in a group; with
    `min_level`, those where she has that role."""
    filters = {"visibility": visibility, "archived": archived, "search": search}
    hers = {"viewer_id": viewer_id, "min_level": min_level or int(Role.GUEST)}
    if group_id is not None:
        listing = _OF_GROUP if below == "directly" else _BELOW_GROUP
        return await listing.read(
            database,
            page,
            group_id=group_id,
            sees_all=sees_all,
            hers_only=min_level is not None,
            **hers,
            **filters,
        )
    if min_level is not None or (visibility == "private" and not sees_all):
        return await _HERS.read(database, page, **hers, **filters)
    return await LISTING.read(database, page, sees_all=sees_all, **hers, **filters)


SHOW_PROJECT = one(PROJECT, "SELECT projects.* FROM projects WHERE projects.id = %(id)s")


async def show_project(database: Executor, project_id: int, viewer_id: int) -> str:
    return await database.entity(SHOW_PROJECT, id=project_id, viewer_id=viewer_id)


FIND_PROJECT = Statement("""
    SELECT projects.id, projects.namespace_id, projects.name, projects.path, projects.full_path,
        projects.visibility, projects.default_branch, projects.archived, projects.empty_repo, projects.public_jobs,
        projects.repository_access_level, projects.builds_access_level, projects.ci_config_path, namespaces.lineage,
        project_role(projects, namespaces, %(user_id)s, %(now)s) AS role,
        coalesce((SELECT users.external FROM users WHERE users.id = %(user_id)s), true) AS external,
        coalesce(lower(%(path)s::text) <> lower(projects.full_path), false) AS moved
    FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
    WHERE projects.id = coalesce(
        %(id)s::bigint, (SELECT routes.project_id FROM routes WHERE routes.path = lower(%(path)s::text)))
""")


async def find_project(
    database: Executor, *, project_id: int | None, path: str | None, user_id: int | None
) -> Row | None:
    return await database.row(FIND_PROJECT, id=project_id, path=path, user_id=user_id)


LOCK_PROJECTS_LIMIT = """
    SELECT users.projects_limit FROM users WHERE users.id = %(user_id)s FOR NO KEY UPDATE
"""


async def lock_projects_limit(transaction: Transaction, user_id: int) -> int:
    """How many personal projects the user may have; until the transaction ends nobody else is told."""
    return int(await transaction.value(LOCK_PROJECTS_LIMIT, user_id=user_id))


HAS_PERSONAL_PROJECTS = """
    SELECT EXISTS (
        SELECT FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
        WHERE namespaces.owner_id = %(user_id)s OFFSET %(at_least)s - 1)
"""


async def has_personal_projects(database: Executor, user_id: int, *, at_least: int) -> bool:
    """Whether her own namespace holds that many (one or more)."""
    return bool(await database.value(HAS_PERSONAL_PROJECTS, user_id=user_id, at_least=at_least))


CREATE_PROJECT = """
    INSERT INTO projects (namespace_id, creator_id, name, path, full_path, description, visibility, default_branch,
        ci_config_path, public_jobs, repository_access_level, builds_access_level)
    VALUES (%(namespace_id)s, %(creator_id)s, %(name)s, %(path)s, %(full_path)s, %(description)s, %(visibility)s,
        coalesce(%(default_branch)s, 'main'), %(ci_config_path)s, coalesce(%(public_jobs)s, true),
        coalesce(%(repository_access_level)s, 'enabled'), coalesce(%(builds_access_level)s, 'enabled'))
    RETURNING id
"""


async def create_project(transaction: Transaction, **values: Any) -> int:
    return int(await transaction.value(CREATE_PROJECT, **values))


UPDATE_PROJECT = """
    UPDATE projects SET
        name = coalesce(%(name)s, name),
        description = coalesce(%(description)s, description),
        visibility = coalesce(%(visibility)s, visibility),
        default_branch = coalesce(%(default_branch)s, default_branch),
        ci_config_path = coalesce(%(ci_config_path)s, ci_config_path),
        public_jobs = coalesce(%(public_jobs)s, public_jobs),
        repository_access_level = coalesce(%(repository_access_level)s, repository_access_level),
        builds_access_level = coalesce(%(builds_access_level)s, builds_access_level),
        only_allow_merge_if_pipeline_succeeds =
            coalesce(%(only_allow_merge_if_pipeline_succeeds)s, only_allow_merge_if_pipeline_succeeds),
        allow_merge_on_skipped_pipeline =
            coalesce(%(allow_merge_on_skipped_pipeline)s, allow_merge_on_skipped_pipeline),
        only_allow_merge_if_all_status_checks_passed =
            coalesce(%(only_allow_merge_if_all_status_checks_passed)s, only_allow_merge_if_all_status_checks_passed),
        archived = coalesce(%(archived)s, archived),
        path = coalesce(%(path)s, path),
        full_path = coalesce(%(full_path)s, full_path),
        updated_at = now()
    WHERE id = %(id)s
"""


async def update_project(transaction: Transaction, project_id: int, **values: Any) -> None:
    """Changes what is given and not None."""
    await transaction.row(UPDATE_PROJECT, **dict.fromkeys(_CHANGEABLE) | values, id=project_id)


_CHANGEABLE = frozenset(re.findall(r"%\((\w+)\)s", UPDATE_PROJECT)) - {"id"}


LEAVE_PATH = """
    UPDATE routes SET moved = true WHERE project_id = %(id)s
"""


async def leave_paths(transaction: Transaction, project_id: int) -> None:
    """The paths that the project has had until now redirect to it."""
    await transaction.row(LEAVE_PATH, id=project_id)


DELETE_PROJECT = """
    DELETE FROM projects WHERE id = %(id)s
"""


async def delete_project(transaction: Transaction, project_id: int) -> None:
    await transaction.row(DELETE_PROJECT, id=project_id)


FIND_NAMESPACE = """
    SELECT namespaces.id, namespaces.kind, namespaces.owner_id, namespaces.full_path, namespaces.visibility,
        namespace_role(namespaces, %(user_id)s, %(now)s) AS role
    FROM namespaces
    WHERE CASE WHEN %(id)s::bigint IS NULL THEN namespaces.owner_id = %(user_id)s ELSE namespaces.id = %(id)s END
"""


async def find_namespace(database: Executor, namespace_id: int | None, user_id: int) -> Row | None:
    """id, kind, owner_id, full_path, visibility and the user's role; without an id, the user's own namespace."""
    return await database.row(FIND_NAMESPACE, id=namespace_id, user_id=user_id)


FIND_NAMESPACE_NAMED = """
    SELECT namespaces.id, namespaces.kind, namespaces.owner_id, namespaces.full_path, namespaces.visibility,
        namespace_role(namespaces, %(user_id)s, %(now)s) AS role
    FROM namespaces
    WHERE namespaces.id = coalesce(%(id)s::bigint, (
        SELECT routes.namespace_id FROM routes WHERE routes.path = lower(%(path)s::text) AND NOT routes.moved))
"""


async def find_namespace_named(
    database: Executor, *, namespace_id: int | None, path: str, user_id: int
) -> Row | None:
    """As `find_namespace`, by id or (without one) by full path."""
    return await database.row(FIND_NAMESPACE_NAMED, id=namespace_id, path=path, user_id=user_id)


MOVE_PROJECT = """
    UPDATE projects SET namespace_id = %(namespace_id)s, full_path = %(full_path)s, visibility = %(visibility)s,
        updated_at = now()
    WHERE id = %(id)s
"""


async def move_project(
    transaction: Transaction, project_id: int, *, namespace_id: int, full_path: str, visibility: str
) -> None:
    await transaction.row(
        MOVE_PROJECT, id=project_id, namespace_id=namespace_id, full_path=full_path, visibility=visibility
    )


LOCK_PROJECT = """
    SELECT projects.* FROM projects WHERE projects.id = %(id)s FOR UPDATE
"""


async def lock_project(transaction: Transaction, project_id: int) -> Row:
    """The project's whole row, which nobody else changes until the transaction ends."""
    return await transaction.row(LOCK_PROJECT, id=project_id)
