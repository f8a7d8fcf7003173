"""Statements that keep the rights of whoever pushes as they are while git moves refs."""

from collections.abc import Sequence

import attrs

from api_server.state.database import Transaction
from api_server.state.statements import Query, Statement


@attrs.frozen
class Held:
    """A project that stays where it is; `lineage` are the namespaces whose members are its members too."""

    lineage: list[int]


#: Whoever archives, moves, removes or changes a project, or protects one of its branches, locks it FOR UPDATE.
HOLD_PROJECT = Statement(
    """
    SELECT namespaces.lineage FROM projects JOIN namespaces ON namespaces.id = projects.namespace_id
    WHERE projects.id = %(project_id)s FOR KEY SHARE OF projects
    """,
    Held,
)

HOLD_USER = Query("SELECT users.id FROM users WHERE users.id = %(user_id)s FOR SHARE")

HOLD_TOKEN = Query(
    "SELECT tokens.id FROM personal_access_tokens tokens WHERE tokens.id = %(token_id)s FOR SHARE"
)

HOLD_MEMBERSHIPS = Query(
    """
    SELECT members.id FROM members
    WHERE members.user_id = %(user_id)s
        AND (members.project_id = %(project_id)s OR members.namespace_id = ANY (%(lineage)s))
    ORDER BY members.id FOR SHARE
    """
)

HOLD_PROTECTION = Query(
    "SELECT rules.id FROM protected_branches rules WHERE rules.project_id = %(project_id)s ORDER BY rules.id FOR SHARE"
)


async def hold_rights(
    transaction: Transaction, project_id: int, *, user_id: int, token_id: int | None
) -> None:
    """Until the transaction ends, nobody takes away what the user may do in the project: who wants to waits.

    What is read afterwards is what holds. Raises LockNotAvailable where somebody who does so takes long.
    """
    held = await transaction.row(HOLD_PROJECT, project_id=project_id)
    lineage: Sequence[int] = held.lineage if held else ()
    await transaction.run(HOLD_USER, user_id=user_id)
    await transaction.run(HOLD_TOKEN, token_id=token_id)
    await transaction.run(HOLD_MEMBERSHIPS, user_id=user_id, project_id=project_id, lineage=list(lineage))
    await transaction.run(HOLD_PROTECTION, project_id=project_id)
