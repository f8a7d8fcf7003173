"""The check of a whole URL: its text, its name and every address that the name resolves to."""

import asyncio
import ipaddress
import socket
from collections.abc import Collection

import attrs
from aiohttp.abc import AbstractResolver

from api_server.outbound.addresses import Address, literal_address
from api_server.outbound.destinations import BlockedError, Destination, parse_destination
from api_server.outbound.policy import Policy

UNRESOLVABLE = "Host cannot be resolved or invalid"
RESOLVING_TAKES_AT_MOST = 10.0  # seconds


@attrs.frozen
class CheckedUrl:
    """A URL that may be called now, at these addresses and no others.

    `addresses` is empty for a host that is allowed by name and does not resolve at the moment.
    """

    destination: Destination
    addresses: tuple[Address, ...]


async def check_url(
    url: str, policy: Policy, resolver: AbstractResolver, *, schemes: Collection[str]
) -> CheckedUrl:
    """Resolve the host of `url` and check all of it; raises BlockedError with the text for the user."""
    destination = parse_destination(url, schemes)
    policy.check_name(destination)
    try:
        addresses = await resolve(destination.host, destination.port, resolver)
    except BlockedError:
        if not policy.trusts(destination):
            raise
        return CheckedUrl(destination, ())
    policy.check_addresses(destination, addresses)
    return CheckedUrl(destination, addresses)


async def why_blocked(
    url: str, policy: Policy, resolver: AbstractResolver, *, schemes: Collection[str]
) -> str | None:
    """Why `url` may not be stored as one to call, in GitLab's words, or None. Resolves its name, so not for inside a
    transaction.

    A name that does not resolve yet is no reason: every connection is checked again.
    """
    try:
        await check_url(url, policy, resolver, schemes=schemes)
    except BlockedError as blocked:
        return None if str(blocked) == UNRESOLVABLE else str(blocked)
    return None


async def resolve(host: str, port: int, resolver: AbstractResolver) -> tuple[Address, ...]:
    """All addresses of a host, names and literals alike; raises BlockedError when there is none."""
    literal = literal_address(host)
    if literal is not None:
        return (literal,)
    try:
        async with asyncio.timeout(RESOLVING_TAKES_AT_MOST):
            results = await resolver.resolve(host, port, socket.AF_UNSPEC)
    except (OSError, UnicodeError, ValueError) as problem:  # TimeoutError is an OSError
        raise BlockedError(UNRESOLVABLE) from problem
    if not results:
        raise BlockedError(UNRESOLVABLE)
    return tuple(ipaddress.ip_address(result["host"]) for result in results)
