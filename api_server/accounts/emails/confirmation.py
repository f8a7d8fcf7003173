"""The mail that asks whether an address is its user's, and the token in it, which is derived and not stored."""

import hmac

from aiohttp import web

from api_server.accounts.emails import queries
from api_server.accounts.emails.queries import Email
from api_server.outbound.mail import ATTEMPTS, Letter, send
from api_server.state.database import Transaction
from api_server.state.queue import QUEUE, enqueue
from api_server.state.secrets import CONFIRMATION_TOKEN, Vault
from api_server.web.context import DATABASE, SETTINGS, VAULT

TASK = "mail_confirmation"


def token(vault: Vault, email: Email) -> str:
    """Of this address only: ids are never used again."""
    return vault.derived_token(CONFIRMATION_TOKEN, f"address {email.id} {email.email}".encode())


def is_token_of(vault: Vault, email: Email, text: str) -> bool:
    return hmac.compare_digest(token(vault, email).encode(), text.encode())


async def queue_mail(transaction: Transaction, email_id: int) -> None:
    """Mails the link once the transaction has committed."""
    await enqueue(transaction, TASK, email_id=email_id)


def setup(app: web.Application) -> None:
    async def mail_confirmation(email_id: int) -> None:
        """An address that has been removed or confirmed meanwhile is not mailed."""
        email = await queries.find(app[DATABASE], email_id)
        if email is not None and email.confirmed_at is None:
            url = f"{app[SETTINGS].base_url}/-/emails/{email.id}/{token(app[VAULT], email)}"
            await send(app, letter(email, url))

    app[QUEUE].add(TASK, mail_confirmation, attempts=ATTEMPTS)


def letter(email: Email, url: str) -> Letter:
    return Letter(
        id=f"email-{email.id}-confirmation",
        to=email.email,
        subject="Confirm your email address",
        paragraphs=[
            f"{email.name} (@{email.username}) has added {email.email} to an account.",
            "If that was you, open the link, sign in, and confirm. If not, there is nothing to do: the address is"
            " of no use to anybody until it is confirmed.",
        ],
        links=[("Confirm the address", url)],
    )
