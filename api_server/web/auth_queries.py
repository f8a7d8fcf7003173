# mypy: disable-error-code="empty-body"
"""Statements about the tokens that requests bring, and about the users who own them."""

import datetime

import attrs

from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.web.rate_limits import MAX_REQUESTS, PERIOD_SECONDS


@attrs.frozen
class TokenRow:
    """A personal access token with its user."""

    id: int
    user_id: int
    scopes: list[str]
    revoked: bool
    expires_at: datetime.date | None
    last_used_at: datetime.datetime | None
    last_activity_on: datetime.date | None
    username: str
    name: str
    email: str
    admin: bool
    state: str
    #: The limit of the user's requests to the API as [number, seconds]; None if there is none.
    throttle: list[int] | None


_TOKENS = f"""
    SELECT tokens.id, tokens.user_id, tokens.scopes, tokens.revoked, tokens.expires_at, tokens.last_used_at,
        users.last_activity_on, users.username, users.name, users.email, users.admin, users.state,
        CASE WHEN settings.values @> '{{"throttle_authenticated_api_enabled": true}}' THEN ARRAY[
            coalesce((settings.values ->> 'throttle_authenticated_api_requests_per_period')::integer, {MAX_REQUESTS}),
            coalesce((settings.values ->> 'throttle_authenticated_api_period_in_seconds')::integer, {PERIOD_SECONDS})
        ] END AS throttle
    FROM personal_access_tokens tokens JOIN users ON users.id = tokens.user_id CROSS JOIN application_settings settings
"""


@statement(f"{_TOKENS} WHERE tokens.digest = %(digest)s", prepared=True)
async def find_personal_access_token(database: Executor, digest: bytes) -> TokenRow | None: ...


@statement(f"{_TOKENS} WHERE tokens.id = %(token_id)s", prepared=True)
async def find_token_by_id(database: Executor, token_id: int) -> TokenRow | None: ...


@attrs.frozen
class RunningJob:
    """A job whose token is valid, with the user for whom it runs."""

    id: int
    #: Whether its runner has not yet sent a request about the job.
    unacknowledged: bool
    project_id: int
    user_id: int
    username: str
    name: str
    email: str
    state: str


_RUNNING_JOBS = """
    SELECT jobs.id, jobs.unacknowledged_since IS NOT NULL AS unacknowledged, jobs.project_id, users.id AS user_id,
        users.username, users.name, users.email, users.state
    FROM jobs JOIN users ON users.id = jobs.user_id
    WHERE jobs.status IN ('running', 'canceling') AND jobs.erased_at IS NULL
"""


@statement(f"{_RUNNING_JOBS} AND jobs.token_digest = %(digest)s", prepared=True)
async def find_running_job(database: Executor, digest: bytes) -> RunningJob | None: ...


@statement(f"{_RUNNING_JOBS} AND jobs.id = %(job_id)s")
async def find_job_if_running(database: Executor, job_id: int) -> RunningJob | None: ...


@statement("""
    UPDATE jobs SET unacknowledged_since = NULL, contacted_at = %(now)s WHERE token_digest = %(digest)s
""")
async def acknowledge_job(transaction: Transaction, digest: bytes) -> bool:
    """Record that the runner of the job with this token has responded, so that it keeps the job. Return False
    if the job has been taken back."""


@statement("""
    UPDATE personal_access_tokens SET last_used_at = %(now)s WHERE id = %(token_id)s
""")
async def note_use(transaction: Transaction, token_id: int) -> None: ...


#: Skip the row if another transaction has locked it: the next request records the day as well.
@statement("""
    UPDATE users SET last_activity_on = %(day)s WHERE id = (
        SELECT seen.id FROM users seen WHERE seen.id = %(user_id)s AND seen.last_activity_on IS DISTINCT FROM %(day)s
        FOR NO KEY UPDATE SKIP LOCKED)
""")
async def note_activity(transaction: Transaction, user_id: int, day: datetime.date) -> None: ...


@attrs.frozen
class ActingUser:
    """A user for whom an administrator's request acts."""

    id: int
    username: str
    name: str
    email: str
    admin: bool


@statement("""
    SELECT users.id, users.username, users.name, users.email, users.admin FROM users
    WHERE users.state <> 'deactivated' AND users.id = coalesce(
        %(user_id)s::bigint, (SELECT named.id FROM users named WHERE lower(named.username) = lower(%(username)s)))
    """)
async def find_acting_user(database: Executor, *, user_id: int | None, username: str) -> ActingUser | None:
    """Find a user by id or, without one, by user name; include blocked users."""
