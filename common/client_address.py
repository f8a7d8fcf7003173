"""The address of a request's client behind the proxies that the operator trusts."""

import functools
import ipaddress
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

#: Loopback, private and link-local addresses, which are not on the internet.
PRIVATE_NETWORKS = (
    "127.0.0.0/8",
    "10.0.0.0/8",
    "172.16.0.0/12",
    "192.168.0.0/16",
    "169.254.0.0/16",
    "::1/128",
    "fc00::/7",
    "fe80::/10",
)
#: The IPv6 network of one customer of a provider, who can use all of its addresses.
_IPV6_PREFIX = 64


def networks(texts: Iterable[str]) -> list[Network]:
    """Parse addresses (`192.0.2.7`) and networks (`10.0.0.0/8`). Raise `ValueError` for anything else."""
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def address_behind(proxies: list[Network], peer: str, forwarded_for: list[str]) -> str:
    """Return the last address that is not a trusted proxy's: of the peer, then of `X-Forwarded-For` from its end to
    its beginning.

    Only addresses that a trusted proxy has added are believed. A proxy that adds no address is the client itself.
    """
    return hops_of(proxies, peer, forwarded_for)[0]


def hops_of(proxies: list[Network], peer: str, forwarded_for: list[str]) -> list[str]:
    """Return the trusted part of the addresses on a request's way: the client, the trusted proxies, the peer."""
    hops = [peer]
    for address in (text.strip() for line in reversed(forwarded_for) for text in reversed(line.split(","))):
        if not is_in(proxies, hops[-1]) or _parsed(address) is None:
            break
        hops.append(address)
    return hops[::-1]


def client_of(proxies: list[Network], request: web.BaseRequest) -> str:
    """Return the address of the client behind the trusted proxies. It is empty if there is none (a Unix socket)."""
    peer = request.remote or ""
    forwarded_for = request.headers.getall("X-Forwarded-For", []) if proxies else []
    return address_behind(proxies, peer, forwarded_for) if forwarded_for else peer


def behind_proxies(proxies: list[Network]) -> list[Middleware]:
    """Return the middleware that makes this address `request.remote`, or none if no proxy is trusted."""

    @web.middleware
    async def forwarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        client = client_of(proxies, request)
        return await handler(request if client == request.remote else request.clone(remote=client))

    return [forwarded] if proxies else []


def is_in(networks: Iterable[Network], address: str) -> bool:
    """Return whether the address is in one of the networks."""
    parsed = _parsed(address)
    return parsed is not None and any(parsed in network for network in networks)


@functools.lru_cache(maxsize=4096)
def one_client(address: str) -> str:
    """Return the key of limits per address: the address, or for IPv6 its network of 64 bits."""
    parsed = _parsed(address)
    if not isinstance(parsed, ipaddress.IPv6Address):
        return str(parsed or address)
    return str(ipaddress.ip_network((parsed, _IPV6_PREFIX), strict=False))


def _parsed(text: str) -> _Address | None:
    """Parse an address. An IPv4 address that an IPv6 socket reports as `::ffff:192.0.2.7` becomes the IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
