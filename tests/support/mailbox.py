"""A real SMTP server for tests (aiosmtpd), with STARTTLS and accounts, that stores all messages."""

import asyncio
import contextlib
import email
import email.policy
import ssl
from collections.abc import AsyncIterator, Callable
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import attrs
from aiosmtpd.smtp import SMTP, AuthResult, Envelope, LoginPassword

from api_server.state.database import Executor
from tests.support.certificates import key_and_certificate

USER, PASSWORD = "forge", "correct horse"
QUEUED = "SELECT count(*) FROM procrastinate_jobs WHERE task_name IN ('mail_invitation', 'send_mail')"


@attrs.define
class Mailbox:
    """The messages that have arrived. `on_data` runs before a message is acknowledged; `refuse` replaces the answer."""

    port: int = 0
    messages: list[EmailMessage] = attrs.Factory(list)
    recipients: list[str] = attrs.Factory(list)
    over_tls: list[bool] = attrs.Factory(list)
    refuse: str | None = None
    on_data: Callable[[], None] | None = None

    @property
    def url(self) -> str:
        return f"smtp://{USER}:correct%20horse@localhost:{self.port}"

    def to(self, address: str) -> list[EmailMessage]:
        return [message for message in self.messages if message["To"] == address]

    async def arrival(self, address: str, count: int = 1) -> list[EmailMessage]:
        """Wait until `count` messages to the address have arrived; return them."""
        async with asyncio.timeout(20):
            while len(self.to(address)) < count:
                await asyncio.sleep(0.02)
        return self.to(address)

    async def all_of(self, address: str, database: Executor) -> list[EmailMessage]:
        """Wait until the queue of `database` has no mail left, and return the messages to the address."""
        async with asyncio.timeout(20):
            while await database.value(QUEUED):
                await asyncio.sleep(0.02)
        return self.to(address)

    async def handle_RCPT(  # noqa: N802 - aiosmtpd's name
        self, _server: SMTP, _session: Any, envelope: Envelope, address: str, _options: list[str]
    ) -> str:
        if self.refuse:
            return self.refuse
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, _server: SMTP, session: Any, envelope: Envelope) -> str:  # noqa: N802
        content = envelope.original_content or b""
        message = email.message_from_bytes(content, policy=email.policy.default)
        self.messages.append(message)  # type: ignore[arg-type]
        self.recipients += envelope.rcpt_tos
        self.over_tls.append(session.ssl is not None)
        if self.on_data:
            self.on_data()
        return "250 OK"


@contextlib.asynccontextmanager
async def running_mailbox(folder: Path) -> AsyncIterator[Mailbox]:
    """Run a mailbox on a free port of localhost; its certificate is `folder`/mailbox.pem."""
    mailbox = Mailbox()
    certificate = folder / "mailbox.pem"
    certificate.write_bytes(b"".join(key_and_certificate()))
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    def authenticate(_server: Any, _session: Any, _envelope: Any, _mechanism: str, data: Any) -> AuthResult:
        known = isinstance(data, LoginPassword) and data == LoginPassword(USER.encode(), PASSWORD.encode())
        return AuthResult(success=known, handled=known)

    def protocol() -> SMTP:
        return SMTP(
            mailbox,
            hostname="localhost",
            tls_context=context,
            require_starttls=True,
            authenticator=authenticate,
            auth_required=True,
            loop=asyncio.get_running_loop(),
        )

    server = await asyncio.get_running_loop().create_server(protocol, "127.0.0.1", 0)
    mailbox.port = server.sockets[0].getsockname()[1]
    try:
        yield mailbox
    finally:
        server.close()


def parts_of(message: EmailMessage) -> tuple[str, str]:
    """Return the text and the HTML of a message."""
    plain, html = message.get_body(("plain",)), message.get_body(("html",))
    assert plain is not None
    assert html is not None
    return plain.get_content().replace("\r\n", "\n"), html.get_content().replace("\r\n", "\n")
