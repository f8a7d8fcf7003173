"""Statements about paths: every one leads to one thing at a time, and old ones of what has moved redirect."""

import attrs

from api_server.state.database import Transaction
from api_server.state.statements import Query

TAKE = """
    INSERT INTO routes (path, namespace_id, project_id) VALUES (lower(%(path)s), %(namespace_id)s, %(project_id)s)
    ON CONFLICT (path) DO UPDATE SET
        namespace_id = excluded.namespace_id, project_id = excluded.project_id, moved = false
    WHERE routes.moved
        OR (routes.namespace_id, routes.project_id) IS NOT DISTINCT FROM (excluded.namespace_id, excluded.project_id)
"""


async def take(
    transaction: Transaction, path: str, *, namespace_id: int | None = None, project_id: int | None = None
) -> bool:
    """Makes `path` lead to the namespace or project; False where it belongs to another one."""
    return await transaction.run(TAKE, path=path, namespace_id=namespace_id, project_id=project_id) > 0


LEAVE_PROJECT = """
    UPDATE routes SET moved = true WHERE project_id = %(id)s
"""


async def leave(transaction: Transaction, project_id: int) -> None:
    """The paths that the project has had until now redirect to it."""
    await transaction.run(LEAVE_PROJECT, id=project_id)


LEAVE_BELOW = """
    UPDATE routes SET moved = true
    WHERE (namespace_id IN (SELECT id FROM namespaces WHERE lineage @> ARRAY[%(id)s]::bigint[])
        OR project_id IN (SELECT projects.id FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE namespaces.lineage @> ARRAY[%(id)s]::bigint[]))
"""


async def leave_below(transaction: Transaction, namespace_id: int) -> None:
    """As `leave`, of a namespace and all below it."""
    await transaction.run(LEAVE_BELOW, id=namespace_id)


REBASE_NAMESPACES = """
    UPDATE namespaces SET
        full_path = %(new)s || substr(full_path, length(%(old)s) + 1),
        path = CASE WHEN id = %(id)s THEN substring(%(new)s from '[^/]*$') ELSE path END,
        updated_at = %(now)s
    WHERE lineage @> ARRAY[%(id)s]::bigint[]
"""


async def rebase_namespaces(transaction: Transaction, namespace_id: int, old: str, new: str) -> None:
    """Gives a namespace the full path `new`, and those below it theirs."""
    await transaction.run(REBASE_NAMESPACES, id=namespace_id, old=old, new=new)


@attrs.frozen
class _Moved:
    id: int


REBASE_PROJECTS = Query(
    """
    UPDATE projects SET
        full_path = %(new)s || substr(projects.full_path, length(%(old)s) + 1), updated_at = %(now)s
    FROM namespaces
    WHERE namespaces.id = projects.namespace_id AND namespaces.lineage @> ARRAY[%(id)s]::bigint[]
    RETURNING projects.id
    """,
    _Moved,
)


async def rebase_projects(transaction: Transaction, namespace_id: int, old: str, new: str) -> list[int]:
    """The ids of all projects below, which have moved with their namespace."""
    return [row.id for row in await transaction.rows(REBASE_PROJECTS, id=namespace_id, old=old, new=new)]


@attrs.frozen
class _Taken:
    path: str


TAKE_BELOW = Query(
    """
    INSERT INTO routes (path, namespace_id, project_id)
    SELECT lower(full_path), id, NULL::bigint FROM namespaces WHERE lineage @> ARRAY[%(id)s]::bigint[]
    UNION ALL
    SELECT lower(projects.full_path), NULL, projects.id FROM projects
    JOIN namespaces ON namespaces.id = projects.namespace_id WHERE namespaces.lineage @> ARRAY[%(id)s]::bigint[]
    ON CONFLICT (path) DO UPDATE SET
        namespace_id = excluded.namespace_id, project_id = excluded.project_id, moved = false
    WHERE routes.moved
    RETURNING path
    """,
    _Taken,
)


async def take_below(transaction: Transaction, namespace_id: int) -> set[str]:
    """Makes the full paths of a namespace and of all below it lead there; those (in lower case) that were free."""
    return {row.path for row in await transaction.rows(TAKE_BELOW, id=namespace_id)}
