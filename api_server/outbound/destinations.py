"""Parsing URLs to the destinations of connections, the IP addresses that do not belong to the public
internet, and GitLab's texts of refusals."""

import ipaddress
import re
import socket
from collections.abc import Callable, Collection, Iterator
from urllib.parse import SplitResult, quote, unquote, urlsplit

import attrs
from yarl import URL

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOCALHOST = "Requests to localhost are not allowed"

#: First match wins. Documentation ranges are left out on purpose: no host uses them.
_REFUSED: tuple[tuple[str, tuple[Network, ...]], ...] = tuple(
    (text, tuple(ipaddress.ip_network(network) for network in networks.split()))
    for text, networks in (
        ("Requests to loopback addresses are not allowed", "127.0.0.0/8 ::1/128"),
        (LOCALHOST, "0.0.0.0/8 ::/128"),
        (
            "Requests to the local network are not allowed",
            "10.0.0.0/8 172.16.0.0/12 192.168.0.0/16 fc00::/7 fec0::/10",
        ),
        ("Requests to the link local network are not allowed", "169.254.0.0/16 fe80::/10"),
        ("Requests to the shared address space are not allowed", "100.64.0.0/10"),
        ("Requests to the limited broadcast address are not allowed", "255.255.255.255/32"),
        ("Requests to multicast addresses are not allowed", "224.0.0.0/4 ff00::/8"),
        (
            "Requests to reserved addresses are not allowed",
            "192.0.0.0/24 198.18.0.0/15 240.0.0.0/4 64:ff9b:1::/48 100::/64 5f00::/16",
        ),
    )
)

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_IPV4_COMPATIBLE = ipaddress.IPv6Network("::/96")
_IPV4_TRANSLATED = ipaddress.IPv6Network("::ffff:0:0:0/96")


def refusal(address: Address, is_own: Callable[[Address], bool]) -> str | None:
    """Return the reason why `address` may not be called, in GitLab's words, or None.

    An IPv6 address that merely contains an IPv4 address (mapped, compatible, translated, 6to4, Teredo, NAT64)
    is refused if either of the two is. `is_own` says whether an interface of this machine has an address.
    """
    return next((text for inner in _with_embedded(address) if (text := _refusal(inner, is_own))), None)


def _refusal(address: Address, is_own: Callable[[Address], bool]) -> str | None:
    for text, networks in _REFUSED:
        if any(address in network for network in networks):
            return text
    return LOCALHOST if is_own(address) else None


def _with_embedded(address: Address) -> Iterator[Address]:
    address = unwrapped(address)
    yield address
    if isinstance(address, ipaddress.IPv4Address):
        return
    if address.sixtofour:
        yield address.sixtofour
    if address.teredo:
        yield from address.teredo
    if any(address in network for network in (_NAT64, _IPV4_COMPATIBLE, _IPV4_TRANSLATED)):
        yield ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)


def unwrapped(address: Address) -> Address:
    """Return the IPv4 address in an IPv4-mapped IPv6 address; return any other address unchanged."""
    return getattr(address, "ipv4_mapped", None) or address


def is_own_address(address: Address) -> bool:
    """Return whether an interface of this machine has `address`. This asks the kernel by binding a socket and
    sends nothing."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def literal_address(host: str) -> Address | None:
    """Return the address that `host` denotes, or None for a name.

    Besides the usual forms this accepts those of C libraries: `2130706433`, `0x7f.1`, `0177.0.0.1`.
    """
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    last_label = host.removesuffix(".").rpartition(".")[2]
    if not last_label[:1].isdigit():
        return None
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host.removesuffix(".")))
    except (OSError, UnicodeError):
        return None


HTTP_SCHEMES = ("http", "https")
MIRROR_SCHEMES = ("http", "https", "ssh", "git")

MAX_HOST_LENGTH = 1024
INVALID_URI = "URI is invalid"
INVALID_HOST = "Hostname or IP address invalid"

DEFAULT_PORTS = {"http": 80, "https": 443, "ssh": 22, "git": 9418}
#: Characters that no URL contains unescaped (RFC 3986 2); urlsplit would silently drop some of them.
_NEVER_IN_A_URL = re.compile(r'[\x00-\x20\x7f-\x9f\\<>"^`{|}\s]')
#: A URL's path, and its query with the question mark (RFC 3986 appendix B).
_PATH_AND_QUERY = re.compile(r"[^:/?#]+://[^/?#]+([^?#]*)(\??[^#]*)")
_VISIBLE = "".join(map(chr, range(0x21, 0x7F)))
_HOST_NAME = re.compile(r"[a-z0-9](?:[a-z0-9._-]*[a-z0-9_-])?\.?")
_USER = re.compile(r"[^\W_]")


class BlockedError(Exception):
    """The URL or address must not be called; the text is for the user, after `is blocked: `."""


@attrs.frozen
class Destination:
    """The destination of a URL: scheme and host in lower case, host in ASCII without brackets, port always
    set."""

    scheme: str
    host: str
    port: int


def parse_destination(url: str, schemes: Collection[str]) -> Destination:
    """Return the destination of `url`. Raise BlockedError if the text itself is not acceptable."""
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
    """Return `url` for a request whose target is, byte for byte, the path and the query of `url`. yarl by
    itself rewrites escapes and dot segments, which breaks signatures over URLs.

    Only a character that no request line can contain (a space, a non-ASCII character) is percent-encoded.
    Raise ValueError.
    """
    match = _PATH_AND_QUERY.match(url)
    host = URL(url)
    if match is None or not host.raw_host:
        raise ValueError("not an absolute URL")
    path, query = (quote(part, safe=_VISIBLE) for part in match.groups())
    if query == "?":  # yarl drops an empty query
        path, query = f"{path or '/'}?", ""
    return URL.build(
        scheme=host.scheme, authority=host.raw_authority, path=path, query_string=query[1:], encoded=True
    )


def without_secrets(url: str) -> str:
    """Return the public part of a URL: without user, password, query and fragment."""
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
    """Raise BlockedError for an escaped newline: it would start a new command for ssh and git servers and a
    new credential for git."""
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
