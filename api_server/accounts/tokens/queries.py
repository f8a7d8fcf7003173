"""Statements about personal access tokens."""

import datetime

import attrs

from api_server.state.database import Executor, Shown, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql
from api_server.state.statements import Query

_ENTITIES = read_sql("api_server.accounts.tokens")

LISTING = Listing(
    _ENTITIES["token"],
    """
    SELECT tokens.* FROM personal_access_tokens tokens
    WHERE (%(user_id)s::bigint IS NULL OR tokens.user_id = %(user_id)s)
        AND (%(revoked)s::boolean IS NULL OR tokens.revoked = %(revoked)s)
        AND (%(active)s::boolean IS NULL
            OR %(active)s = NOT (tokens.revoked OR has_expired(tokens.expires_at, %(now)s)))
        AND (%(search)s::text IS NULL OR strpos(lower(tokens.name), lower(%(search)s)) > 0)
    """,
    {"name": "name", "created_at": "created_at", "expires_at": "expires_at", "last_used_at": "last_used_at"},
)


async def list_tokens(
    database: Executor,
    page: Page,
    *,
    user_id: int | None,
    revoked: bool | None,
    active: bool | None,
    search: str | None,
) -> Listed:
    """Without `user_id`, of all users."""
    return await LISTING.read(database, page, user_id=user_id, revoked=revoked, active=active, search=search)


SHOW_TOKEN = one(
    _ENTITIES["token"], "SELECT tokens.* FROM personal_access_tokens tokens WHERE tokens.id = %(id)s"
)


async def show_token(database: Executor, token_id: int) -> str:
    """Raises NotFound."""
    return await database.entity(SHOW_TOKEN, id=token_id)


@attrs.frozen
class Token:
    """A token, and its user's name."""

    id: int
    name: str
    description: str | None
    scopes: list[str]
    expired: bool
    user_id: int
    user_name: str


FIND_TOKEN = Query(
    """
    SELECT tokens.id, tokens.name, tokens.description, tokens.scopes,
        has_expired(tokens.expires_at, %(now)s) AS expired, tokens.user_id, users.name AS user_name
    FROM personal_access_tokens tokens JOIN users ON users.id = tokens.user_id WHERE tokens.id = %(id)s
    """,
    Token,
)


async def find_token(database: Executor, token_id: int) -> Token | None:
    return await database.row(FIND_TOKEN, id=token_id)


CREATE_TOKEN = one(
    _ENTITIES["new_token"],
    """
    INSERT INTO personal_access_tokens (user_id, name, description, digest, scopes, expires_at, created_at)
    VALUES (%(user_id)s, %(name)s, %(description)s, %(digest)s, %(scopes)s::text[], %(expires_at)s::date, %(now)s)
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
) -> Shown:
    """The new token, whose text is shown this once."""
    return await transaction.one(
        CREATE_TOKEN,
        user_id=user_id,
        name=name,
        description=description,
        scopes=scopes,
        expires_at=expires_at,
        token=token,
        digest=digest,
    )


REVOKE_TOKEN = """
    UPDATE personal_access_tokens SET revoked = true WHERE id = %(id)s AND NOT revoked
"""


async def revoke_token(transaction: Transaction, token_id: int) -> bool:
    """Whether it was not revoked before."""
    return await transaction.run(REVOKE_TOKEN, id=token_id) > 0
