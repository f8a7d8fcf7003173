"""Statements about personal access tokens. `today` is the day by which tokens have expired."""

import datetime

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_ENTITIES = read_sql("api_server.accounts.tokens")

LISTING = Listing(
    _ENTITIES["token"],
    """
    SELECT tokens.* FROM personal_access_tokens tokens
    WHERE (%(user_id)s::bigint IS NULL OR tokens.user_id = %(user_id)s)
        AND (%(revoked)s::boolean IS NULL OR tokens.revoked = %(revoked)s)
        AND (%(active)s::boolean IS NULL OR %(active)s =
            (NOT tokens.revoked AND (tokens.expires_at IS NULL OR tokens.expires_at > %(today)s::date)))
        AND (%(search)s::text IS NULL OR strpos(lower(tokens.name), lower(%(search)s)) > 0)
    """,
    {"name": "name", "created_at": "created_at", "expires_at": "expires_at", "last_used_at": "last_used_at"},
)


async def list_tokens(
    database: Executor,
    page: Page,
    *,
    today: datetime.date,
    user_id: int | None,
    revoked: bool | None,
    active: bool | None,
    search: str | None,
) -> Listed:
    """Without `user_id`, of all users."""
    return await LISTING.read(
        database, page, today=today, user_id=user_id, revoked=revoked, active=active, search=search
    )


SHOW_TOKEN = one(
    _ENTITIES["token"], "SELECT tokens.* FROM personal_access_tokens tokens WHERE tokens.id = %(id)s"
)


async def show_token(database: Executor, token_id: int, today: datetime.date) -> str | None:
    return await database.entity_if_there(SHOW_TOKEN, id=token_id, today=today)


FIND_TOKEN = """
    SELECT tokens.id, tokens.user_id, tokens.name, tokens.description, tokens.scopes, tokens.revoked,
        tokens.expires_at, users.username, users.name AS user_name
    FROM personal_access_tokens tokens JOIN users ON users.id = tokens.user_id WHERE tokens.id = %(id)s
"""


async def find_token(database: Executor, token_id: int) -> Row | None:
    """id, user_id, name, description, scopes, revoked, expires_at, and the owner's username and user_name."""
    return await database.row(FIND_TOKEN, id=token_id)


CREATE_TOKEN = one(
    _ENTITIES["new_token"],
    """
    INSERT INTO personal_access_tokens (user_id, name, description, digest, scopes, expires_at)
    VALUES (%(user_id)s, %(name)s, %(description)s, %(digest)s, %(scopes)s::text[], %(expires_at)s::date)
    RETURNING *
    """,
)


async def create_token(
    transaction: Transaction,
    *,
    user_id: int,
    name: str,
    description: str | None,
    scopes: list[str],
    expires_at: datetime.date | None,
    token: str,
    digest: bytes,
    today: datetime.date,
) -> Row:
    """The new id and the entity, which shows the token's text this once."""
    return await transaction.row(
        CREATE_TOKEN,
        user_id=user_id,
        name=name,
        description=description,
        scopes=scopes,
        expires_at=expires_at,
        token=token,
        digest=digest,
        today=today,
    )


REVOKE_TOKEN = """
    UPDATE personal_access_tokens SET revoked = true WHERE id = %(id)s AND NOT revoked RETURNING id
"""


async def revoke_token(transaction: Transaction, token_id: int) -> bool:
    """Whether it was not revoked before."""
    return await transaction.row(REVOKE_TOKEN, id=token_id) is not None
