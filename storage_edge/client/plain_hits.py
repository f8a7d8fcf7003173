"""Hits that are answered without the ordinary reading of their requests: plain heads for what is in memory."""

import math
import time
from collections.abc import Callable

from common.client_settings import ClientSettings
from common.concurrency import Rates
from storage_edge.cache.answer import FromStore
from storage_edge.cache.at_hand import AtHand
from storage_edge.cache.cache import Cache
from storage_edge.client import access_log, memory_hits, plain_heads
from storage_edge.client.plain_heads import PlainHead
from storage_edge.client.who import FORWARDED_FOR, NOTHING, REQUEST_ID, Proxies, Said, Who
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest, Rules
from storage_edge.rules.cache_status import Outcome
from storage_edge.tiers.bodies import MemoryBody
from storage_edge.tiers.stored_responses import Rendered

_ACCEPT_ENCODING = b"accept-encoding"
_AGENT = b"user-agent"
_FORWARDED_FOR = FORWARDED_FOR.lower().encode()
_REQUEST_ID = REQUEST_ID.lower().encode()
_NO_BODY = MemoryBody(b"")


class PlainHits:
    """Answers plain heads (see `plain_heads`) from memory. What is no hit, or is not the same for everybody, goes the
    ordinary way: nobody is asked here, nothing is waited for, and nothing is remembered of a request.
    """

    def __init__(
        self,
        rules: Rules,
        metrics: Metrics,
        clock: Callable[[], float],
        proxies: Proxies,
        rates: Rates,
        settings: ClientSettings,
        *,
        logged: bool,
    ) -> None:
        self._rules = rules
        self._metrics = metrics
        self._clock = clock
        self._proxies = proxies
        self._rates = rates
        self._limits = settings.max_header_bytes, settings.max_headers
        self._logged = logged
        #: Set when the edge starts.
        self.cache: Cache | None = None
        #: How many have been answered.
        self.answered = 0

    def answer(self, data: bytes, peer: str) -> tuple[bytes, MemoryBody] | None:
        """What head and body to send for these bytes from `peer`, or None when they are no plain head, or it has no
        answer in memory now."""
        head = plain_heads.read(data, *self._limits)
        if head is None or self.cache is None:
            return None
        request = self._rules.read_plainly(head.method, head.target, head.value(_ACCEPT_ENCODING))
        rendered = None if request is None else self._rendered(request, self.cache.at_hand)
        if request is None or rendered is None:
            return None
        who: Who | None = None
        said = self._said(head)
        if self._logged or self._rates.is_on or said is not NOTHING:
            who = self._proxies.who(peer, said)
            if self._rates.wait(who.client, time.monotonic()):
                return None  # whoever is asked next refuses it
        request_id = self._proxies.new_id() if who is None else who.request_id
        first = rendered.head + request_id.encode() + memory_hits.END
        body = rendered.body if request.method == "GET" else _NO_BODY
        self._count(request, len(first) + body.length)
        if self._logged:
            size, agent = len(first) + body.length, head.value(_AGENT)
            access_log.write(who, head.method, head.target, 200, rendered.status, size, 0.0, agent)
        return first, body

    def _count(self, request: EdgeRequest, size: int) -> None:
        self.answered += 1
        self._metrics.answered(request.kind, Outcome.HIT)
        self._metrics.sent(200, size)

    def _rendered(self, request: EdgeRequest, at_hand: AtHand) -> Rendered | None:
        """The answer, the same until its Age is another; what it is about is looked up each time."""
        stored = at_hand.stored(request)
        if stored is None:
            return None
        now = self._clock()
        kept = stored.rendered.get(request.takes_gzip)
        if kept is None or not kept.since <= now < kept.until:
            answer = at_hand.answer(request, stored)
            if answer is None or answer.outcome is not Outcome.HIT or not memory_hits.is_plain(answer):
                return None
            kept = stored.rendered[request.takes_gzip] = _render(answer, now)
        at_hand.used(request)
        return kept

    def _said(self, head: PlainHead) -> Said:
        """What the head says of who it comes from, where there is anybody who would be believed."""
        fields = head.fields
        if not self._proxies.networks or not (_FORWARDED_FOR in fields or _REQUEST_ID in fields):
            return NOTHING
        way = head.value(_FORWARDED_FOR)
        return Said(() if way is None else (way,), head.value(_REQUEST_ID) or "")


def _render(answer: FromStore, now: float) -> Rendered:
    """How an answer leaves, with when that changes: at the next second of its Age, or when it becomes stale."""
    stored = answer.stored
    age, status = answer.age_and_status(now)
    seconds = stored.age(now)
    until = now + min(math.floor(seconds) + 1, stored.policy.lifetime) - seconds
    head = memory_hits.head(answer, age, status)
    return Rendered(head, memory_hits.body(answer), status, now, until)
