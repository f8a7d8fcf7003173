"""Hits from memory leave in one write: a head that was rendered once for the stored response, and its body."""

import time
from collections.abc import Callable
from typing import Final

import attrs
from aiohttp import ClientConnectionResetError, HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter
from multidict import CIMultiDictProxy

from common.rates import Rates
from storage_edge.cache.answer import FromStore
from storage_edge.cache.cache import Cache
from storage_edge.client import access_log
from storage_edge.client.who import NOTHING, Proxies, Said, Who
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest
from storage_edge.tiers.bodies import MemoryBody

#: Request fields that may lead to another answer than the whole body, or to more than one answer.
_SPECIAL: Final = (hdrs.RANGE, hdrs.IF_NONE_MATCH, hdrs.IF_MODIFIED_SINCE, hdrs.EXPECT, hdrs.UPGRADE)
#: Longest request head that is remembered, in bytes, and how many are.
MAX_HEAD: Final = 1024
MAX_HEADS: Final = 4096


def asks_plainly(http: web.Request, request: EdgeRequest) -> bool:
    """Whether a request is for a whole object, without a token, on a connection that stays open."""
    return (
        request.method == "GET"
        and request.token is None
        and http.version == HttpVersion11
        and http.keep_alive
        and not any(name in http.headers for name in _SPECIAL)
    )


def is_plain(answer: FromStore) -> bool:
    """Whether an answer is a whole body in memory, the same for everybody who asks plainly."""
    stored = answer.stored
    return (
        isinstance(stored.body, MemoryBody)
        and stored.status == 200
        and not answer.is_new
        and not stored.policy.hidden_fields
    )


def _parts(answer: FromStore, age: str, status: str, request_id: str) -> tuple[bytes, MemoryBody]:
    """The head and the body of an answer that `is_plain`."""
    body = answer.stored.body
    assert isinstance(body, MemoryBody)  # noqa: S101 - plain answers are in memory
    rest = f"X-Request-Id: {request_id}\r\nAge: {age}\r\nCache-Status: {status}\r\n\r\n"
    return answer.stored.head + rest.encode(), body


class MemoryHit(web.StreamResponse):
    """An answer that `is_plain` to a `request` that was asked plainly.

    aiohttp's own response builds and serializes every field anew and copies the body behind the head on
    Python < 3.12, which is a third of what a hit costs.
    """

    def __init__(
        self, request: EdgeRequest, answer: FromStore, age: str, status: str, request_id: str
    ) -> None:
        super().__init__(headers={"Cache-Status": status})
        self.request = request
        self._rendered, self._content = _parts(answer, age, status, request_id)
        self._writer: AbstractStreamWriter | None = None

    @property
    def prepared(self) -> bool:
        """Whether it has been sent."""
        return self._writer is not None

    @property
    def keep_alive(self) -> bool:
        """The connection stays open."""
        return True

    @property
    def body_length(self) -> int:
        """Bytes of head and body, as aiohttp counts them for the access log."""
        return len(self._rendered) + self._content.length

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Sends all of it; raises ConnectionError when the client has gone."""
        if self._writer is None:
            if request.transport is None or request.transport.is_closing():
                raise ClientConnectionResetError
            self._writer = request.writer
            self._writer.output_size += self.body_length
            request.transport.writelines((self._rendered, self._content.data))
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Waits until the client has taken most of it."""
        assert self._writer is not None  # noqa: S101 - prepared before
        assert not data  # noqa: S101 - the body is known from the beginning
        await self._writer.drain()


@attrs.define(eq=False)
class _Known:
    """What a head asks for, and what it says of who asks."""

    request: EdgeRequest
    said: Said
    agent: str | None


class RepeatedHits:
    """Answers request heads that have been answered plainly before.

    The same bytes are the same request, so nothing of it has to be read again; what answers it is looked up each time.
    CI jobs and package managers repeat their heads to the byte, browsers do so for one object.
    """

    def __init__(
        self,
        metrics: Metrics,
        clock: Callable[[], float],
        proxies: Proxies,
        rates: Rates,
        *,
        logged: bool,
    ) -> None:
        self._metrics = metrics
        self._clock = clock
        self._proxies = proxies
        self._rates = rates
        self._logged = logged
        self._known: dict[bytes, _Known] = {}
        #: Set when the edge starts.
        self.cache: Cache | None = None

    def __len__(self) -> int:
        """How many heads are remembered."""
        return len(self._known)

    def learn(self, head: bytes, request: EdgeRequest, headers: CIMultiDictProxy[str]) -> None:
        """Remembers what a head asks for, plainly; the oldest are forgotten."""
        if len(head) <= MAX_HEAD:
            self._known[head] = _Known(request, Said.by(headers), headers.get(hdrs.USER_AGENT))
            if len(self._known) > MAX_HEADS:
                del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Requests are read by other rules from now on."""
        self._known.clear()

    def answer(self, data: bytes, peer: str) -> tuple[bytes, MemoryBody] | None:
        """What head and body to send for these bytes from `peer`, or None when they are not known or have no plain
        answer now."""
        known = self._known.get(data)
        if known is None or self.cache is None:
            return None
        request = known.request
        answer = self.cache.at_hand(request)
        if answer is None or not is_plain(answer):
            return None
        who: Who | None = None
        if self._logged or self._rates.is_on or known.said is not NOTHING:
            who = self._proxies.who(peer, known.said)
            if self._rates.wait(who.client, time.monotonic()):
                return None  # whoever is asked next refuses it
        age, status = answer.age_and_status(self._clock())
        head, body = _parts(answer, age, status, self._proxies.new_id() if who is None else who.request_id)
        size = len(head) + body.length
        self._metrics.answered(request.kind, answer.outcome)
        self._metrics.sent(200, size)
        if self._logged:
            target = data.split(b" ", 2)[1].decode(errors="replace")
            access_log.write(who, "GET", target, 200, status, size, 0.0, known.agent)
        return head, body
