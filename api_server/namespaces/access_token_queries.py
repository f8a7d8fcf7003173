# mypy: disable-error-code="empty-body"
"""Statements about access tokens of projects and groups, which belong to bots."""

from typing import Any

import attrs

from api_server.accounts.token_queries import ENTITIES as TOKENS
from api_server.accounts.token_queries import FILTERS, NO_FILTERS, ORDERS, TOKEN
from api_server.accounts.token_queries import Token as BotToken
from api_server.namespaces.members import MemberSource
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, Quota, entity_statement, read_sql
from api_server.state.statements import Query

_ENTITIES = read_sql("api_server.namespaces", "access_token_entities.sql", extra=TOKENS)
_HERE = """
    users.bot_project_id = %(project_id)s::bigint OR users.bot_namespace_id = %(namespace_id)s::bigint
"""
LISTING = ListQuery(
    _ENTITIES["token"],
    f"""
    SELECT tokens.* FROM personal_access_tokens tokens
    WHERE tokens.user_id IN (SELECT users.id FROM users WHERE {_HERE}) AND {FILTERS}
    """,
    ORDERS,
)


async def list_tokens(database: Executor, page: Page, source: MemberSource, **filters: Any) -> ListPage:
    """Return a page of the tokens of a project or group. `filters` as in `token_queries.list_tokens`."""
    return await LISTING.read(database, page, **source, **(NO_FILTERS | filters))


SHOW_TOKEN = entity_statement(_ENTITIES["token"], TOKEN)
SHOW_NEW_TOKEN = entity_statement(_ENTITIES["new_token"], TOKEN)


async def show_token(database: Executor, token_id: int) -> str:
    """Return the token's entity. Raise NotFound."""
    return await database.entity(SHOW_TOKEN, id=token_id)


async def show_new_token(transaction: Transaction, token_id: int, token: str) -> str:
    """Return the token's entity with its text, which is shown only once."""
    return await transaction.entity(SHOW_NEW_TOKEN, id=token_id, token=token)


@attrs.frozen
class Token(BotToken):
    """A bot's token, with the bot's role in its own project or group."""

    access_level: int


FIND_TOKEN = Query(
    f"""
    SELECT tokens.id, tokens.name, tokens.description, tokens.scopes,
        has_expired(tokens.expires_at, %(now)s) AS expired, tokens.user_id, users.username,
        users.name AS user_name, users.bot,
        members.access_level
    FROM personal_access_tokens tokens
    JOIN users ON users.id = tokens.user_id
    JOIN members ON members.user_id = users.id
        AND (members.project_id = users.bot_project_id OR members.namespace_id = users.bot_namespace_id)
    WHERE tokens.id = %(id)s AND ({_HERE})
    """,
    Token,
)


async def find_token(database: Executor, token_id: int, source: MemberSource) -> Token | None:
    """Return the token with that id if it belongs to a bot of that project or group, otherwise None."""
    return await database.row(FIND_TOKEN, id=token_id, **source)


@statement("""
    SELECT users.external FROM users WHERE users.id = %(user_id)s
""")
async def is_external(database: Executor, user_id: int) -> bool: ...


OF_PROJECT = Quota("users", "bot_project_id")
OF_GROUP = Quota("users", "bot_namespace_id")


async def are_more_than(transaction: Transaction, source: MemberSource, limit: int) -> bool:
    """Return whether the project or group has more than `limit` bots (0: no limit)."""
    if source["project_id"] is not None:
        return await OF_PROJECT.is_exceeded(transaction, source["project_id"], limit)
    return await OF_GROUP.is_exceeded(transaction, source["namespace_id"] or 0, limit)
