# mypy: disable-error-code="empty-body"
"""Statements about paths: each leads to one namespace or project at a time, and former paths redirect."""

from api_server.state.database import Transaction
from api_server.state.declarations import statement


@statement("""
    INSERT INTO routes (path, namespace_id, project_id) VALUES (lower(%(path)s), %(namespace_id)s, %(project_id)s)
    ON CONFLICT (path) DO UPDATE SET
        namespace_id = excluded.namespace_id, project_id = excluded.project_id, moved = false
    WHERE routes.moved
        OR (routes.namespace_id, routes.project_id) IS NOT DISTINCT FROM (excluded.namespace_id, excluded.project_id)
""")
async def take(
    transaction: Transaction, path: str, *, namespace_id: int | None = None, project_id: int | None = None
) -> bool:
    """Make `path` lead to the namespace or project. Return False if it belongs to another one."""


@statement("""
    UPDATE routes SET moved = true WHERE project_id = %(project_id)s
""")
async def leave(transaction: Transaction, project_id: int) -> None:
    """Make all paths that the project has had until now redirect to it."""


@statement("""
    UPDATE routes SET moved = true
    WHERE (namespace_id IN (SELECT id FROM namespaces WHERE lineage @> ARRAY[%(namespace_id)s]::bigint[])
        OR project_id IN (SELECT projects.id FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE namespaces.lineage @> ARRAY[%(namespace_id)s]::bigint[]))
""")
async def leave_below(transaction: Transaction, namespace_id: int) -> None:
    """Make the paths of a namespace and of everything below it redirect, like `leave`."""


@statement("""
    UPDATE namespaces SET
        full_path = %(new)s || substr(full_path, length(%(old)s) + 1),
        path = CASE WHEN id = %(namespace_id)s THEN substring(%(new)s from '[^/]*$') ELSE path END,
        updated_at = %(now)s
    WHERE lineage @> ARRAY[%(namespace_id)s]::bigint[]
""")
async def rebase_namespaces(transaction: Transaction, namespace_id: int, old: str, new: str) -> None:
    """Give a namespace the full path `new`, and update the full paths of those below it."""


@statement("""
    UPDATE projects SET
        full_path = %(new)s || substr(projects.full_path, length(%(old)s) + 1), updated_at = %(now)s
    FROM namespaces
    WHERE namespaces.id = projects.namespace_id AND namespaces.lineage @> ARRAY[%(namespace_id)s]::bigint[]
    RETURNING projects.id
    """)
async def rebase_projects(transaction: Transaction, namespace_id: int, old: str, new: str) -> list[int]:
    """Update the full paths of all projects below a moved namespace, and return their ids."""


@statement("""
    INSERT INTO routes (path, namespace_id, project_id)
    SELECT lower(full_path), id, NULL::bigint FROM namespaces WHERE lineage @> ARRAY[%(namespace_id)s]::bigint[]
    UNION ALL
    SELECT lower(projects.full_path), NULL, projects.id FROM projects
    JOIN namespaces ON namespaces.id = projects.namespace_id
    WHERE namespaces.lineage @> ARRAY[%(namespace_id)s]::bigint[]
    ON CONFLICT (path) DO UPDATE SET
        namespace_id = excluded.namespace_id, project_id = excluded.project_id, moved = false
    WHERE routes.moved
    RETURNING path
    """)
async def take_below(transaction: Transaction, namespace_id: int) -> set[str]:
    """Make the full paths of a namespace and of everything below it lead there. Return those (in lower case)
    that were free."""
