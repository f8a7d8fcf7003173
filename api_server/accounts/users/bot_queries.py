"""Statements about users that access tokens of projects and groups sign in as."""

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query

IS_BOT = """
    SELECT users.bot FROM users WHERE users.id = %(id)s
"""


async def is_bot(database: Executor, user_id: int) -> bool:
    return bool(await database.value(IS_BOT, id=user_id))


@attrs.frozen
class Bot:
    id: int
    username: str


RETIRE = Query(
    """
    WITH retired AS (
        UPDATE users SET state = 'deactivated', bot_project_id = NULL, bot_namespace_id = NULL, updated_at = %(now)s
        WHERE users.bot AND users.state <> 'deactivated' AND (users.id = %(user_id)s::bigint
            OR users.bot_project_id = %(project_id)s::bigint
            OR users.bot_namespace_id = ANY (ARRAY(
                SELECT namespaces.id FROM namespaces WHERE namespaces.lineage @> ARRAY[%(namespace_id)s::bigint])))
        RETURNING users.id, users.username
    ), ended AS (
        UPDATE personal_access_tokens SET revoked = true
        WHERE user_id IN (SELECT retired.id FROM retired) AND NOT revoked
    ), left_behind AS (
        DELETE FROM members WHERE members.user_id IN (SELECT retired.id FROM retired)
    )
    SELECT retired.id, retired.username FROM retired ORDER BY retired.id
    """,
    Bot,
)


async def retire(
    transaction: Transaction, user_id: int | None, project_id: int | None, namespace_id: int | None
) -> list[Bot]:
    """Ends their tokens and memberships (what they have made may be elsewhere by now), and gives the bots."""
    return await transaction.rows(RETIRE, user_id=user_id, project_id=project_id, namespace_id=namespace_id)


WITHOUT_TOKENS = Query(
    """
    SELECT users.id, users.username FROM users
    WHERE users.bot AND users.state <> 'deactivated' AND NOT EXISTS (
        SELECT FROM personal_access_tokens tokens
        WHERE tokens.user_id = users.id AND NOT tokens.revoked
            AND NOT has_expired(tokens.expires_at + %(days)s::int, %(now)s))
    ORDER BY users.id LIMIT 1000
    """,
    Bot,
)


async def without_tokens(database: Executor, days: int) -> list[Bot]:
    """Bots whose tokens have all been revoked, or have expired that many days ago; a thousand at most."""
    return await database.rows(WITHOUT_TOKENS, days=days)
