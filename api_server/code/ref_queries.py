# mypy: disable-error-code="empty-body"
"""Statements about moves of refs that are not settled yet, and about their effects on the project's row."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@statement("""
    INSERT INTO pushes (id, project_id, user_id, updates, options, created_at)
    VALUES (%(push_id)s, %(project_id)s, %(user_id)s, %(updates)s, %(options)s, %(now)s)
""")
async def record_push(
    transaction: Transaction,
    push_id: str,
    project_id: int,
    user_id: int | None,
    *,
    updates: str,
    options: bytes | None,
) -> None:
    """Store a proposed push. `updates` is JSON, and `options` are encrypted."""


@statement("""
    DELETE FROM pushes WHERE id = %(push_id)s
""")
async def delete_push(transaction: Transaction, push_id: str) -> None: ...


@attrs.frozen
class ProposedPush:
    """A push that is not settled yet. `updates` is JSON."""

    user_id: int | None
    updates: str


#: Locks the project first, as its removal does, but not its key, so that adding rows to the project does not wait.
@statement("""
    SELECT pushes.user_id, pushes.updates FROM pushes JOIN projects ON projects.id = pushes.project_id
    WHERE pushes.id = %(push_id)s FOR NO KEY UPDATE OF projects FOR UPDATE OF pushes
    """)
async def lock_push(transaction: Transaction, push_id: str) -> ProposedPush | None:
    """Lock and return the unsettled updates of a push, or return None if they are settled."""


@statement("""
    SELECT pushes.id FROM pushes WHERE pushes.id = %(push_id)s FOR UPDATE
""")
async def hold_push(transaction: Transaction, push_id: str) -> None:
    """Lock the push until the transaction ends, to show that git is working on it."""


@statement("""
    UPDATE pushes SET updates = %(updates)s WHERE id = %(push_id)s
""")
async def keep_waiting(transaction: Transaction, push_id: str, updates: str) -> None:
    """Replace the unsettled updates (JSON) of a push."""


@attrs.frozen
class Leftover:
    id: str
    project_id: int
    updates: str
    options: bytes | None
    created_at: datetime.datetime


@statement("""
    SELECT pushes.id, pushes.project_id, pushes.updates, pushes.options, pushes.created_at FROM pushes
    ORDER BY pushes.created_at FOR UPDATE SKIP LOCKED
    """)
async def leftovers(database: Executor) -> list[Leftover]:
    """Return all pushes that are not settled and that nobody has locked, the oldest first. `updates` is JSON,
    `options` are encrypted."""


@attrs.frozen
class MovedProject:
    """A project whose refs have moved, as it is passed to listeners."""

    id: int
    default_branch: str
    empty_repo: bool
    builds_access_level: str


@statement("""
    SELECT projects.id, projects.default_branch, projects.empty_repo, projects.builds_access_level
    FROM projects WHERE projects.id = %(project_id)s FOR NO KEY UPDATE
    """)
async def lock_project(transaction: Transaction, project_id: int) -> MovedProject | None:
    """Lock and return the project as it was, or return None. No other move is settled until the transaction ends."""


@statement("""
    UPDATE projects SET last_activity_at = %(now)s, empty_repo = %(is_empty)s, default_branch = %(default_branch)s
    WHERE id = %(project_id)s
""")
async def note_activity(
    transaction: Transaction, project_id: int, default_branch: str, *, is_empty: bool
) -> None: ...


@statement("""
    INSERT INTO protected_branches (project_id, name, created_at, updated_at)
    VALUES (%(project_id)s, %(branch)s, %(now)s, %(now)s)
    ON CONFLICT (project_id, name) DO NOTHING
""")
async def protect(transaction: Transaction, project_id: int, branch: str) -> None:
    """Protect a branch with the default rule, unless it has a rule already."""
