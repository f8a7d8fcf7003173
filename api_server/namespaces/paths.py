"""Paths of groups, of users' namespaces and of projects: what they may look like, and moving to another one."""

import re

from api_server.accounts import path_rules
from api_server.namespaces import path_queries as queries
from api_server.outbound import edges
from api_server.state.database import Transaction

#: Groups above a group, as in GitLab; so a full path has at most that many segments, its own and a project's.
MOST_ANCESTORS = 20
MOST_SEGMENTS = MOST_ANCESTORS + 2
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


def problem_with(path: str, *, within: bool) -> str | None:
    """Return why something cannot have this path, at the top level or `within` a group or a user's namespace; or None.
    It is one segment: a slash in it would lead into the namespace of somebody else."""
    return path_rules.problem_with(path, _RESERVED_WITHIN if within else path_rules.RESERVED_ROOTS)


def path_from(name: str) -> str:
    """Return a path for a thing of that name: `My App!` -> `my-app`."""
    return re.sub(r"[^a-z0-9_.]+", "-", name.lower()).strip("-.")


def beside(full_path: str, path: str) -> str:
    """Return `full_path` with another last segment."""
    return f"{full_path.rpartition('/')[0]}/{path}".lstrip("/")


async def rename_namespace(transaction: Transaction, namespace_id: int, full_path: str, path: str) -> bool:
    """Moves a namespace and all below it to another last path segment; its old paths redirect.

    False where the new path belongs to something else; then the transaction has to be given up.
    """
    new = beside(full_path, path)
    await queries.leave_below(transaction, namespace_id)
    await queries.rebase_namespaces(transaction, namespace_id, full_path, new)
    moved = await queries.rebase_projects(transaction, namespace_id, full_path, new)
    if new.lower() not in await queries.take_below(transaction, namespace_id):
        return False
    await edges.changed(transaction, *map(edges.project_key, moved))
    return True
