"""The client and id of each request, also from the fields of trusted proxies, and the access log."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs
from aiohttp import web
from aiohttp.abc import AbstractAccessLogger

from common.client_address import Network, hops_of, is_in, networks, one_client
from common.logs import AccessLines
from common.operations import ROUTES
from storage_edge.rules.fields import CACHE_NAME

REQUEST_ID: Final = "X-Request-Id"
FORWARDED_FOR: Final = "X-Forwarded-For"
#: The field that names the proxies that a request has passed (RFC 8586).
CDN_LOOP: Final = "CDN-Loop"
#: The paths that Prometheus and the service itself request again and again.
_HEALTH_CHECKS: Final = (*ROUTES, "/-/status")
#: The same form that the service accepts, so that a request has the same id in all logs.
_REQUEST_ID_FORM = re.compile(r"[\w.-]{8,64}", re.ASCII)


@attrs.define(eq=False)
class Caller:
    """The client of a request. `address` is its address, `hops` all addresses up to the peer's, and `loop` the value
    of CDN-Loop. Instances never change, but freezing them is expensive when each request makes one."""

    address: str
    hops: tuple[str, ...]
    request_id: str
    loop: str = ""

    @property
    def client(self) -> str:
        """The key for limits per address: for IPv6, the network."""
        return one_client(self.address)

    def fields(self) -> dict[str, str]:
        """Return the fields that tell the origin about the client, by lower-case name."""
        fields = {REQUEST_ID.lower(): self.request_id}
        if self.address:
            fields[FORWARDED_FOR.lower()] = ", ".join(self.hops)
        if self.loop:
            fields[CDN_LOOP.lower()] = self.loop
        return fields


@attrs.frozen
class ProxyFields:
    """The fields of a request that name its client. They are used if the peer is a trusted proxy."""

    forwarded_for: tuple[str, ...] = ()
    request_id: str = ""
    loop: str = ""

    @classmethod
    def by(cls, headers: "Mapping[str, str]") -> "ProxyFields":
        """Read the fields of a request."""
        if FORWARDED_FOR not in headers and REQUEST_ID not in headers and CDN_LOOP not in headers:
            return NO_PROXY_FIELDS
        loop = ", ".join(_all(headers, CDN_LOOP))
        return cls(tuple(_all(headers, FORWARDED_FOR)), headers.get(REQUEST_ID, ""), loop)


NO_PROXY_FIELDS: Final = ProxyFields()


class Proxies:
    """The trusted proxies. Requests without an id get one: `random_bytes`, which identify this process, and a number;
    ids are no secret. By its `name`, this process recognises its own requests."""

    def __init__(self, trusted: Iterable[str], random_bytes: Callable[[int], bytes]) -> None:
        self._id_prefix = random_bytes(8).hex()
        self._numbers = itertools.count(1)
        self.name = f"{CACHE_NAME}; id={random_bytes(8).hex()}"
        self.trust(trusted)

    def trust(self, trusted: Iterable[str]) -> None:
        """Trust these addresses and networks from now on."""
        self.networks: list[Network] = networks(trusted)

    def new_id(self) -> str:
        """Return a new id for a request that has none."""
        return f"{self._id_prefix}-{next(self._numbers):x}"

    def caller(self, peer: str, received: ProxyFields) -> Caller:
        """Return the client of a request from `peer`."""
        if received is NO_PROXY_FIELDS:
            return Caller(peer, (peer,), self.new_id())
        loop = f"{received.loop}, {self.name}" if received.loop else ""
        if not is_in(self.networks, peer):
            return Caller(peer, (peer,), self.new_id(), loop)
        hops = tuple(hops_of(self.networks, peer, list(received.forwarded_for)))
        id_ = received.request_id if _REQUEST_ID_FORM.fullmatch(received.request_id) else self.new_id()
        return Caller(hops[0], hops, id_, loop)


CALLER = web.RequestKey("caller", Caller)


def _all(headers: Mapping[str, str], name: str) -> list[str]:
    values: list[str] = headers.getall(name, [])  # type: ignore[attr-defined]
    return values


log = AccessLines("storage_edge.access")

#: The length of a logged User-Agent.
AGENT_LENGTH = 200


def log_request(
    caller: Caller | None,
    method: str,
    target: str,
    status: int,
    cache: str | None,
    body_bytes: int,
    seconds: float,
    agent: str | None,
) -> None:
    """Log the line about one answered request."""
    log(
        {
            "client": None if caller is None else caller.address,
            "method": method,
            "target": target,
            "status": status,
            "cache": cache,
            "bytes": body_bytes,
            "seconds": round(seconds, 6),
            "request_id": None if caller is None else caller.request_id,
            "agent": None if agent is None else agent[:AGENT_LENGTH],
        }
    )


class AccessLog(AbstractAccessLogger):
    """A log of the requests that aiohttp has read, except successful health checks."""

    def log(self, request: web.BaseRequest, response: web.StreamResponse, time: float) -> None:
        """Log a request. `time` is the seconds since it arrived."""
        if response.status == 200 and request.path in _HEALTH_CHECKS:
            return
        log_request(
            request.get(CALLER),
            request.method,
            request.raw_path,
            response.status,
            response.headers.get("Cache-Status"),
            response.body_length,
            time,
            request.headers.get("User-Agent"),
        )
