"""Mail to people: its contents, its delivery, and the limits of mail that users cause to be sent to others.

Mails are counted in the database, for all processes together, in the transaction that queues them, so a
rollback also undoes the count. A transaction that counts for addresses and a user counts for the addresses
first, in alphabetical order, and then for the user, to avoid deadlocks.
"""

import asyncio
import datetime
import email.policy
import re
import ssl
from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import aiosmtplib
import attrs
import structlog

from api_server.outbound import queries
from api_server.services import Key, Services
from api_server.settings import Settings
from api_server.state.database import Transaction
from api_server.state.failures import reason_of
from api_server.state.queue import enqueue
from common.lifecycle import Passing

#: The longest address that mail can be sent to (RFC 5321, 4.5.3.1.3).
LONGEST_ADDRESS = 254
_ATOM = r"[^@.\s,;:<>()\[\]\\\"\x00-\x1f\x7f]+"
#: Names with dots between them on both sides (RFC 5322, 3.4.1: dot-atom); ASCII before the @.
_ADDRESS = re.compile(rf"(?=[\x21-\x7e]+@){_ATOM}(?:\.{_ATOM})*@{_ATOM}(?:\.{_ATOM})*")
_UNFIT_FOR_A_LINE = re.compile(r"[\s\x00-\x1f\x7f\u0085\u2028\u2029]+")


@attrs.frozen(kw_only=True)
class Mail:
    """A mail to one address. `id` is the same for each attempt to send it, so that receivers can recognize
    duplicates."""

    id: str
    to: str
    subject: str
    paragraphs: Sequence[str]
    #: Links, as pairs of label and URL.
    links: Sequence[tuple[str, str]] = ()


def is_address(text: str) -> bool:
    """Return whether mail can be addressed to `text`: something, one @, something, and nothing with a meaning
    in headers."""
    return len(text) <= LONGEST_ADDRESS and _ADDRESS.fullmatch(text) is not None


def one_line(text: str) -> str:
    """Return `text` with each run of white space and control characters replaced by one space, for use in a
    header."""
    return _UNFIT_FOR_A_LINE.sub(" ", text).strip()


def compose_message(mail: Mail, *, sender: str, base_url: str, sent_at: datetime.datetime) -> EmailMessage:
    """Return the message of a mail. Raise ValueError if its address is invalid."""
    if not is_address(mail.to):
        raise ValueError("the address is invalid")
    message = EmailMessage(policy=email.policy.SMTP)
    message["From"] = sender
    message["To"] = Address(addr_spec=mail.to)
    message["Subject"] = one_line(mail.subject)
    message["Date"] = format_datetime(sent_at)
    message["Message-ID"] = f"<{mail.id}@{urlsplit(base_url).hostname}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: prevents automatic replies
    message.set_content(_text(mail))
    message.add_alternative(_html(mail), subtype="html")
    return message


def _text(mail: Mail) -> str:
    links = [f"{label}:\n{url}" for label, url in mail.links]
    return "\n\n".join([*(one_line(paragraph) for paragraph in mail.paragraphs), *links]) + "\n"


def _html(mail: Mail) -> str:
    paragraphs = [escape(one_line(paragraph)) for paragraph in mail.paragraphs]
    links = [f'<a href="{escape(url)}">{escape(label)}</a>' for label, url in mail.links]
    body = "\n".join(f"<p>{part}</p>" for part in [*paragraphs, *links])
    return f'<!DOCTYPE html>\n<html lang="en">\n<body>\n{body}\n</body>\n</html>\n'


log = structlog.get_logger(__name__)

SEND_TASK = "send_mail"
#: With pauses that double from 2 s on, an SMTP server may be down for more than an hour.
ATTEMPTS = 12
_SMTP_SECONDS = 30.0


class MailNotTaken(Passing):
    """The server does not accept mail now; the text names the server and the reason."""


class Outbox(Protocol):
    """The destination of messages. It raises OSError or aiosmtplib.SMTPException for failures after which
    another attempt makes sense."""

    async def send(self, message: EmailMessage) -> None: ...

    @property
    def location(self) -> str:
        """The name by which operators know it, without secrets."""


@attrs.frozen
class SmtpServer:
    """smtp://user:password@host:port (STARTTLS if it is offered; required if there is a password, except for
    this machine), or smtps:// (TLS from the start)."""

    hostname: str
    port: int
    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    use_tls: bool = False
    #: True: fail without it; None: use it if it is offered.
    start_tls: bool | None = None

    @property
    def location(self) -> str:
        return f"{self.hostname}:{self.port}"

    async def send(self, message: EmailMessage) -> None:
        try:
            async with await self._client() as client:
                await client.send_message(message)
        except (aiosmtplib.SMTPRecipientsRefused, aiosmtplib.SMTPDataError) as problem:
            if not _is_final(problem):
                raise
            log.warning("mail was refused for good", message_id=message["Message-ID"], problem=str(problem))

    async def greet(self) -> None:
        """Connect, encrypt and log in like `send`, without sending anything. Raise the errors of `send`."""
        async with await self._client() as client:
            await client.noop()

    async def _client(self) -> aiosmtplib.SMTP:
        """Return a client with the system's current certificate authorities, some hundred and fifty, which are read in
        a thread. A mail server on this machine usually has a certificate of its own making, which none of them knows.
        """
        context = await asyncio.to_thread(ssl.create_default_context)
        if _is_this_machine(self.hostname):
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        return aiosmtplib.SMTP(
            hostname=self.hostname,
            port=self.port,
            username=self.username,
            password=self.password,
            use_tls=self.use_tls,
            start_tls=None if self.use_tls else self.start_tls,
            tls_context=context,
            timeout=_SMTP_SECONDS,
        )


