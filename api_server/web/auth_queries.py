"""Statements about tokens that requests bring."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.statements import Statement


@attrs.frozen
class TokenRow:
    """A personal access token with its user."""

    id: int
    user_id: int
    scopes: list[str]
    revoked: bool
    expires_at: datetime.date | None
    last_used_at: datetime.datetime | None
    username: str
    name: str
    email: str
    admin: bool
    state: str


FIND_PERSONAL_ACCESS_TOKEN = Statement(
    """
    SELECT tokens.id, tokens.user_id, tokens.scopes, tokens.revoked, tokens.expires_at, tokens.last_used_at,
        users.username, users.name, users.email, users.admin, users.state
    FROM personal_access_tokens tokens JOIN users ON users.id = tokens.user_id
    WHERE tokens.digest = %(digest)s
    """,
    TokenRow,
)


async def find_personal_access_token(database: Executor, digest: bytes) -> TokenRow | None:
    return await database.row(FIND_PERSONAL_ACCESS_TOKEN, digest=digest)


@attrs.frozen
class RunningJob:
    """A job whose token is valid, with the user whom it runs for."""

    id: int
    user_id: int
    username: str
    name: str
    email: str
    state: str


FIND_RUNNING_JOB = Statement(
    """
    SELECT jobs.id, users.id AS user_id, users.username, users.name, users.email, users.state
    FROM jobs JOIN users ON users.id = jobs.user_id
    WHERE jobs.token_digest = %(digest)s AND jobs.status IN ('running', 'canceling') AND jobs.erased_at IS NULL
    """,
    RunningJob,
)


async def find_running_job(database: Executor, digest: bytes) -> RunningJob | None:
    return await database.row(FIND_RUNNING_JOB, digest=digest)


NOTE_USE = """
    UPDATE personal_access_tokens SET last_used_at = %(now)s WHERE id = %(id)s
"""


async def note_use(transaction: Transaction, token_id: int) -> None:
    await transaction.run(NOTE_USE, id=token_id)
