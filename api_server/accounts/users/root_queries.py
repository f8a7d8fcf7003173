"""Statements of a starting process about its administrator."""

from api_server.state.database import Transaction

LOCK = """
    SELECT pg_advisory_xact_lock(4242)
"""


async def hold_start(transaction: Transaction) -> None:
    """One starting process at a time."""
    await transaction.run(LOCK)


REPLACE_PRESET_TOKEN = """
    WITH ended AS (
        UPDATE personal_access_tokens SET revoked = true
        WHERE user_id = %(user_id)s AND name = 'preset' AND digest <> %(digest)s
    )
    INSERT INTO personal_access_tokens (user_id, name, description, digest, scopes, created_at)
    VALUES (%(user_id)s, 'preset', 'Set by the operator', %(digest)s, %(scopes)s, %(now)s)
    ON CONFLICT (digest) DO UPDATE SET revoked = false WHERE personal_access_tokens.revoked
    RETURNING id
"""


async def replace_preset_token(
    transaction: Transaction, user_id: int, digest: bytes, scopes: list[str]
) -> int | None:
    """The token's id; None where it is valid already."""
    token_id: int | None = await transaction.value(
        REPLACE_PRESET_TOKEN, user_id=user_id, digest=digest, scopes=scopes
    )
    return token_id
