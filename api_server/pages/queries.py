"""Statements about the accounts that sign in, and their sessions."""

import datetime

import attrs

from api_server.accounts.users.queries import User
from api_server.state.database import Executor, Transaction
from api_server.state.statements import Query, Statement


@attrs.frozen
class Account(User):
    """An account with what decides whether somebody may sign in with it."""

    state: str
    password_hash: str | None = attrs.field(repr=False)


FIND_SESSION = Statement(
    """
    SELECT users.id, users.username, users.name, users.email, users.admin, users.bot
    FROM sessions JOIN users ON users.id = sessions.user_id
    WHERE sessions.digest = %(digest)s AND sessions.expires_at > %(now)s AND users.state = 'active'
    """,
    User,
)


async def user_of_session(database: Executor, digest: bytes) -> User | None:
    return await database.row(FIND_SESSION, digest=digest)


CREATE_SESSION = """
    WITH signed_in AS (
        UPDATE users SET last_sign_in_at = coalesce(current_sign_in_at, %(now)s), current_sign_in_at = %(now)s,
            sign_in_count = sign_in_count + 1
        WHERE id = %(user_id)s
    )
    INSERT INTO sessions (digest, user_id, expires_at, created_at)
    VALUES (%(digest)s, %(user_id)s, %(expires_at)s, %(now)s)
"""


async def create_session(
    transaction: Transaction, digest: bytes, user_id: int, expires_at: datetime.datetime
) -> None:
    await transaction.run(CREATE_SESSION, digest=digest, user_id=user_id, expires_at=expires_at)


DELETE_SESSION = """
    DELETE FROM sessions WHERE digest = %(digest)s
"""


async def delete_session(transaction: Transaction, digest: bytes) -> None:
    await transaction.run(DELETE_SESSION, digest=digest)


DELETE_EXPIRED = """
    DELETE FROM sessions WHERE expires_at <= %(now)s
"""


async def delete_expired_sessions(transaction: Transaction) -> None:
    await transaction.run(DELETE_EXPIRED)


FIND_ACCOUNT = Query(
    """
    SELECT users.id, users.username, users.name, users.email, users.admin, users.bot, users.state, users.password_hash
    FROM users
    WHERE (lower(users.username) = lower(%(login)s) OR lower(users.email) = lower(%(login)s)) AND NOT users.bot
    """,
    Account,
)


async def find_account(database: Executor, login: str) -> Account | None:
    """The account with that username or address; bots have tokens only."""
    return await database.row(FIND_ACCOUNT, login=login)
