# mypy: disable-error-code="empty-body"
"""Statements about personal access tokens."""

import datetime
from typing import Any

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql

ENTITIES = read_sql("api_server.accounts")


def _within(name: str, kind: str) -> str:
    return f"""
    AND (%({name}_after)s::{kind} IS NULL OR tokens.{name}_at >= %({name}_after)s)
    AND (%({name}_before)s::{kind} IS NULL OR tokens.{name}_at <= %({name}_before)s)
"""


FILTERS = f"""
    (%(revoked)s::boolean IS NULL OR tokens.revoked = %(revoked)s)
    AND (%(active)s::boolean IS NULL
        OR %(active)s = NOT (tokens.revoked OR has_expired(tokens.expires_at, %(now)s)))
    AND (%(search)s::text IS NULL OR strpos(lower(tokens.name), lower(%(search)s)) > 0)
    {_within("created", "timestamptz")} {_within("last_used", "timestamptz")} {_within("expires", "date")}
"""
#: The values of `FILTERS` that let every token through.
NO_FILTERS = dict.fromkeys(
    (
        "revoked", "active", "search", "created_after", "created_before", "last_used_after", "last_used_before",
        "expires_after", "expires_before",
    )
)  # fmt: skip
ORDERS = {
    "name": "name",
    "created_at": "created_at",
    "expires_at": "expires_at",
    "last_used_at": "last_used_at",
}
LISTING = ListQuery(
    ENTITIES["token"],
    f"""
    SELECT tokens.* FROM personal_access_tokens tokens
    WHERE (%(user_id)s::bigint IS NULL OR tokens.user_id = %(user_id)s) AND {FILTERS}
    """,
    ORDERS,
)


async def list_tokens(database: Executor, page: Page, *, user_id: int | None, **filters: Any) -> ListPage:
    """Return a page of the user's tokens; without `user_id`, those of all users. `filters` are some of `NO_FILTERS`."""
    return await LISTING.read(database, page, user_id=user_id, **(NO_FILTERS | filters))


TOKEN = "SELECT tokens.* FROM personal_access_tokens tokens WHERE tokens.id = %(id)s"
SHOW_TOKEN = entity_statement(ENTITIES["token"], TOKEN)


async def show_token(database: Executor, token_id: int) -> str:
    """Return the token's entity. Raise NotFound."""
    return await database.entity(SHOW_TOKEN, id=token_id)


@attrs.frozen
class Token:
    """A token and its user's names."""

    id: int
    name: str
    description: str | None
    scopes: list[str]
    expired: bool
    user_id: int
    username: str
    user_name: str
    bot: bool


@statement("""
    SELECT tokens.id, tokens.name, tokens.description, tokens.scopes,
        has_expired(tokens.expires_at, %(now)s) AS expired, tokens.user_id, users.username,
        users.name AS user_name, users.bot
    FROM personal_access_tokens tokens JOIN users ON users.id = tokens.user_id WHERE tokens.id = %(token_id)s
    """)
async def find_token(database: Executor, token_id: int) -> Token | None: ...


@statement("""
    INSERT INTO personal_access_tokens (user_id, name, description, digest, scopes, expires_at, created_at)
    VALUES (%(user_id)s, %(name)s, %(description)s, %(digest)s, %(scopes)s::text[], %(expires_at)s::date, %(now)s)
    RETURNING id
""")
async def create_token(
    transaction: Transaction,
    *,
    user_id: int,
    name: str,
    description: str | None,
    scopes: list[str],
    expires_at: datetime.date | None,
    digest: bytes,
) -> int:
    """Create a token and return its id."""


SHOW_NEW_TOKEN = entity_statement(ENTITIES["new_token"], TOKEN)


async def show_new_token(transaction: Transaction, token_id: int, token: str) -> str:
    """Return the token's entity with its text, which is shown only once."""
    return await transaction.entity(SHOW_NEW_TOKEN, id=token_id, token=token)


@statement("""
    UPDATE personal_access_tokens SET revoked = true WHERE id = %(token_id)s AND NOT revoked
""")
async def revoke_token(transaction: Transaction, token_id: int) -> bool:
    """Revoke the token; return whether it was not revoked before."""


@statement("""
    SELECT EXISTS (
        SELECT FROM personal_access_tokens tokens
        WHERE tokens.user_id = %(user_id)s AND NOT tokens.revoked AND NOT has_expired(tokens.expires_at, %(now)s)
    )
""")
async def has_token(transaction: Transaction, user_id: int) -> bool:
    """Return whether the user has a token that is neither revoked nor expired."""
