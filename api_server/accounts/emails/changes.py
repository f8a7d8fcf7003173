"""Adding, confirming and removing a further address of a user, each in the caller's transaction."""

from api_server.accounts import addresses
from api_server.accounts.emails import confirmation, queries
from api_server.outbound.mail.letters import is_address
from api_server.state import audit_trail
from api_server.state.audit_trail import Author, Entity
from api_server.state.database import Row, Transaction
from api_server.web.errors import invalid, not_found


async def add(transaction: Transaction, user: Row, email: str, author: Author, *, confirmed: bool) -> int:
    """The id of a new address of `user` (id, username), who gets a mail there unless it is `confirmed`. Raises 400."""
    if not is_address(email):
        raise invalid({"email": ["is invalid"]})
    if await addresses.users_of(transaction, email):
        raise invalid({"email": ["has already been taken"]})
    email_id = await queries.add(transaction, user.id, email, confirmed=confirmed)
    if not confirmed:
        await confirmation.queue_mail(transaction, email_id)
    await _record(
        transaction, "email_created", author, user.id, user.username, email_id, email, "Added email address"
    )
    return email_id


async def confirm(transaction: Transaction, email: Row, author: Author) -> None:
    """From now on the address is its user's, for invitations too."""
    if email.confirmed_at is not None:
        return
    await queries.confirm(transaction, email.id)
    await _record_of(transaction, "email_confirmed", author, email, "Confirmed email address")


async def remove(transaction: Transaction, email_id: int, user_id: int, author: Author) -> None:
    """Raises 404 where the user has no such address."""
    email = await queries.find(transaction, email_id, locked=True)
    if email is None or email.user_id != user_id:
        raise not_found("Email")
    await queries.remove(transaction, email.id)
    await _record_of(transaction, "email_destroyed", author, email, "Removed email address")


async def _record_of(
    transaction: Transaction, event_type: str, author: Author, email: Row, message: str
) -> None:
    await _record(
        transaction, event_type, author, email.user_id, email.username, email.id, email.email, message
    )


async def _record(
    transaction: Transaction,
    event_type: str,
    author: Author,
    user_id: int,
    username: str,
    email_id: int,
    email: str,
    message: str,
) -> None:
    await audit_trail.record(
        transaction,
        event_type,
        author=author,
        entity=Entity(type="User", id=user_id, path=username),
        target_id=email_id,
        target_details=email,
        message=message,
    )
