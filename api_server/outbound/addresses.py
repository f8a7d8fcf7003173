"""Which IP addresses are local, private or otherwise not the public internet, and what is said about each."""

import ipaddress
import socket
from collections.abc import Callable, Iterator

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

LOCALHOST = "Requests to localhost are not allowed"

#: First match wins. Documentation ranges are left out on purpose: nobody answers there.
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
    """Why `address` may not be called, in GitLab's words, or None.

    An IPv6 address that only carries an IPv4 address (mapped, compatible, translated, 6to4, Teredo, NAT64) is
    refused when either of the two is. `is_own` says whether one of this machine's interfaces has an address.
    """
    return next((text for each in _with_embedded(address) if (text := _refusal(each, is_own))), None)


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
    """The IPv4 address for an IPv4-mapped IPv6 address; any other address as it is."""
    return getattr(address, "ipv4_mapped", None) or address


def is_own_address(address: Address) -> bool:
    """Whether an interface of this machine has `address`; the kernel is asked by binding, nothing is sent."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True


def literal_address(host: str) -> Address | None:
    """The address that `host` spells, or None for a name.

    Besides the usual forms this understands what C libraries take: `2130706433`, `0x7f.1`, `0177.0.0.1`.
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
