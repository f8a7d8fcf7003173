# mypy: disable-error-code="empty-body"
"""Statements about moves of refs that are not settled yet, and what they leave in the project's row."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement


@statement("""
    INSERT INTO pushes (id, project_id, user_id, updates, options, created_at)
    VALUES (%(push_id)s, %(project_id)s, %(user_id)s, %(updates)s, %(options)s, %(now)s)
""")
async def write_down(
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
async def strike_out(transaction: Transaction, push_id: str) -> None: ...


@attrs.frozen
class Proposed:
    """`updates` are JSON."""

    user_id: int | None
    updates: str


#: The project first, as whoever removes it does; but not its key: what is added to it meanwhile does not wait.
@statement("""
    SELECT pushes.user_id, pushes.updates FROM pushes JOIN projects ON projects.id = pushes.project_id
    WHERE pushes.id = %(push_id)s FOR NO KEY UPDATE OF projects FOR UPDATE OF pushes
    """)
async def lock_push(transaction: Transaction, push_id: str) -> Proposed | None:
    """Return the unsettled updates of a push, or None if they are settled."""


@statement("""
    SELECT pushes.id FROM pushes WHERE pushes.id = %(push_id)s FOR UPDATE
""")
async def hold_push(transaction: Transaction, push_id: str) -> None:
    """Say until the transaction ends that git is busy with it."""


@statement("""
    UPDATE pushes SET updates = %(updates)s WHERE id = %(push_id)s
""")
async def keep_waiting(transaction: Transaction, push_id: str, updates: str) -> None:
    """Leave these updates (JSON) of a push."""


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
    """Return all that is not settled and nobody is busy with, the oldest first; `updates` are JSON, `options`
    encrypted."""


@attrs.frozen
class MovedProject:
    """A project whose refs have moved, as listeners are told of it."""

    id: int
    default_branch: str
    empty_repo: bool
    builds_access_level: str


@statement("""
    SELECT projects.id, projects.default_branch, projects.empty_repo, projects.builds_access_level
    FROM projects WHERE projects.id = %(project_id)s FOR NO KEY UPDATE
    """)
async def lock_project(transaction: Transaction, project_id: int) -> MovedProject | None:
    """Return the project as it was; until the transaction ends no other move is settled."""


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
    """As a branch is protected that nobody has said anything of."""