@attrs.frozen
class Folder:
    """A folder of messages as .eml files, which mail programs can open."""

    path: Path

    @property
    def location(self) -> str:
        return str(self.path)

    async def send(self, message: EmailMessage) -> None:
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = self.path / f"{str(message['Message-ID']).strip('<>').replace('/', '_')}.eml"
        partial = file.with_suffix(".partial")
        partial.write_bytes(bytes(message))
        partial.chmod(0o600)
        partial.replace(file)
        log.info("mail was written to a file, smtp_url is not set", file=str(file))


def open_outbox(settings: Settings) -> Outbox:
    """Return the outbox for `smtp_url`, whose format has been checked when the settings were read."""
    if not settings.smtp_url:
        return Folder(settings.data_dir / "mail")
    parts = urlsplit(settings.smtp_url)
    hostname = parts.hostname or ""
    use_tls = parts.scheme == "smtps"
    return SmtpServer(
        hostname=hostname,
        port=parts.port or (465 if use_tls else 25),
        username=unquote(parts.username) if parts.username else None,
        password=unquote(parts.password) if parts.password else None,
        use_tls=use_tls,
        start_tls=True if parts.password and not _is_this_machine(hostname) else None,
    )


OUTBOX = Key[Outbox]("outbox")


def setup_delivery(services: Services) -> None:
    """Open the outbox, and register the task for `queue_mail`."""
    services[OUTBOX] = open_outbox(services.settings)

    async def send_mail(**mail: Any) -> None:
        await send(services, Mail(**mail))

    services.queue.add(SEND_TASK, send_mail, attempts=ATTEMPTS)


async def queue_mail(transaction: Transaction, mail: Mail) -> None:
    """Send the mail once the transaction has committed. The queue stores it as it is, so it must not
    contain secrets."""
    await enqueue(transaction, SEND_TASK, **attrs.asdict(mail))


async def send(services: Services, mail: Mail) -> None:
    """Send the mail now. An invalid address is logged and not tried again. Raise `MailNotTaken`, which
    operators see until a mail has been accepted."""
    settings = services.settings
    try:
        message = compose_message(
            mail, sender=settings.mail_from, base_url=settings.base_url, sent_at=services.clock()
        )
    except ValueError as problem:
        log.warning("mail cannot be sent", mail=mail.id, problem=str(problem))
        return
    outbox, failures = services[OUTBOX], services.failures
    try:
        await outbox.send(message)
    except (OSError, aiosmtplib.SMTPException) as problem:
        await failures.note("mail", outbox.location, reason_of(problem))
        raise MailNotTaken(f"{outbox.location}: {reason_of(problem)}") from problem
    await failures.settle("mail", None)  # those of servers that smtp_url named earlier, too


def _is_final(problem: aiosmtplib.SMTPRecipientsRefused | aiosmtplib.SMTPDataError) -> bool:
    """Return whether the server says that another attempt would not help (RFC 5321, 4.2.1: 5yz)."""
    if isinstance(problem, aiosmtplib.SMTPDataError):
        return problem.code >= 500
    return all(recipient.code >= 500 for recipient in problem.recipients)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


RATE_WINDOW = datetime.timedelta(hours=1)


async def wait_for_address(transaction: Transaction, settings: Settings, address: str) -> int:
    """Count an email to `address`. Return 0 if it may be sent, otherwise the seconds until the next one may
    be."""
    return await _seconds_to_wait(transaction, f"address {address.lower()}", 1, settings.emails_per_address)


async def wait_if_anybody_asks(transaction: Transaction, settings: Settings, address: str) -> int:
    """Count an email to `address` that an anonymous caller has requested. Return like `wait_for_address`. It
    is counted separately, so that such callers cannot block other emails to the address."""
    return await _seconds_to_wait(transaction, f"asked {address.lower()}", 1, settings.emails_per_address)


async def wait_for_user(transaction: Transaction, settings: Settings, user_id: int, emails: int = 1) -> int:
    """Count emails that a user has sent. Return like `wait_for_address`."""
    return await _seconds_to_wait(transaction, f"user {user_id}", emails, settings.emails_per_user)


async def _seconds_to_wait(transaction: Transaction, key: str, emails: int, limit: int) -> int:
    if not limit or not emails:
        return 0
    hour = await queries.count_emails(transaction, key, emails, RATE_WINDOW)
    if hour.emails <= limit:
        return 0
    return max(1, round((hour.began_at + RATE_WINDOW - transaction.now).total_seconds()))


def setup_rates(services: Services) -> None:
    async def forget_email_counts() -> None:
        async with services.database.transaction() as transaction:
            await queries.forget_emails(transaction, RATE_WINDOW)

    services.queue.add_periodic("forget_email_counts", "41 * * * *", forget_email_counts)
