# mypy: disable-error-code="empty-body"
"""Statements that count mails by the hour, for all processes together."""

import datetime

import attrs

from api_server.state.database import Transaction
from api_server.state.declarations import statement


@attrs.frozen
class Hour:
    """The current hour of an address or user, and the number of mails in it so far."""

    began_at: datetime.datetime
    emails: int


@statement("""
    INSERT INTO letter_counts (counted, began_at, letters) VALUES (%(counted)s, %(now)s, %(emails)s)
    ON CONFLICT (counted) DO UPDATE SET
        began_at = CASE WHEN letter_counts.began_at > %(now)s::timestamptz - %(window)s::interval
            THEN letter_counts.began_at ELSE excluded.began_at END,
        letters = CASE WHEN letter_counts.began_at > %(now)s::timestamptz - %(window)s::interval
            THEN letter_counts.letters + excluded.letters ELSE excluded.letters END
    RETURNING began_at, letters AS emails
    """)
async def count_emails(
    transaction: Transaction, counted: str, emails: int, window: datetime.timedelta
) -> Hour:
    """Count letters and return the hour. Other transactions that count for the same key wait for the end of
    this one."""


@statement("""
    DELETE FROM letter_counts WHERE began_at <= %(now)s::timestamptz - %(window)s::interval
""")
async def forget_emails(transaction: Transaction, window: datetime.timedelta) -> None:
    """Delete the hours that are over."""
