"""The rules of an instance for outgoing connections beyond the public internet, and the check of a whole URL:
text, name, and every address of the name."""

import asyncio
import ipaddress
import socket
from collections.abc import Callable, Collection, Iterable

import attrs
from aiohttp.abc import AbstractResolver

from api_server.outbound.destinations import (
    LOCALHOST,
    Address,
    BlockedError,
    Destination,
    Network,
    is_own_address,
    literal_address,
    parse_destination,
    refusal,
    unwrapped,
)

NOT_ON_THE_LIST = "Requests to hosts and IP addresses not on the Allow List are denied"


@attrs.frozen
class AllowedNetwork:
    """The addresses of `network`, at one port or (None) at any."""

    network: Network
    port: int | None = None


@attrs.frozen
class AllowedDomain:
    """A host by its exact name in lower case, at one port or (None) at any."""

    name: str
    port: int | None = None


@attrs.frozen
class AllowList:
    """The hosts and networks of the setting `outbound_local_requests_whitelist`."""

    networks: tuple[AllowedNetwork, ...] = ()
    domains: tuple[AllowedDomain, ...] = ()

    @classmethod
    def parse(cls, entries: Iterable[str]) -> "AllowList":
        """Parse `192.0.2.1`, `192.0.2.0/24`, `[2001:db8::1]:8080`, `example.org`, `example.org:8080`.

        Raise ValueError, naming the first entry that is none of these.
        """
        parsed = [_entry(entry.strip()) for entry in entries if entry.strip()]
        return cls(
            tuple(entry for entry in parsed if isinstance(entry, AllowedNetwork)),
            tuple(entry for entry in parsed if isinstance(entry, AllowedDomain)),
        )

    def has_domain(self, destination: Destination) -> bool:
        """Return whether the host's name is listed, so that its addresses do not matter."""
        name = destination.host.removesuffix(".")
        return any(entry.name == name and entry.port in (None, destination.port) for entry in self.domains)

    def has_address(self, address: Address, port: int) -> bool:
        """Return whether the address is listed; an IPv4-mapped address counts as the IPv4 address."""
        address = unwrapped(address)
        return any(address in entry.network and entry.port in (None, port) for entry in self.networks)


@attrs.frozen
class Policy:
    """The rules that the instance's current settings define.

    `instance` is the service's own external URL: the same scheme, host and port may always be called.
    """

    instance: Destination | None = None
    allow_local_requests: bool = False
    deny_all_but_allowed: bool = False
    allow_list: AllowList = AllowList()
    is_own: Callable[[Address], bool] = is_own_address

    def trusts(self, destination: Destination) -> bool:
        """Return whether the destination is allowed by name, whatever it resolves to."""
        return destination == self.instance or self.allow_list.has_domain(destination)

    def check_name(self, destination: Destination) -> None:
        """Raise BlockedError for a name that always means this machine (RFC 6761 6.3)."""
        if self.trusts(destination) or self.allow_local_requests:
            return
        name = destination.host.removesuffix(".")
        if name == "localhost" or name.endswith(".localhost"):
            raise BlockedError(NOT_ON_THE_LIST if self.deny_all_but_allowed else LOCALHOST)

    def check_addresses(self, destination: Destination, addresses: Iterable[Address]) -> None:
        """Raise BlockedError if any of the addresses of `destination` may not be called."""
        if self.trusts(destination):
            return
        for address in addresses:
            if self.allow_list.has_address(address, destination.port):
                continue
            if self.deny_all_but_allowed:
                raise BlockedError(NOT_ON_THE_LIST)
            text = None if self.allow_local_requests else refusal(address, self.is_own)
            if text:
                raise BlockedError(text)


def _entry(text: str) -> AllowedNetwork | AllowedDomain:
    try:
        return AllowedNetwork(ipaddress.ip_network(text.strip("[]"), strict=False))
    except ValueError:
        pass
    host, colon, port_text = text.rpartition(":")
    if not colon:
        return _host_entry(text, None, text)
    if not port_text.isascii() or not port_text.isdigit() or not 0 < int(port_text) < 65536:
        raise ValueError(f"{text} is not an address, a network or a domain with an optional port")
    return _host_entry(host, int(port_text), text)


def _host_entry(host: str, port: int | None, text: str) -> AllowedNetwork | AllowedDomain:
    try:
        return AllowedNetwork(ipaddress.ip_network(host.strip("[]"), strict=False), port)
    except ValueError:
        pass
    try:
        name = host.lower().removesuffix(".").encode("idna").decode("ascii")
    except UnicodeError:
        name = ""
    if not name.replace("-", "").replace(".", "").replace("_", "").isalnum() or literal_address(name):
        raise ValueError(f"{text} is not an address, a network or a domain with an optional port")
    return AllowedDomain(name, port)


UNRESOLVABLE = "Host cannot be resolved or invalid"
RESOLVING_SECONDS = 10.0


@attrs.frozen
class CheckedUrl:
    """A URL that may be called now, at these addresses and no others.

    `addresses` is empty for a host that is allowed by name and does not currently resolve.
    """

    destination: Destination
    addresses: tuple[Address, ...]


async def check_url(
    url: str, policy: Policy, resolver: AbstractResolver, *, schemes: Collection[str]
) -> CheckedUrl:
    """Resolve the host of `url` and check all of it. Raise BlockedError with the text for the user."""
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
    """Return the reason why `url` may not be stored as one to call, in GitLab's words, or None. This resolves
    its name, so do not call it inside a transaction.

    A name that does not resolve yet is no reason: every connection is checked again.
    """
    try:
        await check_url(url, policy, resolver, schemes=schemes)
    except BlockedError as blocked:
        return None if str(blocked) == UNRESOLVABLE else str(blocked)
    return None


async def resolve(host: str, port: int, resolver: AbstractResolver) -> tuple[Address, ...]:
    """Return all addresses of a host, given as a name or an address. Raise BlockedError if there is none."""
    literal = literal_address(host)
    if literal is not None:
        return (literal,)
    try:
        async with asyncio.timeout(RESOLVING_SECONDS):
            results = await resolver.resolve(host, port, socket.AF_UNSPEC)
    except (OSError, UnicodeError, ValueError) as problem:  # TimeoutError is an OSError
        raise BlockedError(UNRESOLVABLE) from problem
    if not results:
        raise BlockedError(UNRESOLVABLE)
    return tuple(ipaddress.ip_address(result["host"]) for result in results)
