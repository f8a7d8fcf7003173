# mypy: disable-error-code="empty-body"
"""Statements about e-mail addresses: the users of an address, and the additional addresses of users."""

import datetime

import attrs

from api_server.state.audit_trail import Entity, Target
from api_server.state.database import EntityRow, Executor, Transaction
from api_server.state.declarations import statement
from api_server.state.listing import ListPage, ListQuery, Page, entity_statement, read_sql
from api_server.state.statements import Query

HOLD_ADDRESS = """
    SELECT pg_advisory_xact_lock(hashtextextended('address of a user: ' || lower(%(email)s), 0))
"""


@attrs.frozen
class _Holder:
    """A user who has the address."""

    id: int


USERS_OF_ADDRESS = Query(
    """
    SELECT users.id FROM users WHERE lower(users.email) = lower(%(email)s)
    UNION
    SELECT user_emails.user_id FROM user_emails WHERE lower(user_emails.email) = lower(%(email)s)
    """,
    _Holder,
)


async def users_of(transaction: Transaction, email: str) -> set[int]:
    """Return the ids of the users with that address, confirmed or not, and prevent others from taking it
    until the transaction ends."""
    await transaction.run(HOLD_ADDRESS, email=email)
    return {holder.id for holder in await transaction.rows(USERS_OF_ADDRESS, email=email)}


@statement("""
    DELETE FROM user_emails WHERE user_id = %(user_id)s AND lower(email) = lower(%(email)s)
""")
async def remove_as_secondary(transaction: Transaction, user_id: int, email: str) -> None:
    """Remove an additional address that has become the main address of the account."""


_EMAIL = read_sql("api_server.accounts")["email"]
LISTING = ListQuery(
    _EMAIL, "SELECT user_emails.* FROM user_emails WHERE user_emails.user_id = %(user_id)s::bigint"
)


async def list_emails(database: Executor, page: Page, user_id: int) -> ListPage:
    return await LISTING.read(database, page, user_id=user_id)


@statement(
    entity_statement(
        _EMAIL,
        "SELECT user_emails.* FROM user_emails WHERE id = %(email_id)s AND user_id = %(user_id)s",
    )
)
async def show_email(database: Executor, email_id: int, user_id: int) -> str | None: ...


@statement(
    entity_statement(
        _EMAIL,
        """
    INSERT INTO user_emails (user_id, email, created_at, confirmed_at)
    VALUES (%(user_id)s, %(email)s, %(now)s, CASE WHEN %(confirmed)s THEN %(now)s::timestamptz END)
    RETURNING *
    """,
    )
)
async def add(transaction: Transaction, user_id: int, email: str, *, confirmed: bool) -> EntityRow:
    """Add an address and return it."""


@attrs.frozen
class Email:
    """An additional address and its user."""

    id: int
    email: str
    confirmed_at: datetime.datetime | None
    user_id: int
    username: str
    name: str

    @property
    def audit_target(self) -> Target:
        return Entity("User", self.user_id, self.username).target(self.id, self.email)


FIND = Query(
    """
    SELECT user_emails.id, user_emails.email, user_emails.confirmed_at, user_emails.user_id, users.username, users.name
    FROM user_emails JOIN users ON users.id = user_emails.user_id WHERE user_emails.id = %(email_id)s
    """,
    Email,
)


@statement(FIND)
async def find(database: Executor, email_id: int) -> Email | None: ...


@statement(f"{FIND} FOR UPDATE OF user_emails")
async def lock(transaction: Transaction, email_id: int) -> Email | None:
    """Find an address like `find`, and prevent changes of it until the transaction ends."""


@statement("""
    UPDATE user_emails SET confirmed_at = %(now)s WHERE id = %(email_id)s
""")
async def confirm(transaction: Transaction, email_id: int) -> None: ...


@statement("""
    DELETE FROM user_emails WHERE id = %(email_id)s
""")
async def remove(transaction: Transaction, email_id: int) -> None: ...
