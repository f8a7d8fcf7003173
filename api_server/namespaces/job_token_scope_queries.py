# mypy: disable-error-code="empty-body"
"""Statements about job token scopes and their allow-lists."""

from typing import Literal

import attrs

from api_server.namespaces.namespace_queries import IN_LISTS
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.errors import NotFound
from api_server.state.listing import ListPage, ListQuery, Page, Quota

#: The kinds of entries of an allow-list.
Kind = Literal["project", "group"]

IS_ENABLED = """
    SELECT projects.ci_inbound_job_token_scope_enabled FROM projects WHERE projects.id = %(id)s
"""


async def is_enabled(database: Executor, project_id: int) -> bool:
    """Return whether the project admits only the jobs of its allow-list. Raise NotFound."""
    enabled = await database.value(IS_ENABLED, id=project_id)
    if enabled is None:
        raise NotFound
    return bool(enabled)


@statement("""
    UPDATE projects SET ci_inbound_job_token_scope_enabled = %(enabled)s, updated_at = %(now)s
    WHERE id = %(project_id)s AND ci_inbound_job_token_scope_enabled <> %(enabled)s
""")
async def set_enabled(transaction: Transaction, project_id: int, *, enabled: bool) -> bool:
    """Set whether the scope is limited; return whether that was a change."""


PROJECTS_LISTING = ListQuery(
    IN_LISTS["basic_project"],
    """
    SELECT projects.* FROM projects WHERE projects.id IN (
        SELECT %(project_id)s::bigint
        UNION ALL SELECT allowed.target_id FROM job_token_allowed_projects allowed
        WHERE allowed.project_id = %(project_id)s)
    """,
)
GROUPS_LISTING = ListQuery(
    IN_LISTS["basic_group"],
    """
    SELECT namespaces.* FROM namespaces WHERE namespaces.id IN (
        SELECT allowed.target_id FROM job_token_allowed_groups allowed WHERE allowed.project_id = %(project_id)s)
    """,
)
LISTINGS: dict[Kind, ListQuery] = {"project": PROJECTS_LISTING, "group": GROUPS_LISTING}


async def list_allowed(database: Executor, page: Page, kind: Kind, project_id: int) -> ListPage:
    """Return a page of the project's allow-list; the project itself is always on the list of projects."""
    return await LISTINGS[kind].read(database, page, project_id=project_id)


@attrs.frozen
class _Statements:
    allow: str
    disallow: str


def _statements(table: str, targets: str) -> _Statements:
    path = f"(SELECT target.full_path FROM {targets} target WHERE target.id = target_id)"
    return _Statements(
        f"""
        INSERT INTO {table} (project_id, target_id) VALUES (%(project_id)s, %(target_id)s) ON CONFLICT DO NOTHING
        RETURNING {path}
        """,
        f"DELETE FROM {table} WHERE project_id = %(project_id)s AND target_id = %(target_id)s RETURNING {path}",
    )


STATEMENTS: dict[Kind, _Statements] = {
    "project": _statements("job_token_allowed_projects", "projects"),
    "group": _statements("job_token_allowed_groups", "namespaces"),
}
QUOTAS: dict[Kind, Quota] = {
    "project": Quota("job_token_allowed_projects", "project_id"),
    "group": Quota("job_token_allowed_groups", "project_id"),
}


async def allow(transaction: Transaction, kind: Kind, project_id: int, target_id: int) -> str | None:
    """Add a target and return its full path, or None if it was already on the list. Raise NotFound if it no
    longer exists."""
    path: str | None = await transaction.value(
        STATEMENTS[kind].allow, project_id=project_id, target_id=target_id
    )
    return path


async def disallow(transaction: Transaction, kind: Kind, project_id: int, target_id: int) -> str | None:
    """Remove a target and return its full path, or None if it was not on the list."""
    path: str | None = await transaction.value(
        STATEMENTS[kind].disallow, project_id=project_id, target_id=target_id
    )
    return path
