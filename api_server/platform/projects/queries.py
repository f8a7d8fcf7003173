"""Statements about projects."""

import re
from typing import Any

from api_server.state.database import Executor, Row, Statement, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

PROJECT = read_sql("api_server.platform.projects")["project"]

#: The projects that a user sees because of a membership or of owning their namespace.
_HERS = """
    projects.namespace_id = ANY (ARRAY(
        SELECT namespaces.id FROM namespaces WHERE namespaces.owner_id = %(viewer_id)s
        UNION ALL
        SELECT namespaces.id FROM namespaces WHERE namespaces.lineage && ARRAY(
            SELECT members.namespace_id FROM members
            WHERE members.user_id = %(viewer_id)s AND members.namespace_id IS NOT NULL AND members.access_level >= 10
                AND (members.expires_at IS NULL OR members.expires_at > current_date))))
    OR projects.id = ANY (ARRAY(
        SELECT members.project_id FROM members
        WHERE members.user_id = %(viewer_id)s AND members.project_id IS NOT NULL AND members.access_level >= 10
            AND (members.expires_at IS NULL OR members.expires_at > current_date)))
"""
LISTING = Listing(
    PROJECT,
    f"""
    SELECT projects.* FROM projects
    WHERE (%(admin)s OR projects.visibility IN ('public', 'internal') OR {_HERS})
        AND (NOT %(membership)s OR {_HERS})
        AND (%(owner_id)s::bigint IS NULL OR projects.namespace_id IN (
            SELECT namespaces.id FROM namespaces WHERE namespaces.owner_id = %(owner_id)s))
        AND (%(group_id)s::bigint IS NULL OR projects.namespace_id IN (
            SELECT namespaces.id FROM namespaces WHERE namespaces.id = %(group_id)s
                OR (%(include_subgroups)s AND %(group_id)s = ANY (namespaces.lineage))))
        AND (%(visibility)s::text IS NULL OR projects.visibility = %(visibility)s)
        AND (%(archived)s::boolean IS NULL OR projects.archived = %(archived)s)
        AND (%(search)s::text IS NULL OR projects.name ILIKE '%%' || %(search)s || '%%'
            OR projects.path ILIKE '%%' || %(search)s || '%%')
    """,
    {
        "name": "name",
        "path": "path",
        "created_at": "created_at",
        "updated_at": "updated_at",
        "last_activity_at": "last_activity_at",
    },
)


async def list_projects(database: Executor, page: Page, **filters: Any) -> Listed:
    return await LISTING.read(database, page, **filters)


SHOW_PROJECT = one(PROJECT, "SELECT projects.* FROM projects WHERE projects.id = %(id)s")


async def show_project(database: Executor, project_id: int, viewer_id: int) -> str:
    row = await database.row(SHOW_PROJECT, id=project_id, viewer_id=viewer_id)
    return str(row and row.entity)


FIND_PROJECT = Statement("""
    SELECT projects.id, projects.namespace_id, projects.name, projects.path, projects.full_path,
        projects.visibility, projects.default_branch, projects.archived, projects.empty_repo, projects.public_jobs,
        projects.repository_access_level, projects.builds_access_level, projects.ci_config_path,
        project_role(projects, namespaces, %(user_id)s) AS role,
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
        namespace_role(namespaces, %(user_id)s) AS role
    FROM namespaces
    WHERE CASE WHEN %(id)s::bigint IS NULL THEN namespaces.owner_id = %(user_id)s ELSE namespaces.id = %(id)s END
"""


async def find_namespace(database: Executor, namespace_id: int | None, user_id: int) -> Row | None:
    """id, kind, owner_id, full_path, visibility and the user's role; without an id, the user's own namespace."""
    return await database.row(FIND_NAMESPACE, id=namespace_id, user_id=user_id)


LOCK_PROJECT = """
    SELECT projects.* FROM projects WHERE projects.id = %(id)s FOR UPDATE
"""


async def lock_project(transaction: Transaction, project_id: int) -> Row:
    """The project's whole row, which nobody else changes until the transaction ends."""
    return await transaction.row(LOCK_PROJECT, id=project_id)
