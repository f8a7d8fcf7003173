"""Who asks, and under which id: what proxies that the operator trusts say of that."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import attrs
from aiohttp import web

from common.client_address import Network, is_in, networks, one_client, way_of
from storage_edge.rules.cache_status import CACHE_NAME

REQUEST_ID: Final = "X-Request-Id"
FORWARDED_FOR: Final = "X-Forwarded-For"
#: Whose requests a request is part of (RFC 8586).
CDN_LOOP: Final = "CDN-Loop"
#: As the service takes one, so that one request has one id in all logs.
_SENT_ID = re.compile(r"[\w.-]{8,64}", re.ASCII)


@attrs.define(eq=False)
class Who:
    """`address` is the client's, `client` what limits by address count it as, `way` all addresses up to the peer's,
    `loop` whose requests its own is part of. It never changes, but freezing is dear where each request makes one.
    """

    address: str
    way: tuple[str, ...]
    request_id: str
    loop: str = ""

    @property
    def client(self) -> str:
        """What limits by address count: of IPv6 the network."""
        return one_client(self.address)

    def fields(self) -> dict[str, str]:
        """What the origin is told of it, by lower-case name."""
        told = {REQUEST_ID.lower(): self.request_id}
        if self.address:
            told[FORWARDED_FOR.lower()] = ", ".join(self.way)
        if self.loop:
            told[CDN_LOOP.lower()] = self.loop
        return told


@attrs.frozen
class Said:
    """What a request says of who it comes from; it is believed where the peer is a trusted proxy."""

    forwarded_for: tuple[str, ...] = ()
    request_id: str = ""
    loop: str = ""

    @classmethod
    def by(cls, headers: "Mapping[str, str]") -> "Said":
        """Reads the fields of a request."""
        if FORWARDED_FOR not in headers and REQUEST_ID not in headers and CDN_LOOP not in headers:
            return NOTHING
        loop = ", ".join(_all(headers, CDN_LOOP))
        return cls(tuple(_all(headers, FORWARDED_FOR)), headers.get(REQUEST_ID, ""), loop)


NOTHING: Final = Said()


class Proxies:
    """The proxies that are believed. Requests without an id of theirs get one of ours: `random_bytes`, unlike those of
    any other process, and a number; they are no secret. `name` is how this process knows its own requests again.
    """

    def __init__(self, trusted: Iterable[str], random_bytes: Callable[[int], bytes]) -> None:
        self._ours = random_bytes(8).hex()
        self._numbers = itertools.count(1)
        self.name = f"{CACHE_NAME}; id={random_bytes(8).hex()}"
        self.trust(trusted)

    def trust(self, trusted: Iterable[str]) -> None:
        """From now on these addresses and networks are."""
        self.networks: list[Network] = networks(trusted)

    def new_id(self) -> str:
        """For a request that has none."""
        return f"{self._ours}-{next(self._numbers):x}"

    def who(self, peer: str, said: Said) -> Who:
        """Who asks that has come from `peer`."""
        if said is NOTHING:
            return Who(peer, (peer,), self.new_id())
        loop = f"{said.loop}, {self.name}" if said.loop else ""
        if not is_in(self.networks, peer):
            return Who(peer, (peer,), self.new_id(), loop)
        way = tuple(way_of(self.networks, peer, list(said.forwarded_for)))
        id_ = said.request_id if _SENT_ID.fullmatch(said.request_id) else self.new_id()
        return Who(way[0], way, id_, loop)


WHO = web.RequestKey("who", Who)


def _all(headers: Mapping[str, str], name: str) -> list[str]:
    found: list[str] = headers.getall(name, [])  # type: ignore[attr-defined]
    return found
