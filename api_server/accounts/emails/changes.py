"""Adding, confirming and removing a further address of a user, each in the caller's transaction."""

from api_server.accounts import address_queries as addresses
from api_server.accounts.emails import confirmation, queries
from api_server.accounts.emails.queries import Email
from api_server.accounts.users.queries import User
from api_server.outbound import mail
from api_server.outbound.mail import is_address
from api_server.settings import Settings
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.web.errors import invalid, not_found, too_many_requests


async def add(
    transaction: Transaction, user: User, email: str, author: Author, settings: Settings, *, confirmed: bool
) -> str:
    """The JSON of a new address of `user`, who gets a mail there unless it is `confirmed`. Raises 400 and 429."""
    if not is_address(email):
        raise invalid({"email": ["is invalid"]})
    if await addresses.users_of(transaction, email):
        raise invalid({"email": ["has already been taken"]})
    added = await queries.add(transaction, user.id, email, confirmed=confirmed)
    if not confirmed:
        wait = await mail.wait_for_address(transaction, settings, email)
        if wait := max(wait, await mail.wait_for_user(transaction, settings, author.id)):
            raise too_many_requests(wait)
        await confirmation.queue_mail(transaction, added.id)
    await audit_trail.record(
        transaction,
        "email_created",
        author=author,
        entity=user.entity,
        target_id=added.id,
        target_details=email,
        message="Added email address",
    )
    return added.entity


async def confirm(transaction: Transaction, email: Email, author: Author) -> None:
    """From now on the address is its user's, for invitations too."""
    if email.confirmed_at is not None:
        return
    await queries.confirm(transaction, email.id)
    await _record(transaction, "email_confirmed", author, email, "Confirmed email address")


async def remove(transaction: Transaction, email_id: int, user_id: int, author: Author) -> None:
    """Raises 404 where the user has no such address."""
    email = await queries.lock(transaction, email_id)
    if email is None or email.user_id != user_id:
        raise not_found("Email")
    await queries.remove(transaction, email.id)
    await _record(transaction, "email_destroyed", author, email, "Removed email address")


async def _record(
    transaction: Transaction, event_type: str, author: Author, email: Email, message: str
) -> None:
    await audit_trail.record(
        transaction,
        event_type,
        author=author,
        entity=email.entity,
        target_id=email.id,
        target_details=email.email,
        message=message,
    )
