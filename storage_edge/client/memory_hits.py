"""Answering of hits from memory with one write: a head that was formatted once for the stored response, and its body.

Request heads for a whole object and nothing else are recognised by their bytes, because parsing a request costs most
of a hit. aiohttp would read them in the same way. Heads that two readers could understand differently are left to
aiohttp.
"""

import math
import time
from collections.abc import Callable
from typing import Final

import attrs
from aiohttp import ClientConnectionResetError, HttpVersion11, hdrs, web
from aiohttp.abc import AbstractStreamWriter

from common.client_settings import ClientSettings
from common.concurrency import Rates
from common.connections import is_host
from storage_edge.cache.answer import FromStore
from storage_edge.cache.cache import AtHand, Cache
from storage_edge.client import callers
from storage_edge.client.callers import (
    FORWARDED_FOR,
    NO_PROXY_FIELDS,
    REQUEST_ID,
    Caller,
    Proxies,
    ProxyFields,
)
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest, Rules
from storage_edge.rules.fields import Outcome
from storage_edge.storage.bodies import MemoryBody
from storage_edge.storage.stored_responses import Rendered

#: Fields, by lower-case name, that change neither the answer nor the connection, or that are read here. Each may
#: occur once. Conditions, ranges, directives, credentials, cookies, fields that announce a body or ask for another
#: protocol, and unknown fields are not among them.
HARMLESS: Final = frozenset(
    {
        b"accept",
        b"accept-charset",
        b"accept-encoding",
        b"accept-language",
        b"connection",
        b"device-memory",
        b"dnt",
        b"downlink",
        b"ect",
        b"from",
        b"host",
        b"origin",
        b"priority",
        b"referer",
        b"rtt",
        b"save-data",
        b"sec-ch-ua",
        b"sec-ch-ua-arch",
        b"sec-ch-ua-mobile",
        b"sec-ch-ua-platform",
        b"sec-fetch-dest",
        b"sec-fetch-mode",
        b"sec-fetch-site",
        b"sec-fetch-user",
        b"sec-gpc",
        b"upgrade-insecure-requests",
        b"user-agent",
        b"x-forwarded-for",
        b"x-forwarded-host",
        b"x-forwarded-proto",
        b"x-real-ip",
        b"x-request-id",
    }
)
_METHODS: Final = {b"GET": "GET", b"HEAD": "HEAD"}
_VISIBLE: Final = bytes(range(0x20, 0x7F))


@attrs.define(eq=False)
class PlainHead:
    """The content of a plain head. `fields` has values by lower-case name, with surrounding spaces. Instances never
    change, but freezing them is expensive when each request makes one."""

    method: str
    target: str
    fields: dict[bytes, bytes]

    def value(self, name: bytes) -> str | None:
        """Return a field's value, or None without the field."""
        value = self.fields.get(name)
        return None if value is None else value.strip(b" ").decode()


def read_plain_head(data: bytes, max_bytes: int, max_fields: int) -> PlainHead | None:
    """Return the parsed head if these bytes are exactly one plain head within the limits, otherwise None.

    A plain head is a GET or HEAD of HTTP/1.1 in origin form, on a connection that stays open, with one Host. It
    consists of visible ASCII and spaces, and its lines end with CRLF. No line is folded or incomplete.
    """
    if len(data) > max_bytes or not data.endswith(b"\r\n\r\n"):
        return None
    request_line, *lines, _, _ = data.split(b"\r\n")
    if len(lines) > max_fields or data.translate(None, _VISIBLE) != b"\r\n" * (len(lines) + 2):
        return None
    method, _, rest = request_line.partition(b" ")
    target, _, version = rest.partition(b" ")
    if method not in _METHODS or version != b"HTTP/1.1" or not target.startswith(b"/") or b"#" in target:
        return None
    fields = _fields(lines)
    return None if fields is None else PlainHead(_METHODS[method], target.decode(), fields)


def _fields(lines: list[bytes]) -> dict[bytes, bytes] | None:
    fields: dict[bytes, bytes] = {}
    for line in lines:  # an empty line, after which another request follows, has no name
        name, colon, value = line.partition(b":")
        name = name.lower()
        if name not in HARMLESS or name in fields or not colon:
            return None
        fields[name] = value
    connection = fields.get(b"connection")
    stays_open = connection is None or connection.strip(b" ").lower() == b"keep-alive"
    return fields if stays_open and is_host(fields.get(b"host", b"/").strip(b" ")) else None


#: Request fields that may lead to another answer than the whole body, or to more than one answer.
_SPECIAL: Final = (hdrs.RANGE, hdrs.IF_NONE_MATCH, hdrs.IF_MODIFIED_SINCE, hdrs.EXPECT, hdrs.UPGRADE)


def asks_plainly(http: web.Request, request: EdgeRequest) -> bool:
    """Return whether a request is for a whole object, without a token, on a connection that stays open."""
    return (
        request.method == "GET"
        and request.token is None
        and http.version == HttpVersion11
        and http.keep_alive
        and not any(name in http.headers for name in _SPECIAL)
    )


def is_plain(answer: FromStore) -> bool:
    """Return whether an answer is a whole body in memory, the same for all plain requests."""
    stored = answer.stored
    return (
        isinstance(stored.body, MemoryBody)
        and stored.status == 200
        and not answer.is_new
        and not stored.policy.hidden_fields
    )


def head_of_hit(answer: FromStore, age: str, status: str) -> bytes:
    """Return the head of an answer for which `is_plain` is true, up to the id of its request."""
    return b"%sAge: %b\r\nCache-Status: %b\r\nX-Request-Id: " % (
        answer.stored.head,
        age.encode(),
        status.encode(),
    )


