"""Statements about users' further addresses."""

from api_server.state.database import Executor, Row, Transaction
from api_server.state.listing import Listed, Listing, Page, one, read_sql

_EMAIL = read_sql("api_server.accounts.emails")["email"]
LISTING = Listing(
    _EMAIL, "SELECT user_emails.* FROM user_emails WHERE user_emails.user_id = %(user_id)s::bigint"
)


async def list_emails(database: Executor, page: Page, user_id: int) -> Listed:
    return await LISTING.read(database, page, user_id=user_id)


SHOW = one(
    _EMAIL,
    "SELECT user_emails.* FROM user_emails WHERE user_emails.id = %(id)s AND user_emails.user_id = %(user_id)s",
)


async def show_email(database: Executor, email_id: int, user_id: int) -> str | None:
    return await database.entity_if_there(SHOW, id=email_id, user_id=user_id)


ADD = """
    INSERT INTO user_emails (user_id, email, confirmed_at)
    VALUES (%(user_id)s, %(email)s, CASE WHEN %(confirmed)s THEN now() END)
    RETURNING id
"""


async def add(transaction: Transaction, user_id: int, email: str, *, confirmed: bool) -> int:
    """The new address's id."""
    return int(await transaction.value(ADD, user_id=user_id, email=email, confirmed=confirmed))


FIND = """
    SELECT user_emails.id, user_emails.user_id, user_emails.email, user_emails.confirmed_at,
        users.username, users.name
    FROM user_emails JOIN users ON users.id = user_emails.user_id WHERE user_emails.id = %(id)s
"""
LOCK = f"{FIND} FOR UPDATE OF user_emails"


async def find(database: Executor, email_id: int, *, locked: bool = False) -> Row | None:
    """id, user_id, email, confirmed_at, and its user's username and name."""
    return await database.row(LOCK if locked else FIND, id=email_id)


CONFIRM = """
    UPDATE user_emails SET confirmed_at = now() WHERE id = %(id)s
"""


async def confirm(transaction: Transaction, email_id: int) -> None:
    await transaction.row(CONFIRM, id=email_id)


REMOVE = """
    DELETE FROM user_emails WHERE id = %(id)s
"""


async def remove(transaction: Transaction, email_id: int) -> None:
    await transaction.row(REMOVE, id=email_id)
