"""Paths of groups, of users' namespaces and of projects: their rules, and changing them."""

import re

from api_server.accounts import path_rules
from api_server.namespaces import path_queries as queries
from api_server.outbound import edges
from api_server.state.database import Transaction

#: Maximum number of groups above a group, as in GitLab; a full path adds segments for the group itself and a
#: project.
MAX_ANCESTORS = 20
MAX_SEGMENTS = MAX_ANCESTORS + 2
#: Names that would collide with pages of a project.
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


def problem_with(path: str, *, within: bool) -> str | None:
    """Return the reason why a path is not allowed at the top level, or `within` a group or a user's
    namespace, or None. It is a single segment: a slash would lead into another namespace."""
    return path_rules.problem_with(path, _RESERVED_WITHIN if within else path_rules.RESERVED_ROOTS)


def path_from(name: str) -> str:
    """Return a path made from a name: `My App!` -> `my-app`."""
    return re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")


def beside(full_path: str, path: str) -> str:
    """Return `full_path` with another last segment."""
    return f"{full_path.rpartition('/')[0]}/{path}".lstrip("/")


async def rename_namespace(transaction: Transaction, namespace_id: int, full_path: str, path: str) -> bool:
    """Give a namespace another last path segment, and move everything below it; the old paths redirect.

    Return False if the new path is taken; then the transaction has to be rolled back.
    """
    new = beside(full_path, path)
    await queries.leave_below(transaction, namespace_id)
    await queries.rebase_namespaces(transaction, namespace_id, full_path, new)
    moved = await queries.rebase_projects(transaction, namespace_id, full_path, new)
    if new.lower() not in await queries.take_below(transaction, namespace_id):
        return False
    await edges.changed(transaction, *map(edges.project_key, moved))
    return True
