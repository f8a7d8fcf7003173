"""Statements about moves of refs that are not settled yet, and what they leave in the project's row."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query

WRITE_DOWN = """
    INSERT INTO pushes (id, project_id, user_id, updates, options, created_at)
    VALUES (%(id)s, %(project_id)s, %(user_id)s, %(updates)s, %(options)s, %(now)s)
"""


async def write_down(
    transaction: Transaction,
    push_id: str,
    project_id: int,
    user_id: int | None,
    *,
    updates: str,
    options: bytes | None,
) -> None:
    """`updates` are JSON, `options` are encrypted."""
    await transaction.run(
        WRITE_DOWN, id=push_id, project_id=project_id, user_id=user_id, updates=updates, options=options
    )


STRIKE_OUT = """
    DELETE FROM pushes WHERE id = %(id)s
"""


async def strike_out(transaction: Transaction, push_id: str) -> None:
    await transaction.run(STRIKE_OUT, id=push_id)


@attrs.frozen
class Proposed:
    """`updates` are JSON."""

    user_id: int | None
    updates: str


#: The project first, as whoever removes it does; but not its key: what is added to it meanwhile does not wait.
LOCK_PUSH = Query(
    """
    SELECT pushes.user_id, pushes.updates FROM pushes JOIN projects ON projects.id = pushes.project_id
    WHERE pushes.id = %(id)s FOR NO KEY UPDATE OF projects FOR UPDATE OF pushes
    """,
    Proposed,
)


async def lock_push(transaction: Transaction, push_id: str) -> Proposed | None:
    """What waits of a push; None where somebody has settled it."""
    return await transaction.row(LOCK_PUSH, id=push_id)


HOLD_PUSH = """
    SELECT pushes.id FROM pushes WHERE pushes.id = %(id)s FOR UPDATE
"""


async def hold_push(transaction: Transaction, push_id: str) -> None:
    """Says until the transaction ends that git is busy with it."""
    await transaction.run(HOLD_PUSH, id=push_id)


KEEP_WAITING = """
    UPDATE pushes SET updates = %(updates)s WHERE id = %(id)s
"""


async def keep_waiting(transaction: Transaction, push_id: str, updates: str) -> None:
    """Leaves these updates (JSON) of a push."""
    await transaction.run(KEEP_WAITING, id=push_id, updates=updates)


@attrs.frozen
class Leftover:
    id: str
    project_id: int
    updates: str
    options: bytes | None
    created_at: datetime.datetime


LEFTOVERS = Query(
    """
    SELECT pushes.id, pushes.project_id, pushes.updates, pushes.options, pushes.created_at FROM pushes
    ORDER BY pushes.created_at FOR UPDATE SKIP LOCKED
    """,
    Leftover,
)


async def leftovers(database: Executor) -> list[Leftover]:
    """All that is not settled and nobody is busy with, the oldest first; `updates` are JSON, `options` encrypted."""
    return await database.rows(LEFTOVERS)


@attrs.frozen
class MovedProject:
    """A project whose refs have moved, as listeners are told of it."""

    id: int
    default_branch: str
    empty_repo: bool
    builds_access_level: str


LOCK_PROJECT = Query(
    """
    SELECT projects.id, projects.default_branch, projects.empty_repo, projects.builds_access_level
    FROM projects WHERE projects.id = %(id)s FOR NO KEY UPDATE
    """,
    MovedProject,
)


async def lock_project(transaction: Transaction, project_id: int) -> MovedProject | None:
    """The project as it was; until the transaction ends no other move is settled."""
    return await transaction.row(LOCK_PROJECT, id=project_id)


NOTE_ACTIVITY = """
    UPDATE projects SET last_activity_at = %(now)s, empty_repo = %(is_empty)s, default_branch = %(default_branch)s
    WHERE id = %(id)s
"""


async def note_activity(
    transaction: Transaction, project_id: int, default_branch: str, *, is_empty: bool
) -> None:
    await transaction.run(NOTE_ACTIVITY, id=project_id, default_branch=default_branch, is_empty=is_empty)


PROTECT = """
    INSERT INTO protected_branches (project_id, name, created_at, updated_at)
    VALUES (%(project_id)s, %(name)s, %(now)s, %(now)s)
    ON CONFLICT (project_id, name) DO NOTHING
"""


async def protect(transaction: Transaction, project_id: int, branch: str) -> None:
    """As a branch is protected that nobody has said anything of."""
    await transaction.run(PROTECT, project_id=project_id, name=branch)
