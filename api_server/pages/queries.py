# mypy: disable-error-code="empty-body"
"""Statements about accounts and their sessions, sent forms, names in texts, and messages to status checks."""

import datetime
from collections.abc import Sequence

import attrs

from api_server.accounts.user_queries import User
from api_server.state.database import Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.statements import Query


@attrs.frozen
class Account(User):
    """An account with its state and password, which decide whether its user may sign in."""

    state: str
    password_hash: str | None = attrs.field(repr=False)


@attrs.frozen
class SignedIn(User):
    """A user who has signed in."""

    #: Not compared: a change of it is no reason to judge a request again.
    last_activity_on: datetime.date | None = attrs.field(eq=False)


@statement(
    """
    SELECT users.id, users.username, users.name, users.email, users.admin, users.bot, users.last_activity_on
    FROM sessions JOIN users ON users.id = sessions.user_id
    WHERE sessions.digest = %(digest)s AND sessions.expires_at > %(now)s AND users.state = 'active'
    """,
    prepared=True,
)
async def user_of_session(database: Executor, digest: bytes) -> SignedIn | None: ...


@statement("""
    WITH signed_in AS (
        UPDATE users SET last_sign_in_at = coalesce(current_sign_in_at, %(now)s), current_sign_in_at = %(now)s,
            last_sign_in_ip = coalesce(current_sign_in_ip, %(ip_address)s), current_sign_in_ip = %(ip_address)s,
            sign_in_count = sign_in_count + 1
        WHERE id = %(user_id)s
    )
    INSERT INTO sessions (digest, user_id, expires_at, ip_address, user_agent, created_at)
    VALUES (%(digest)s, %(user_id)s, %(expires_at)s, %(ip_address)s, %(user_agent)s, %(now)s)
""")
async def create_session(
    transaction: Transaction,
    digest: bytes,
    user_id: int,
    expires_at: datetime.datetime,
    *,
    ip_address: str | None = None,
    user_agent: str = "",
) -> None: ...


@attrs.frozen
class Session:
    """A session of a user. `present` says whether the request belongs to it."""

    id: int
    ip_address: str | None
    user_agent: str | None
    created_at: datetime.datetime
    expires_at: datetime.datetime
    present: bool


LIST_SESSIONS = Query(
    """
    SELECT sessions.id, sessions.ip_address, sessions.user_agent, sessions.created_at, sessions.expires_at,
        sessions.digest = %(digest)s AS present
    FROM sessions WHERE sessions.user_id = %(user_id)s AND sessions.expires_at > %(now)s
    ORDER BY present DESC, sessions.created_at DESC, sessions.id DESC LIMIT %(limit)s
    """,
    Session,
)


async def list_sessions(database: Executor, user_id: int, digest: bytes, limit: int) -> Sequence[Session]:
    """Return the user's sessions, the present one first and then the newest."""
    return await database.rows(LIST_SESSIONS, user_id=user_id, digest=digest, limit=limit)


@statement("""
    DELETE FROM sessions WHERE user_id = %(user_id)s AND id = %(session_id)s
""")
async def end_session(transaction: Transaction, user_id: int, session_id: int) -> None: ...


@statement("""
    DELETE FROM sessions WHERE user_id = %(user_id)s AND digest <> %(digest)s
""")
async def end_other_sessions(transaction: Transaction, user_id: int, digest: bytes) -> None: ...


@statement("""
    DELETE FROM sessions WHERE digest = %(digest)s
""")
async def delete_session(transaction: Transaction, digest: bytes) -> None: ...


@statement("""
    DELETE FROM sessions WHERE expires_at <= %(now)s
""")
async def delete_expired_sessions(transaction: Transaction) -> None: ...


@statement("""
    INSERT INTO submitted_forms (digest, created_at) VALUES (%(digest)s, %(now)s) ON CONFLICT DO NOTHING
""")
async def claim_form(transaction: Transaction, digest: bytes) -> bool:
    """Record the form. Return False if the same form was recorded before."""


@attrs.frozen
class SubmittedForm:
    """A sent form. `location` is where its answer redirects to, or None while it is being answered."""

    location: str | None


@statement("""
    SELECT location FROM submitted_forms WHERE digest = %(digest)s
""")
async def submitted_form(database: Executor, digest: bytes) -> SubmittedForm | None: ...


