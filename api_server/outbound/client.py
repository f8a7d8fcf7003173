"""The client session for all outgoing requests: each connection goes to a freshly checked address."""

import ipaddress
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult

from api_server.outbound.destinations import (
    HTTP_SCHEMES,
    BlockedError,
    Destination,
    literal_address,
    parse_destination,
)
from api_server.outbound.policy import UNRESOLVABLE, Policy
from api_server.services import Key, Services

#: Called for every new connection, because an administrator may change the settings at any time.
PolicySource = Callable[[], Awaitable[Policy]]


class CheckingResolver(AbstractResolver):
    """Resolves names with `inner` and lets only allowed addresses through.

    The connector connects to exactly the addresses returned here, so a name whose address has changed since
    it was saved (DNS rebinding) is detected, and the address cannot change between this check and the
    connection.
    """

    def __init__(self, policy: PolicySource, inner: AbstractResolver) -> None:
        self._policy = policy
        self._inner = inner

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return the addresses of `host`. Raise BlockedError if any of them is not allowed."""
        policy = await self._policy()
        name = host.lower()
        destination = _own_or_other(policy, name, port)
        policy.check_name(destination)
        results = await self._inner.resolve(host, port, family)
        if not results:
            raise BlockedError(UNRESOLVABLE)
        policy.check_addresses(destination, [ipaddress.ip_address(result["host"]) for result in results])
        return results

    async def close(self) -> None:
        """Close the inner resolver."""
        await self._inner.close()


def create_session(
    policy: PolicySource, resolver: AbstractResolver, *, timeout: aiohttp.ClientTimeout, user_agent: str
) -> aiohttp.ClientSession:
    """Return the session for outgoing requests, which raise BlockedError if `policy` refuses.

    It keeps no cookies and reads no proxy from the environment. Callers pass a `written_url`, and
    `allow_redirects=False`; a redirect that is followed nevertheless is checked like a first request, and its
    URL is used exactly as written.
    """
    connector = aiohttp.TCPConnector(
        resolver=CheckingResolver(policy, resolver),
        use_dns_cache=False,
        family=socket.AF_UNSPEC,
        limit=0,  # bulk senders limit themselves, for each receiver
    )

    async def check_text_and_literal(
        request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        """Check what the connector does not pass to its resolver: the URL's text, and a host that is an
        address."""
        destination = parse_destination(str(request.url), HTTP_SCHEMES)
        address = literal_address(destination.host)
        if address is not None:
            (await policy()).check_addresses(destination, [address])
        return await send(request)

    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=(check_text_and_literal,),
        requote_redirect_url=False,
        timeout=timeout,
        headers={"User-Agent": user_agent},
        trust_env=False,
    )


def _own_or_other(policy: Policy, host: str, port: int) -> Destination:
    """Return the destination. The connector does not tell the scheme, so host and port of the instance mean
    the instance."""
    instance = policy.instance
    if instance is not None and (instance.host, instance.port) == (host, port):
        return instance
    return Destination("", host, port)


#: Set by tests; by default names are resolved as on this machine.
RESOLVER = Key[AbstractResolver]("resolver")
OUTGOING_SESSION = Key[aiohttp.ClientSession]("outgoing_session")
#: Returns what is currently allowed; `check_url` and every new connection call it.
OUTGOING_POLICY = Key[PolicySource]("outgoing_policy")

#: Deliveries are small, so a receiver that takes longer (in seconds) is slow.
TIMEOUT = aiohttp.ClientTimeout(total=30, connect=10)
USER_AGENT = "forgelet"


async def outgoing_session(services: Services) -> AsyncIterator[None]:
    """Open the session under the application's OUTGOING_POLICY, and close it with the application."""
    resolver = services.get(RESOLVER) or aiohttp.ThreadedResolver()
    services[RESOLVER] = resolver

    async with create_session(
        services[OUTGOING_POLICY], resolver, timeout=TIMEOUT, user_agent=USER_AGENT
    ) as session:
        services[OUTGOING_SESSION] = session
        yield
