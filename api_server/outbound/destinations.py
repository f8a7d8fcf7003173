"""Reading a URL as a place to connect to, and sending to it as it is written; pure, with GitLab's refusal texts."""

import re
from collections.abc import Collection
from urllib.parse import SplitResult, quote, unquote, urlsplit

import attrs
from yarl import URL

from api_server.outbound.addresses import literal_address

HTTP_SCHEMES = ("http", "https")
MIRROR_SCHEMES = ("http", "https", "ssh", "git")

MAX_HOST_LENGTH = 1024
INVALID_URI = "URI is invalid"
INVALID_HOST = "Hostname or IP address invalid"

DEFAULT_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}
#: What no URL holds unescaped (RFC 3986 2); urlsplit would silently drop some of these.
_NEVER_IN_A_URL = re.compile(r'[\x00-\x20\x7f-\x9f\\<>"^`{|}\s]')
#: A URL's path, and its query with the question mark (RFC 3986 appendix B).
_PATH_AND_QUERY = re.compile(r"[^:/?#]+://[^/?#]+([^?#]*)(\??[^#]*)")
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
_HOST_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9_-])?\.?")
_USER = re.compile(r"[^\W_]")


class BlockedError(Exception):
    """A URL or address that must not be called; the text is for the user, after `is blocked: `."""


@attrs.frozen
class Destination:
    """Where a URL leads: scheme and host in lower case, host in ASCII without brackets, port always set."""

    scheme: str
    host: str
    port: int


def parse_destination(url: str, schemes: Collection[str]) -> Destination:
    """The destination of `url`; raises BlockedError when the text itself is unacceptable."""
    parts, port = _split(url)
    scheme = parts.scheme.lower()
    if scheme not in schemes:
        raise BlockedError(f"Only allowed schemes are {', '.join(schemes)}")
    _check_hidden_newlines(url, parts)
    user = unquote(parts.username or "")
    if user and not _USER.match(user):
        raise BlockedError("Username needs to start with an alphanumeric character")
    return Destination(scheme, _host(parts.hostname or ""), port or DEFAULT_PORTS[scheme])


def written_url(url: str) -> URL:
    """Return `url` for a request whose target is, byte for byte, the path and the query of `url`: yarl by itself
    rewrites escapes and dot segments, which breaks signatures over URLs.

    Only a character that no request line can hold (a space, one beyond ASCII) is percent-encoded. Raises ValueError.
    """
    found = _PATH_AND_QUERY.match(url)
    host = URL(url)
    if found is None or not host.raw_host:
        raise ValueError("not an absolute URL")
    path, query = (quote(part, safe=_VISIBLE) for part in found.groups())
    if query == "?":  # yarl drops an empty query
        path, query = f"{path or '/'}?", ""
    return URL.build(
        scheme=host.scheme, authority=host.raw_authority, path=path, query_string=query[1:], encoded=True
    )


def without_secrets(url: str) -> str:
    """Return the part of a URL that anybody may read: no user, no password, no query, no fragment."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "[not a URL]"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _split(url: str) -> tuple[SplitResult, int | None]:
    if _NEVER_IN_A_URL.search(url):
        raise BlockedError(INVALID_URI)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as problem:
        raise BlockedError(INVALID_URI) from problem
    if port == 0:
        raise BlockedError(INVALID_URI)
    return parts, port


def _check_hidden_newlines(url: str, parts: SplitResult) -> None:
    """An unescaped newline starts a new command for ssh and git servers and a new credential for git."""
    exposed = parts.netloc if parts.scheme.lower() in ("http", "https") else url
    if any(character in unquote(exposed) for character in "\r\n\0"):
        raise BlockedError(INVALID_URI)


def _host(host: str) -> str:
    if len(host) > MAX_HOST_LENGTH:
        raise BlockedError(f"Host is too long (maximum is {MAX_HOST_LENGTH} characters)")
    address = literal_address(host)
    if address is not None:
        return str(address)
    try:
        name = host if host.isascii() else host.encode("idna").decode("ascii")
    except UnicodeError as problem:
        raise BlockedError(INVALID_HOST) from problem
    if not _HOST_NAME.fullmatch(name):
        raise BlockedError(INVALID_HOST)
    return name
