"""How many letters people may have sent to others who have not asked for any: invitations, addresses to confirm.

Counted in the database, for all processes together, in the transaction that queues the letters; what is rolled back
was not counted. Whoever counts both counts addresses first, in alphabetical order, and then the user, so that nobody
waits in a circle.
"""

import datetime

from aiohttp import web

from api_server.outbound.mail import rate_queries
from api_server.settings import Settings
from api_server.state.database import Transaction
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE

WINDOW = datetime.timedelta(hours=1)


async def to_address(transaction: Transaction, settings: Settings, address: str) -> int:
    """Counts a letter to `address`: 0 where it may be sent, else the seconds until the next may."""
    return await _wait(transaction, f"address {address.lower()}", 1, settings.letters_per_address)


async def asked_by_anybody(transaction: Transaction, settings: Settings, address: str) -> int:
    """Counts a letter to `address` that a stranger has asked for; apart, so that she cannot keep others from it."""
    return await _wait(transaction, f"asked {address.lower()}", 1, settings.letters_per_address)


async def by_user(transaction: Transaction, settings: Settings, user_id: int, letters: int = 1) -> int:
    """Counts letters that a user has sent; likewise."""
    return await _wait(transaction, f"user {user_id}", letters, settings.letters_per_user)


async def _wait(transaction: Transaction, counted: str, letters: int, most: int) -> int:
    if not most or not letters:
        return 0
    hour = await rate_queries.count(transaction, counted, letters, WINDOW)
    if hour.letters <= most:
        return 0
    return max(1, round((hour.began_at + WINDOW - transaction.now).total_seconds()))


def setup(app: web.Application) -> None:
    async def forget_letter_counts() -> None:
        async with app[DATABASE].transaction() as transaction:
            await rate_queries.forget(transaction, WINDOW)

    app[QUEUE].add_periodic("forget_letter_counts", "41 * * * *", forget_letter_counts)
