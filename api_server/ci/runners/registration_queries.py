"""Statements about the tokens that runners register with."""

import attrs

from api_server.state.database import Transaction
from api_server.state.statements import Query

SET_REGISTRATION_TOKEN = """
    INSERT INTO runner_registration_tokens (namespace_id, project_id, digest, created_at)
    VALUES (%(namespace_id)s, %(project_id)s, %(digest)s, %(now)s)
    ON CONFLICT (namespace_id, project_id) DO UPDATE SET digest = excluded.digest, created_at = excluded.created_at
"""


async def set_registration_token(
    transaction: Transaction, digest: bytes, *, namespace_id: int | None = None, project_id: int | None = None
) -> None:
    """The token with which runners of this group or project (or neither: of the instance) register from now on."""
    await transaction.run(
        SET_REGISTRATION_TOKEN, digest=digest, namespace_id=namespace_id, project_id=project_id
    )


@attrs.frozen
class Registration:
    """What a registration token is for: a group, a project, or neither: the instance."""

    namespace_id: int | None
    project_id: int | None


HOLD_REGISTRATION = Query(
    """
    SELECT runner_registration_tokens.namespace_id, runner_registration_tokens.project_id
    FROM runner_registration_tokens WHERE runner_registration_tokens.digest = %(digest)s
    FOR KEY SHARE
    """,
    Registration,
)


async def hold_registration(transaction: Transaction, digest: bytes) -> Registration | None:
    """Until the transaction ends the token is not replaced."""
    return await transaction.row(HOLD_REGISTRATION, digest=digest)