@statement("""
    UPDATE submitted_forms SET location = %(location)s WHERE digest = %(digest)s
""")
async def settle_form(transaction: Transaction, digest: bytes, location: str) -> None: ...


@statement("""
    DELETE FROM submitted_forms WHERE digest = %(digest)s
""")
async def release_form(transaction: Transaction, digest: bytes) -> None: ...


@statement("""
    DELETE FROM submitted_forms WHERE created_at <= %(now)s - interval '1 hour'
""")
async def delete_old_forms(transaction: Transaction) -> None: ...


@statement("""
    SELECT users.id, users.username, users.name, users.email, users.admin, users.bot, users.state, users.password_hash
    FROM users
    WHERE (lower(users.username) = lower(%(login)s) OR lower(users.email) = lower(%(login)s)) AND NOT users.bot
    """)
async def find_account(database: Executor, login: str) -> Account | None:
    """Return the account with that user name or email address, or None. Bots never sign in: they have only tokens."""


@attrs.frozen
class CountedAccount(Account):
    sign_in_count: int


@statement("""
    SELECT users.id, users.username, users.name, users.email, users.admin, users.bot, users.state, users.password_hash,
        users.sign_in_count
    FROM users WHERE users.id = %(user_id)s AND NOT users.bot
    """)
async def find_counted_account(database: Executor, user_id: int) -> CountedAccount | None: ...


@attrs.frozen
class Username:
    id: int
    username: str


@statement("SELECT users.id, users.username FROM users WHERE users.id = ANY (%(ids)s::bigint[])")
async def usernames(database: Executor, ids: Sequence[int]) -> list[Username]:
    """Return the ids and user names of the users with these ids, as far as they exist."""


@statement("SELECT id FROM notes WHERE id = ANY (%(ids)s) AND edited_at IS NOT NULL")
async def edited_notes(database: Executor, ids: list[int]) -> list[int]:
    """Return the ids of those notes whose text has been changed."""


@attrs.frozen(kw_only=True)
class Delivery:
    """A message to a status check with its last attempt, which has the `response_status` of the answer, or an `error`
    if there was no answer."""

    id: int
    check_id: int
    check_name: str
    action: str | None
    status: str
    attempts: int
    response_status: int | None
    response_body: str | None
    error: str | None
    attempted_at: datetime.datetime | None
    created_at: datetime.datetime
    next_attempt_at: datetime.datetime | None
    #: Whether messages to the check are sent only on demand.
    paused: bool


@statement("""
    SELECT deliveries.id, deliveries.check_id, checks.name AS check_name, deliveries.action, deliveries.status,
        deliveries.attempts, latest.response_status, left(latest.response_body, 500) AS response_body, latest.error,
        latest.created_at AS attempted_at, deliveries.created_at, deliveries.next_attempt_at,
        checks.paused_at IS NOT NULL AS paused
    FROM (
        SELECT recent.* FROM status_check_deliveries recent WHERE recent.merge_request_id = %(merge_request_id)s
        ORDER BY recent.id DESC LIMIT %(limit)s
    ) deliveries
    JOIN external_status_checks checks ON checks.id = deliveries.check_id
    LEFT JOIN status_check_delivery_attempts latest
        ON latest.delivery_id = deliveries.id AND latest.number = deliveries.attempts
    ORDER BY deliveries.id DESC
    """)
async def deliveries_of_merge_request(
    database: Executor, merge_request_id: int, limit: int
) -> list[Delivery]:
    """Return at most `limit` deliveries about the merge request, the newest first."""


@attrs.frozen
class NamedMergeRequest:
    """A merge request that a text names by its number."""

    iid: int
    title: str


@statement("""
    SELECT merge_requests.iid, merge_requests.title FROM merge_requests
    WHERE merge_requests.project_id = %(project_id)s AND merge_requests.iid = ANY (%(iids)s::bigint[])
""")
async def merge_requests_numbered(
    database: Executor, project_id: int, iids: Sequence[int]
) -> list[NamedMergeRequest]: ...


@attrs.frozen
class NamedUser:
    """A user whom a text names."""

    username: str
    name: str


@statement("""
    SELECT users.username, users.name FROM users
    WHERE users.username = ANY (%(usernames)s::text[]) AND users.state = 'active'
""")
async def users_named(database: Executor, usernames: Sequence[str]) -> list[NamedUser]: ...
