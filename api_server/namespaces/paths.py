"""Paths of users, groups and projects: what they may look like, who has one, and what moved away from one."""

import re

from api_server.state.database import Conflict, Executor, Row, Transaction
from api_server.state.statements import Statement

MAX_LENGTH = 255
_PATH = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", re.ASCII)
_BAD_ENDINGS = (".git", ".atom", ".", "-")
#: Names that lead elsewhere at the top level.
_RESERVED_ROOTS = frozenset(
    [
        "-",
        "admin",
        "api",
        "assets",
        "dashboard",
        "explore",
        "groups",
        "health_check",
        "help",
        "users",
        "projects",
        "raw",
    ]
)
#: Names that mean a page of a project.
_RESERVED_WITHIN = frozenset(
    [
        "-",
        "blob",
        "builds",
        "commits",
        "edit",
        "files",
        "info",
        "new",
        "raw",
        "refs",
        "tree",
        "update",
        "wikis",
    ]
)


def problem_with(path: str, *, within: str | None = None) -> str | None:
    """Why `path` cannot be the path of something (in the namespace `within`), or None."""
    if not _PATH.fullmatch(path) or path.lower().endswith(_BAD_ENDINGS):
        return (
            "can contain only letters, digits, '_', '-' and '.'. "
            "Cannot start with '-', end in '.git' or end in '.atom'"
        )
    if len(path) > MAX_LENGTH:
        return f"is too long (maximum is {MAX_LENGTH} characters)"
    if path.lower() in (_RESERVED_ROOTS if within is None else _RESERVED_WITHIN):
        return f"{path} is a reserved name"
    return None


def path_from(name: str) -> str:
    """A path for a thing of that name: `My App!` -> `my-app`."""
    return re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")


TAKE = """
    INSERT INTO routes (path, namespace_id, project_id) VALUES (lower(%(path)s), %(namespace_id)s, %(project_id)s)
    ON CONFLICT (path) DO UPDATE SET
        namespace_id = excluded.namespace_id, project_id = excluded.project_id, moved = false
    WHERE routes.moved
        OR (routes.namespace_id, routes.project_id) IS NOT DISTINCT FROM (excluded.namespace_id, excluded.project_id)
    RETURNING path
"""


async def take(
    transaction: Transaction, path: str, *, namespace_id: int | None = None, project_id: int | None = None
) -> bool:
    """Makes `path` lead to the namespace or project; False where it belongs to another one."""
    return (
        await transaction.row(TAKE, path=path, namespace_id=namespace_id, project_id=project_id)
    ) is not None


LEAVE_FOR_NAMESPACE = """
    UPDATE routes SET moved = true
    WHERE (namespace_id IN (SELECT id FROM namespaces WHERE %(id)s = ANY (lineage))
        OR project_id IN (SELECT projects.id FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
            WHERE %(id)s = ANY (namespaces.lineage)))
"""

REBASE_NAMESPACES = """
    UPDATE namespaces SET
        full_path = %(new)s || substr(full_path, length(%(old)s) + 1),
        path = CASE WHEN id = %(id)s THEN %(path)s ELSE path END,
        updated_at = now()
    WHERE %(id)s = ANY (lineage)
"""

REBASE_PROJECTS = """
    UPDATE projects SET full_path = %(new)s || substr(projects.full_path, length(%(old)s) + 1), updated_at = now()
    FROM namespaces WHERE namespaces.id = projects.namespace_id AND %(id)s = ANY (namespaces.lineage)
"""

TAKE_ALL = """
    INSERT INTO routes (path, namespace_id, project_id)
    SELECT lower(full_path), id, NULL::bigint FROM namespaces WHERE %(id)s = ANY (lineage)
    UNION ALL
    SELECT lower(projects.full_path), NULL, projects.id FROM projects
    JOIN namespaces ON namespaces.id = projects.namespace_id WHERE %(id)s = ANY (namespaces.lineage)
    ON CONFLICT (path) DO UPDATE SET
        namespace_id = excluded.namespace_id, project_id = excluded.project_id, moved = false
    WHERE routes.moved
    RETURNING path
"""


async def rename_namespace(transaction: Transaction, namespace: Row, path: str) -> bool:
    """Moves a namespace (id, full_path) and all below it to another last path segment; its old paths redirect.

    False where the new path belongs to something else.
    """
    old = namespace.full_path
    new = f"{old.rpartition('/')[0]}/{path}".lstrip("/")
    if new.lower() != old.lower() and await owner_of(transaction, new) is not None:
        return False
    await transaction.row(LEAVE_FOR_NAMESPACE, id=namespace.id)
    await transaction.row(REBASE_NAMESPACES, id=namespace.id, old=old, new=new, path=path)
    await transaction.row(REBASE_PROJECTS, id=namespace.id, old=old, new=new)
    await transaction.rows(TAKE_ALL, id=namespace.id)
    return True


OWNER_OF = Statement("""
    SELECT routes.namespace_id, routes.project_id FROM routes WHERE routes.path = lower(%(path)s) AND NOT routes.moved
""")


async def owner_of(database: Executor, path: str) -> Row | None:
    """namespace_id and project_id (one of them) of what has this path now."""
    return await database.row(OWNER_OF, path=path)


CREATE_USER_NAMESPACE = """
    INSERT INTO namespaces (kind, owner_id, name, path, full_path, full_name, visibility)
    VALUES ('user', %(user_id)s, %(name)s, %(username)s, %(username)s, %(name)s, 'public')
    RETURNING id
"""

SET_LINEAGE = """
    UPDATE namespaces SET lineage = %(lineage)s WHERE id = %(id)s
"""


async def create_user_namespace(transaction: Transaction, user_id: int, username: str, name: str) -> None:
    """Raises Conflict where a group has the path."""
    namespace_id = await transaction.value(
        CREATE_USER_NAMESPACE, user_id=user_id, username=username, name=name
    )
    await transaction.row(SET_LINEAGE, id=namespace_id, lineage=[namespace_id])
    if not await take(transaction, username, namespace_id=namespace_id):
        raise Conflict("routes_pkey")


USER_NAMESPACE = """
    SELECT namespaces.id, namespaces.full_path FROM namespaces WHERE namespaces.owner_id = %(user_id)s
"""


async def rename_user_namespace(transaction: Transaction, user_id: int, username: str) -> None:
    """Raises Conflict where a group has the path."""
    namespace = await transaction.row(USER_NAMESPACE, user_id=user_id)
    if not await rename_namespace(transaction, namespace, username):
        raise Conflict("routes_pkey")
