"""Whose an e-mail address is: statements that accounts and their further addresses have in common."""

import attrs

from api_server.state.database import Transaction
from api_server.state.statements import Query

HOLD_ADDRESS = """
    SELECT pg_advisory_xact_lock(hashtextextended('address of a user: ' || lower(%(email)s), 0))
"""


@attrs.frozen
class _Holder:
    """A user whose address it is."""

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
    """Ids of those whose address that is, confirmed or not; nobody else takes it until the transaction ends."""
    await transaction.run(HOLD_ADDRESS, email=email)
    return {holder.id for holder in await transaction.rows(USERS_OF_ADDRESS, email=email)}


REMOVE_AS_SECONDARY = """
    DELETE FROM user_emails WHERE user_id = %(user_id)s AND lower(email) = lower(%(email)s)
"""


async def remove_as_secondary(transaction: Transaction, user_id: int, email: str) -> None:
    """For an address that has become the one of the account."""
    await transaction.run(REMOVE_AS_SECONDARY, user_id=user_id, email=email)
