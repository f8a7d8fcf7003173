"""The rules for passwords, and mails with a link to set one.

A link can be used once, for two days, until the next one is mailed, and only while account, address and
password are unchanged. Requests do not reveal whether an address belongs to an account: every request is
queued, and the queue looks the address up. The token in the link is created when the mail is sent; only its
digest is ever stored.
"""

import datetime

from api_server.accounts import password_queries
from api_server.accounts.password_queries import Account
from api_server.outbound.mail import ATTEMPTS, Mail, is_address, send, wait_if_anybody_asks
from api_server.services import Services
from api_server.settings import Settings
from api_server.state import audit_trail
from api_server.state.audit_trail import Author
from api_server.state.database import Transaction
from api_server.state.queue import enqueue
from api_server.state.secrets import PASSWORD_RESET_TOKEN, digest, new_token

SHORTEST, LONGEST = 8, 128


def problem_with(password: str) -> str | None:
    """Return the reason why that cannot be a password, in words that follow the field's name; or None."""
    if len(password) < SHORTEST:
        return f"is too short (minimum is {SHORTEST} characters)"
    if len(password) > LONGEST:
        return f"is too long (maximum is {LONGEST} characters)"
    return None


LIFETIME = datetime.timedelta(days=2)

RESET_REQUESTED = "password_reset_asked_for"
MAIL = "mail_password_reset"


async def ask_for_link(
    transaction: Transaction, settings: Settings, email: str, ip_address: str | None
) -> None:
    """Queue a mail with a link, unless the address gets too many mails. Whether it belongs to an account is
    determined later."""
    if is_address(email) and not await wait_if_anybody_asks(transaction, settings, email):
        await enqueue(transaction, RESET_REQUESTED, email=email, ip_address=ip_address)


async def queue_mail(transaction: Transaction, user_id: int, *, is_new: bool) -> None:
    """Mail the link once the transaction has committed; `is_new` says that the account has just been
    created."""
    await enqueue(transaction, MAIL, user_id=user_id, is_new=is_new)


async def use_link(
    transaction: Transaction, token: str, password_hash: str, ip_address: str | None
) -> Account | None:
    """Set the password by a link; end sessions, but keep tokens. Return None if the link is not (or no
    longer) valid."""
    account = await password_queries.set_password(transaction, digest(token), password_hash)
    if account is not None:
        await _record(transaction, account, ip_address)
    return account


async def change(transaction: Transaction, user_id: int, password_hash: str, ip_address: str | None) -> None:
    """Set the password of a user who knows the old one; end all sessions, but keep tokens."""
    await _record(
        transaction, await password_queries.change_password(transaction, user_id, password_hash), ip_address
    )


async def _record(transaction: Transaction, account: Account, ip_address: str | None) -> None:
    author = Author(
        id=account.id,
        name=account.name,
        email=account.email,
        username=account.username,
        ip_address=ip_address,
    )
    await audit_trail.record(transaction, "user_password_updated", author, account.entity)


def setup(services: Services) -> None:
    async def look_up(email: str, ip_address: str | None) -> None:
        account = await password_queries.account_of_address(services.database, email)
        if account is None:
            return
        async with services.database.transaction() as transaction:
            await queue_mail(transaction, account.id, is_new=False)
            author = Author(id=-1, name=email, ip_address=ip_address)
            await audit_trail.record(transaction, "password_reset_requested", author, account.entity)

    async def mail(user_id: int, is_new: bool) -> None:
        token = new_token(PASSWORD_RESET_TOKEN)
        async with services.database.transaction() as transaction:
            account = await password_queries.lock_account(transaction, user_id)
            if account is None:
                return
            await password_queries.keep(transaction, account.id, digest(token), transaction.now + LIFETIME)
        url = f"{services.settings.base_url}/-/password/{token}"
        await send(services, password_mail(account, url, digest(token).hex(), is_new=is_new))

    async def delete_expired_password_resets() -> None:
        async with services.database.transaction() as transaction:
            await password_queries.delete_expired(transaction)

    services.queue.add(RESET_REQUESTED, look_up, attempts=ATTEMPTS)
    services.queue.add(MAIL, mail, attempts=ATTEMPTS)
    services.queue.add_periodic(
        "delete_expired_password_resets", "43 4 * * *", delete_expired_password_resets
    )


def password_mail(account: Account, url: str, name: str, *, is_new: bool) -> Mail:
    first = (
        f"The account @{account.username} has been created for you."
        if is_new
        else f"Someone, hopefully you, has requested a password reset for the account @{account.username}."
    )
    last = "The link can be used once and expires after two days."
    if not is_new:
        last += " If you did not request this, you can ignore this email: your password is not changed."
    return Mail(
        id=f"password-{name[:32]}",
        to=account.email,
        subject="Set your password" if is_new else "Reset your password",
        paragraphs=[f"Hi {account.name}!", first, last],
        links=[("Set password" if is_new else "Reset password", url)],
    )
