"""What a mail says, and the message (RFC 5322) that says it in plain text and in HTML."""

import datetime
import email.policy
import re
from collections.abc import Sequence
from email.headerregistry import Address
from email.message import EmailMessage
from email.utils import format_datetime
from html import escape
from urllib.parse import urlsplit

import attrs

#: The longest address that mail can be sent to (RFC 5321, 4.5.3.1.3).
LONGEST_ADDRESS = 254
_ATOM = r"[^@.\s,;:<>()\[\]\\\"\x00-\x1f\x7f]+"
#: Names with dots between them on both sides (RFC 5322, 3.4.1: dot-atom); before the @ in ASCII.
_ADDRESS = re.compile(rf"(?=[\x21-\x7e]+@){_ATOM}(?:\.{_ATOM})*@{_ATOM}(?:\.{_ATOM})*")
_UNFIT_FOR_A_LINE = re.compile(r"[\s\x00-\x1f\x7f\u0085\u2028\u2029]+")


@attrs.frozen(kw_only=True)
class Letter:
    """A mail to one address. `id` is the same each time that it is sent, so that receivers know it again."""

    id: str
    to: str
    subject: str
    paragraphs: Sequence[str]
    #: What can be followed, as pairs of label and URL.
    links: Sequence[tuple[str, str]] = ()


def is_address(text: str) -> bool:
    """Whether mail can be addressed to `text`: something, one @, something, and nothing with a meaning in headers."""
    return len(text) <= LONGEST_ADDRESS and _ADDRESS.fullmatch(text) is not None


def one_line(text: str) -> str:
    """`text` with each run of white space and control characters as one space: fit for a header."""
    return _UNFIT_FOR_A_LINE.sub(" ", text).strip()


def compose(letter: Letter, *, sender: str, base_url: str, sent_at: datetime.datetime) -> EmailMessage:
    """Raises ValueError where the address is none."""
    if not is_address(letter.to):
        raise ValueError("mail cannot be addressed to that")
    message = EmailMessage(policy=email.policy.SMTP)
    message["From"] = sender
    message["To"] = Address(addr_spec=letter.to)
    message["Subject"] = one_line(letter.subject)
    message["Date"] = format_datetime(sent_at)
    message["Message-ID"] = f"<{letter.id}@{urlsplit(base_url).hostname}>"
    message["Auto-Submitted"] = "auto-generated"  # RFC 3834: nobody's holiday notice comes back
    message.set_content(_text(letter))
    message.add_alternative(_html(letter), subtype="html")
    return message


def _text(letter: Letter) -> str:
    links = [f"{label}:\n{url}" for label, url in letter.links]
    return "\n\n".join([*(one_line(paragraph) for paragraph in letter.paragraphs), *links]) + "\n"


def _html(letter: Letter) -> str:
    paragraphs = [escape(one_line(paragraph)) for paragraph in letter.paragraphs]
    links = [f'<a href="{escape(url)}">{escape(label)}</a>' for label, url in letter.links]
    body = "\n".join(f"<p>{part}</p>" for part in [*paragraphs, *links])
    return f'<!DOCTYPE html>\n<html lang="en">\n<body>\n{body}\n</body>\n</html>\n'