END: Final = b"\r\n\r\n"


def body_of_hit(answer: FromStore) -> MemoryBody:
    """Return the body of such an answer."""
    body = answer.stored.body
    assert isinstance(body, MemoryBody)  # noqa: S101 - plain answers are in memory
    return body


class MemoryHit(web.StreamResponse):
    """An answer for which `is_plain` is true, to a plain request.

    aiohttp's own response would format every field again and, on Python < 3.12, copy the body behind the head, which
    is a third of the cost of a hit.
    """

    def __init__(self, answer: FromStore, age: str, status: str, request_id: str) -> None:
        super().__init__(headers={"Cache-Status": status})
        self._find_rendered = head_of_hit(answer, age, status) + request_id.encode() + END
        self._content = body_of_hit(answer)
        self._writer: AbstractStreamWriter | None = None

    @property
    def prepared(self) -> bool:
        """Whether the answer has been sent."""
        return self._writer is not None

    @property
    def keep_alive(self) -> bool:
        """True, since the connection stays open."""
        return True

    @property
    def body_length(self) -> int:
        """Bytes of head and body, as aiohttp counts them for the access log."""
        return len(self._find_rendered) + self._content.length

    async def prepare(self, request: web.BaseRequest) -> AbstractStreamWriter:
        """Send the whole answer. Raise `ConnectionError` if the client has disconnected."""
        if self._writer is None:
            if request.transport is None or request.transport.is_closing():
                raise ClientConnectionResetError
            self._writer = request.writer
            self._writer.output_size += self.body_length
            request.transport.writelines((self._find_rendered, self._content.data))
        return self._writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Wait until the client has received most of the answer."""
        assert self._writer is not None  # noqa: S101 - it was prepared before
        assert not data  # noqa: S101 - the body is known from the beginning
        await self._writer.drain()


_ACCEPT_ENCODING = b"accept-encoding"
_AGENT = b"user-agent"
_FORWARDED_FOR = FORWARDED_FOR.lower().encode()
_REQUEST_ID = REQUEST_ID.lower().encode()
_NO_BODY = MemoryBody(b"")


class PlainHits:
    """Answers to plain heads (see `PlainHead`) from memory. All other requests, and responses that are not the same for
    everybody, take the usual way. Nothing here waits, sends a request, or stores anything about a request."""

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
        #: The number of answered requests.
        self.answered = 0

    def answer(self, data: bytes, peer: str) -> tuple[bytes, MemoryBody] | None:
        """Return head and body to send for these bytes from `peer`, or None if they are no plain head or if there is
        no answer in memory."""
        head = read_plain_head(data, *self._limits)
        if head is None or self.cache is None:
            return None
        request = self._rules.read_plainly(head.method, head.target, head.value(_ACCEPT_ENCODING))
        rendered = None if request is None else self._find_rendered(request, self.cache.at_hand)
        if request is None or rendered is None:
            return None
        caller: Caller | None = None
        proxy_fields = self._proxy_fields(head)
        if self._logged or self._rates.is_on or proxy_fields is not NO_PROXY_FIELDS:
            caller = self._proxies.caller(peer, proxy_fields)
            if self._rates.wait(caller.client, time.monotonic()):
                return None  # the usual way refuses the request
        request_id = self._proxies.new_id() if caller is None else caller.request_id
        first = rendered.head + request_id.encode() + END
        body = rendered.body if request.method == "GET" else _NO_BODY
        self._count(request, len(first) + body.length)
        if self._logged:
            size, agent = len(first) + body.length, head.value(_AGENT)
            callers.log_request(caller, head.method, head.target, 200, rendered.status, size, 0.0, agent)
        return first, body

    def _count(self, request: EdgeRequest, size: int) -> None:
        self.answered += 1
        self._metrics.answered(request.kind, Outcome.HIT)
        self._metrics.sent(200, size)

    def _find_rendered(self, request: EdgeRequest, at_hand: AtHand) -> Rendered | None:
        """Return the formatted answer, which stays the same until its Age changes. The stored response is looked up
        each time."""
        stored = at_hand.stored(request)
        if stored is None:
            return None
        now = self._clock()
        rendered = stored.rendered.get(request.takes_gzip)
        if rendered is None or not rendered.since <= now < rendered.until:
            answer = at_hand.answer(request, stored)
            if answer is None or answer.outcome is not Outcome.HIT or not is_plain(answer):
                return None
            rendered = stored.rendered[request.takes_gzip] = _render(answer, now)
        at_hand.used(request)
        return rendered

    def _proxy_fields(self, head: PlainHead) -> ProxyFields:
        """Return the fields that name the client, if there are trusted proxies."""
        fields = head.fields
        if not self._proxies.networks or not (_FORWARDED_FOR in fields or _REQUEST_ID in fields):
            return NO_PROXY_FIELDS
        forwarded_for = head.value(_FORWARDED_FOR)
        return ProxyFields(() if forwarded_for is None else (forwarded_for,), head.value(_REQUEST_ID) or "")


def _render(answer: FromStore, now: float) -> Rendered:
    """Return the formatted answer and the moment when it changes: at the next second of its Age, or when it becomes
    stale."""
    stored = answer.stored
    age, status = answer.age_and_status(now)
    seconds = stored.age(now)
    until = now + min(math.floor(seconds) + 1, stored.policy.lifetime) - seconds
    head = head_of_hit(answer, age, status)
    return Rendered(head, body_of_hit(answer), status, now, until)
