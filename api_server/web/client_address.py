"""Whose address a request comes from when proxies that the operator trusts stand in front of the server."""

import ipaddress
from collections.abc import Iterable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def networks(texts: Iterable[str]) -> list[Network]:
    """Addresses (`192.0.2.7`) and networks (`10.0.0.0/8`); raises ValueError for anything else."""
    return [ipaddress.ip_network(text, strict=False) for text in texts]


def address_behind(proxies: list[Network], peer: str, forwarded_for: list[str]) -> str:
    """The last address that no trusted proxy has: of the peer, then of `X-Forwarded-For` from its end to its beginning.

    Only what a trusted proxy has added is believed. A proxy that adds no address is the client itself.
    """
    address = peer
    for said in reversed([text.strip() for line in forwarded_for for text in line.split(",")]):
        if not _is_in(proxies, address) or _parsed(said) is None:
            break
        address = said
    return address


def behind_proxies(proxies: list[Network]) -> list[Middleware]:
    """The middleware that makes it `request.remote`; none when no proxy is trusted."""

    @web.middleware
    async def forwarded(request: web.Request, handler: Handler) -> web.StreamResponse:
        forwarded_for = request.headers.getall("X-Forwarded-For", [])
        if request.remote and forwarded_for:
            request = request.clone(remote=address_behind(proxies, request.remote, forwarded_for))
        return await handler(request)

    return [forwarded] if proxies else []


def _is_in(proxies: list[Network], address: str) -> bool:
    found = _parsed(address)
    return found is not None and any(found in network for network in proxies)


def _parsed(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """An IPv4 address that an IPv6 socket reports as `::ffff:192.0.2.7` is the IPv4 address."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
