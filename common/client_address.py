"""Whose address a request comes from when proxies that the operator trusts stand in front of a process."""

import functools
import ipaddress
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Loopback, private and link-local addresses: not those of the internet.
NEAR = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)
#: What one customer of a provider gets of IPv6, and can fill with as many addresses as she likes.
_IPV6_PREFIX = 64


def networks(texts: Iterable[str]) -> list[Network]:
    """Addresses (`192.0.2.7`) and networks (`10.0.0.0/8`); raises ValueError for anything else."""
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def address_behind(proxies: list[Network], peer: str, forwarded_for: list[str]) -> str:
    """The last address that no trusted proxy has: of the peer, then of `X-Forwarded-For` from its end to its beginning.

    Only what a trusted proxy has added is believed. A proxy that adds no address is the client itself.
    """
    return way_of(proxies, peer, forwarded_for)[0]


def way_of(proxies: list[Network], peer: str, forwarded_for: list[str]) -> list[str]:
    """The addresses that a request has come by, as far as they are believed: the client, trusted proxies, the peer."""
    back = [peer]
    for said in (text.strip() for line in reversed(forwarded_for) for text in reversed(line.split(","))):
        if not is_in(proxies, back[-1]) or _parsed(said) is None:
            break
        back.append(said)
    return back[::-1]


def client_of(proxies: list[Network], request: web.BaseRequest) -> str:
    """The address of the client behind the trusted proxies; empty where there is none (a Unix socket)."""
    peer = request.remote or ""
    forwarded_for = request.headers.getall("X-Forwarded-For", []) if proxies else []
    return address_behind(proxies, peer, forwarded_for) if forwarded_for else peer


def behind_proxies(proxies: list[Network]) -> list[Middleware]:
    """The middleware that makes it `request.remote`; none when no proxy is trusted."""

    @web.middleware
    async def forwarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        client = client_of(proxies, request)
        return await handler(request if client == request.remote else request.clone(remote=client))

    return [forwarded] if proxies else []


def is_in(networks: Iterable[Network], address: str) -> bool:
    """Whether it is an address of one of the networks."""
    found = _parsed(address)
    return found is not None and any(found in network for network in networks)


@functools.lru_cache(maxsize=4096)
def one_client(address: str) -> str:
    """What limits by address count: the address, for IPv6 its network of 64 bits."""
    found = _parsed(address)
    if not isinstance(found, ipaddress.IPv6Address):
        return str(found or address)
    return str(ipaddress.ip_network((found, _IPV6_PREFIX), strict=False))


def _parsed(text: str) -> _Address | None:
    """An IPv4 address that an IPv6 socket reports as `::ffff:192.0.2.7` is the IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
