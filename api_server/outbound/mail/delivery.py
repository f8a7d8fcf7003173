"""How mail leaves: to an SMTP server, or into files where none is configured."""

import asyncio
import ssl
from email.message import EmailMessage
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import unquote, urlsplit

import aiosmtplib
import attrs
import structlog
from aiohttp import web

from api_server.outbound.mail.letters import Letter, compose
from api_server.settings import Settings
from api_server.state.database import Transaction
from api_server.state.failures import FAILURES, reason_of
from api_server.state.queue import QUEUE, enqueue
from api_server.web.context import CLOCK, SETTINGS
from common.lifecycle import Passing

log = structlog.get_logger(__name__)

TASK = "send_mail"
#: With waits that double from 2 s on, an SMTP server may be away for more than an hour.
ATTEMPTS = 12
_TIMEOUT = 30.0


class MailNotTaken(Passing):
    """The server does not take letters now; the text says which, and why."""


class Outbox(Protocol):
    """Where messages go. Raises OSError or aiosmtplib.SMTPException for what is worth trying again."""

    async def send(self, message: EmailMessage) -> None: ...

    @property
    def place(self) -> str:
        """What operators know it by, without secrets."""


@attrs.frozen
class SmtpServer:
    """smtp://user:password@host:port (STARTTLS where it is offered, always where there is a password, other than to
    this machine), or smtps:// (TLS from the start)."""

    hostname: str
    port: int
    username: str | None = None
    password: str | None = attrs.field(default=None, repr=False)
    use_tls: bool = False
    #: True: refuse to go on without; None: use it where it is offered.
    start_tls: bool | None = None

    @property
    def place(self) -> str:
        return f"{self.hostname}:{self.port}"

    async def send(self, message: EmailMessage) -> None:
        try:
            await aiosmtplib.send(
                message,
                hostname=self.hostname,
                port=self.port,
                username=self.username,
                password=self.password,
                use_tls=self.use_tls,
                start_tls=None if self.use_tls else self.start_tls,
                tls_context=await _tls_context(),
                timeout=_TIMEOUT,
            )
        except (aiosmtplib.SMTPRecipientsRefused, aiosmtplib.SMTPDataError) as problem:
            if not _is_final(problem):
                raise
            log.warning("mail was refused for good", message_id=message["Message-ID"], problem=str(problem))

    async def greet(self) -> None:
        """Connects, encrypts and logs in as `send` does, and sends nothing. Raises as that does."""
        async with aiosmtplib.SMTP(
            hostname=self.hostname,
            port=self.port,
            username=self.username,
            password=self.password,
            use_tls=self.use_tls,
            start_tls=None if self.use_tls else self.start_tls,
            tls_context=await _tls_context(),
            timeout=_TIMEOUT,
        ) as client:
            await client.noop()


async def _tls_context() -> ssl.SSLContext:
    """Reads the system's authorities as they are now, some hundred and fifty, while the event loop goes on."""
    return await asyncio.to_thread(ssl.create_default_context)


@attrs.frozen
class Folder:
    """Messages as .eml files, which mail programs open."""

    path: Path

    @property
    def place(self) -> str:
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
    """As `smtp_url` says, whose form has been checked when the settings were read."""
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


OUTBOX: web.AppKey[Outbox] = web.AppKey("outbox", Outbox)


def setup(app: web.Application) -> None:
    """Opens the outbox, and registers the task behind `queue_letter`."""
    app[OUTBOX] = open_outbox(app[SETTINGS])

    async def send_mail(**letter: Any) -> None:
        await send(app, Letter(**letter))

    app[QUEUE].add(TASK, send_mail, attempts=ATTEMPTS)


async def queue_letter(transaction: Transaction, letter: Letter) -> None:
    """Sends the letter once the transaction has committed. It is kept in the queue as it is: without secrets."""
    await enqueue(transaction, TASK, **attrs.asdict(letter))


async def send(app: web.Application, letter: Letter) -> None:
    """Sends the letter now. An address that is none is logged, not tried again. Raises `MailNotTaken`, which operators
    see until a letter has been taken."""
    settings = app[SETTINGS]
    try:
        message = compose(letter, sender=settings.mail_from, base_url=settings.base_url, sent_at=app[CLOCK]())
    except ValueError as problem:
        log.warning("mail cannot be sent", letter=letter.id, problem=str(problem))
        return
    outbox, failures = app[OUTBOX], app[FAILURES]
    try:
        await outbox.send(message)
    except (OSError, aiosmtplib.SMTPException) as problem:
        await failures.note("mail", outbox.place, reason_of(problem))
        raise MailNotTaken(f"{outbox.place}: {reason_of(problem)}") from problem
    await failures.settle("mail", outbox.place)


def _is_final(problem: aiosmtplib.SMTPRecipientsRefused | aiosmtplib.SMTPDataError) -> bool:
    """Whether the server says that another attempt would not help (RFC 5321, 4.2.1: 5yz)."""
    if isinstance(problem, aiosmtplib.SMTPDataError):
        return problem.code >= 500
    return all(recipient.code >= 500 for recipient in problem.recipients)


def _is_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
