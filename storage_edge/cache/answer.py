"""The cache's answer to a request: a stored response in one representation, a response of the origin, or nothing.

Text in memory is compressed when a client that accepts gzip first asks for it, and the result is kept beside it.
Private responses are never compressed: the compressed size of a secret together with text that an attacker chooses
reveals the secret (BREACH).
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import attrs
from multidict import CIMultiDictProxy

from common import http_fields
from storage_edge.cache.origin import OriginResponse
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import coding, fields, selection
from storage_edge.rules.fields import Outcome
from storage_edge.settings import Settings
from storage_edge.storage.bodies import MemoryBody, Reader
from storage_edge.storage.spool import Spool
from storage_edge.storage.stored_responses import StoredResponse


@attrs.define(eq=False)
class FromStore:
    """An answer with a response that is stored or being stored. `reader` is open and must be closed. Instances never
    change, but freezing them would add a tenth to the cost of a hit."""

    stored: StoredResponse
    outcome: Outcome
    reader: Reader
    is_new: bool = False

    def age_and_status(self, now: float) -> tuple[str, str]:
        """Return the values of Age and Cache-Status, which change at the same moments. `now` is in seconds since
        1970."""
        age = int(self.stored.age(now))
        ttl = None if self.is_new or self.stored.private else int(self.stored.policy.lifetime) - age
        return str(age), fields.cache_status(self.outcome, stored=self.is_new, ttl=ttl)


@attrs.frozen
class FromOrigin:
    """An answer with a response of the origin that is not stored. It must be read or closed."""

    response: OriginResponse
    outcome: Outcome


@attrs.frozen
class Missing:
    """No answer, because nothing is stored and the request has `only-if-cached` (RFC 9111 section 5.2.1.7)."""

    outcome: Outcome = Outcome.ONLY_IF_CACHED


Answer = FromStore | FromOrigin | Missing


def hit(stored: StoredResponse, age: float) -> Outcome:
    if isinstance(stored.body, Spool) and not stored.body.finished:
        return Outcome.COLLAPSED
    return Outcome.HIT if age < stored.policy.lifetime else Outcome.STALE


def from_store(stored: StoredResponse, outcome: Outcome, *, is_new: bool = False) -> FromStore:
    return FromStore(stored, outcome, stored.body.open(), is_new)


def differ(stored: StoredResponse, new: StoredResponse) -> bool:
    """Return whether a validation changed more than the time of the answer."""
    return any(
        stored.headers.getall(name, []) != new.headers.getall(name, [])
        for name in {*stored.headers, *new.headers} - {"Date", "Age"}
    )


def may_select(stored: StoredResponse, request: EdgeRequest) -> bool:
    """Return whether a stored response may answer the request. Responses other than 200 may depend on the caller, so
    requests with a token do not get them."""
    return request.token is None or stored.status == 200


def may_join(stored: StoredResponse, request: EdgeRequest) -> bool:
    """Return whether a response to another request that is just arriving may answer this one, too."""
    return may_select(stored, request) and selection.matches(stored.selected, request.forwarded)


GZIP: Final = "gzip"
#: The number of bodies that wait for compression. Further bodies are sent as they are.
MAX_WAITING: Final = 16
#: A compressed body that is larger than this share of the original is not used: clients would decode it for little.
MAX_COMPRESSED_PART: Final = 0.9


class Representations:
    """The choice of representations, and their compression in a thread of its own. `weigh` is called with a target
    whose memory has grown."""

    def __init__(self, settings: Settings, metrics: Metrics, weigh: Callable[[str], None]) -> None:
        self._settings = settings
        self._metrics = metrics
        self._weigh = weigh
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compression")
        self._under_way: dict[MemoryBody, asyncio.Task[None]] = {}

    async def aclose(self) -> None:
        """Wait for running compressions."""
        while self._under_way:
            await asyncio.wait(self._under_way.values())
        self._worker.shutdown()

    def at_hand(self, request: EdgeRequest, answer: FromStore) -> FromStore | None:
        """Return the representation for a request without conditions, or None if it must be created first."""
        if not answer.stored.is_public_text:  # first, because every hit from memory calls this
            return answer
        body = self._text(request, answer.stored)
        if body is None:
            return answer
        if not request.takes_gzip:
            return _as_it_is(answer)
        return _compressed(answer, body.coded[GZIP]) if GZIP in body.coded else None

    async def chosen(self, request: EdgeRequest, answer: FromStore) -> FromStore:
        """Return the representation for a request. If the request has conditions, it is the one to which they refer,
        so that a 304 or a part is right (RFC 9110 sections 13.1.2 and 13.1.5). Parts always belong to the
        representation of the first answer."""
        body = self._text(request, answer.stored)
        if body is None:
            return _as_it_is(answer) if self._may_become_text(request, answer.stored) else answer
        if not request.takes_gzip or answer.is_new or _wants_plain(request, answer.stored):
            return _as_it_is(answer)
        if GZIP not in body.coded:
            await self._compress(answer.stored.target, body)
        return _compressed(answer, body.coded.get(GZIP))

    def announce(self, request: EdgeRequest, response: OriginResponse) -> None:
        """Announce in the answer to HEAD that a public body, which is not stored, may have two representations, as
        GET would."""
        if coding.is_text(response.status, response.headers) and self._may_become(request, response.length):
            response.headers = CIMultiDictProxy(coding.varying(response.headers))

    def _text(self, request: EdgeRequest, stored: StoredResponse) -> MemoryBody | None:
        """Return the body if it has two representations."""
        minimum = self._settings.compress_from
        body = stored.body
        if not minimum or not isinstance(body, MemoryBody) or body.length < minimum:
            return None
        if 2 * body.length > self._settings.memory_bytes:
            return None  # there is not enough memory for both
        return body if request.token is None and stored.is_public_text else None

    def _may_become_text(self, request: EdgeRequest, stored: StoredResponse) -> bool:
        """Return whether a body that is not in memory yet may have two representations there."""
        if isinstance(stored.body, MemoryBody) or not stored.is_public_text:
            return False
        return self._may_become(request, stored.body.length)

    def _may_become(self, request: EdgeRequest, length: int | None) -> bool:
        minimum = self._settings.compress_from
        if not minimum or request.token is not None:
            return False
        return length is None or minimum <= length <= self._settings.memory_object_bytes

    async def _compress(self, target: str, body: MemoryBody) -> None:
        task = self._under_way.get(body)
        if task is None:
            if len(self._under_way) >= MAX_WAITING:
                self._metrics.compressed("busy")
                return
            task = self._under_way[body] = asyncio.create_task(self._make(target, body))
            task.add_done_callback(lambda _: self._under_way.pop(body, None))
        await asyncio.shield(task)

    async def _make(self, target: str, body: MemoryBody) -> None:
        data = await asyncio.get_running_loop().run_in_executor(self._worker, coding.compress, body.data)
        is_worth_it = len(data) <= MAX_COMPRESSED_PART * body.length
        body.coded[GZIP] = MemoryBody(data) if is_worth_it else None
        self._metrics.compressed("done" if is_worth_it else "useless")
        self._weigh(target)


def _wants_plain(request: EdgeRequest, stored: StoredResponse) -> bool:
    tag = stored.headers.get("ETag")
    if tag is not None and http_fields.names_tag(request.has, coding.tag(tag)):
        return False
    return request.is_ranged or (tag is not None and http_fields.names_tag(request.has, tag))


def _as_it_is(answer: FromStore) -> FromStore:
    return FromStore(answer.stored.varying, answer.outcome, answer.reader, answer.is_new)


def _compressed(answer: FromStore, body: MemoryBody | None) -> FromStore:
    if body is None:
        return _as_it_is(answer)
    return FromStore(answer.stored.compressed(body), answer.outcome, body, answer.is_new)
