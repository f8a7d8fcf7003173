"""Additional e-mail addresses of users: adding them, confirming them by a mailed link, and removing them."""

import hmac

from api_server.accounts import email_queries
from api_server.accounts.email_queries import Email
from api_server.accounts.user_queries import User
from api_server.outbound import mail
from api_server.outbound.mail import ATTEMPTS, Mail, is_address, send
from api_server.services import Services
from api_server.settings import Settings
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.state.queue import enqueue
from api_server.state.secrets import CONFIRMATION_TOKEN, Vault
from api_server.web.errors import invalid, not_found, too_many_requests

TASK = "mail_confirmation"


def confirmation_token(vault: Vault, email: Email) -> str:
    """Return the token of this address. Ids are never reused, so it is valid for no other address."""
    return vault.derived_token(CONFIRMATION_TOKEN, f"address {email.id} {email.email}".encode())


def is_token_of(vault: Vault, email: Email, text: str) -> bool:
    return hmac.compare_digest(confirmation_token(vault, email).encode(), text.encode())


async def queue_confirmation(transaction: Transaction, email_id: int) -> None:
    """Mail the link once the transaction has committed."""
    await enqueue(transaction, TASK, email_id=email_id)


def setup(services: Services) -> None:
    async def mail_confirmation(email_id: int) -> None:
        """Mail the link, unless the address has been removed or confirmed meanwhile."""
        email = await email_queries.find(services.database, email_id)
        if email is not None and email.confirmed_at is None:
            url = f"{services.settings.base_url}/-/emails/{email.id}/{confirmation_token(services.vault, email)}"
            await send(services, confirmation_mail(email, url))

    services.queue.add(TASK, mail_confirmation, attempts=ATTEMPTS)


def confirmation_mail(email: Email, url: str) -> Mail:
    return Mail(
        id=f"email-{email.id}-confirmation",
        to=email.email,
        subject="Confirm your email address",
        paragraphs=[
            f"{email.name} (@{email.username}) added {email.email} to their account.",
            "If this was you, open the link, sign in and confirm the email address. Otherwise, you can ignore this"
            " email: the address cannot be used until it is confirmed.",
        ],
        links=[("Confirm email address", url)],
    )


async def add(
    transaction: Transaction, user: User, email: str, author: Author, settings: Settings, *, confirmed: bool
) -> str:
    """Add an address for `user` and mail a link to it, unless it is `confirmed`. Return its JSON. Raise 400
    and 429."""
    if not is_address(email):
        raise invalid({"email": ["is invalid"]})
    if await email_queries.users_of(transaction, email):
        raise invalid({"email": ["has already been taken"]})
    added = await email_queries.add(transaction, user.id, email, confirmed=confirmed)
    if not confirmed:
        wait = await mail.wait_for_address(transaction, settings, email)
        if wait := max(wait, await mail.wait_for_user(transaction, settings, author.id)):
            raise too_many_requests(wait)
        await queue_confirmation(transaction, added.id)
    await audit_trail.record(transaction, "email_created", author, user.entity.target(added.id, email))
    return added.entity


async def confirm(transaction: Transaction, email: Email, author: Author) -> None:
    """Confirm the address; from now on it counts as its user's, also for invitations."""
    if email.confirmed_at is not None:
        return
    await email_queries.confirm(transaction, email.id)
    await audit_trail.record(transaction, "email_confirmed", author, email.audit_target)


async def remove(transaction: Transaction, email_id: int, user_id: int, author: Author) -> None:
    """Remove an address. Raise 404 if the user has no such address."""
    email = await email_queries.lock(transaction, email_id)
    if email is None or email.user_id != user_id:
        raise not_found("Email")
    await email_queries.remove(transaction, email.id)
    await audit_trail.record(transaction, "email_destroyed", author, email.audit_target)
