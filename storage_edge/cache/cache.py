"""The cache itself, which gets the answer to a request from storage, from a running fetch, or from the origin."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import cachetools

from storage_edge.cache.answer import (
    Answer,
    FromOrigin,
    FromStore,
    Missing,
    Representations,
    differ,
    from_store,
    hit,
    may_join,
    may_select,
)
from storage_edge.cache.fetching import Failed, Fetch, Fetcher, Fetches, FetchResult, Storable, Unshared
from storage_edge.cache.origin import STOPPED, Origin, OriginBusy, OriginError, OriginResponse
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import freshness, selection
from storage_edge.rules.fields import Outcome
from storage_edge.rules.freshness import Reuse
from storage_edge.settings import Settings
from storage_edge.storage.bodies import BodyGoneError, MemoryBody
from storage_edge.storage.purges import Purge
from storage_edge.storage.store import Store
from storage_edge.storage.stored_responses import StoredResponse

#: Maximum number of entries; the oldest ones are removed.
REMEMBERED = 65_536


class Grants:
    """A record of the origin's 304 answers, by user's token, target and entity tag. `clock` returns seconds since
    1970."""

    def __init__(self, settings: Settings, clock: Callable[[], float]) -> None:
        self._settings = settings
        self._clock = clock
        self._granted_tags: cachetools.LRUCache[tuple[str, bytes], tuple[str, float]] = cachetools.LRUCache(
            REMEMBERED
        )

    def has(self, request: EdgeRequest, tag: str) -> bool:
        """Return whether the origin's last 304 is recent enough, so that it need not be asked."""
        granted_tag, until = self._granted_tags.get(_key(request), ("", 0.0))
        return granted_tag == tag and 0 < until - self._clock() <= self._settings.private_grace

    def add(self, request: EdgeRequest, tag: str) -> None:
        """Record that the origin has just answered 304."""
        if self._settings.private_grace > 0:
            self._granted_tags[_key(request)] = tag, self._clock() + self._settings.private_grace

    def clear(self) -> None:
        """Remove all entries, so that the origin is asked again for everybody."""
        self._granted_tags.clear()


def _key(request: EdgeRequest) -> tuple[str, bytes]:
    return request.uri, hashlib.sha256((request.token or "").encode()).digest()


@attrs.frozen
class AtHand:
    """The answers that are in memory. `clock` returns seconds since 1970."""

    store: Store
    fetches: Fetches
    representations: Representations
    clock: Callable[[], float]

    def stored(self, request: EdgeRequest) -> StoredResponse | None:
        """Return the response that a request selects, unless a running fetch may bring a newer one or a purge
        concerns it."""
        self.store.catch_up()
        if self.fetches.get(request.uri) is not None:
            return None
        return self.store.memory.find(request.uri, request.forwarded)

    def answer(self, request: EdgeRequest, stored: StoredResponse) -> FromStore | None:
        """Return the answer with `stored` to a request without a token, if it is public and need not be validated."""
        if stored.private or not isinstance(stored.body, MemoryBody):
            return None
        age = stored.age(self.clock())
        if freshness.decide_reuse(stored.policy, age, request.directives) is not Reuse.USE:
            return None
        return self.representations.at_hand(request, from_store(stored, hit(stored, age)))

    def used(self, request: EdgeRequest) -> None:
        """Record that a stored response has answered a request."""
        self.store.used(request.uri)


if TYPE_CHECKING:
    from storage_edge.storage.shared import SharedTier


class Cache:
    """The cache's answers to GET and HEAD for static objects. `clock` returns seconds since 1970."""

    def __init__(
        self,
        origin: Origin,
        store: Store,
        settings: Settings,
        clock: Callable[[], float],
        metrics: Metrics,
        shared: "SharedTier | None" = None,
    ) -> None:
        self._store = store
        self._options = settings
        self._clock = clock
        self._representations = Representations(settings, metrics, store.memory.weigh)
        self._fetches = Fetches()
        self._shared = shared
        self.at_hand = AtHand(store, self._fetches, self._representations, clock)
        self._fetcher = Fetcher(origin, store, self._fetches, settings, clock, metrics, shared)
        self._grants = Grants(settings, clock)
        store.on_purge(self._obey)

    async def settled(self) -> None:
        """Wait until everything that is being stored is stored."""
        await self._fetches.settled()
        await self._store.unsaved.flush()
        if self._shared is not None:
            await self._shared.settled()

    async def aclose(self) -> None:
        """End all running work."""
        await self._fetches.close()
        await self._representations.aclose()
        if self._shared is not None:
            await self._shared.close()

    async def answer(self, request: EdgeRequest) -> Answer:
        """Return the answer to one request. Raise `OriginError` if there is none."""
        for _ in range(2):
            stored = await self._find(request)
            try:
                return await self._represented(request, await self._answer(request, stored))
            except BodyGoneError:  # another request may have noticed this before, and fetched the body again
                if stored is not None:
                    await self._store.remove(stored)
        return await self._represented(request, await self._alone(request))

    async def _represented(self, request: EdgeRequest, answer: Answer) -> Answer:
        if isinstance(answer, FromOrigin) and self._fetcher.tells_of_public(request, answer.response):
            self._representations.announce(request, answer.response)
        if not isinstance(answer, FromStore):
            return answer
        if not answer.is_new:
            self._store.used(request.uri)
        if not answer.stored.is_public_text:
            return answer
        try:
            return await self._representations.chosen(request, answer)
        except BaseException:
            answer.reader.close()
            raise

    async def _alone(self, request: EdgeRequest) -> Answer:
        """Fetch for this request alone, after the stored or arriving response of others has disappeared twice."""
        if request.directives.only_if_cached:
            return Missing()
        if request.method == "HEAD":
            return await self._head(request, None)
        return await self._lead(request, self._start(request, None), None)

    async def _find(self, request: EdgeRequest) -> StoredResponse | None:
        """Return the response for a request that is stored or being stored."""
        self._store.catch_up()
        stored = self._arriving(request) or self._store.memory.find(request.uri, request.forwarded)
        if stored is None:
            stored = await self._store.find(request.uri, request.forwarded)
            stored = self._arriving(request) or stored
        return None if stored is None or not may_select(stored, request) else stored

    def _arriving(self, request: EdgeRequest) -> StoredResponse | None:
        """Return the response that a running fetch is receiving, which is newer than a stored one, or None."""
        fetch = self._fetches.get(request.uri)
        if fetch is None or not fetch.answered.done():
            return None
        result = fetch.answered.result()
        return result.stored if isinstance(result, Storable) and may_join(result.stored, request) else None

    async def _answer(self, request: EdgeRequest, stored: StoredResponse | None) -> Answer:
        if stored is None:
            return await self._fetch(request, None)
        if stored.private:
            return await self._validate_for_user(request, stored)
        age = stored.age(self._clock())
        match freshness.decide_reuse(stored.policy, age, request.directives):
            case Reuse.USE:
                return from_store(stored, hit(stored, age))
            case Reuse.USE_AND_VALIDATE:
                if self._fetches.unanswered(request.uri) is None:
                    self._start(attrs.evolve(request, method="GET"), stored, in_background=True)
                return from_store(stored, Outcome.STALE)
        return await self._fetch(request, stored)

    async def _fetch(self, request: EdgeRequest, stale: StoredResponse | None) -> Answer:
        """Start a request to the origin, or join the one that is running."""
        if request.directives.only_if_cached:
            return Missing()
        if request.method == "HEAD":
            return await self._head(request, stale)
        if request.directives.no_store:  # nobody else gets this response or waits for it
            return await self._lead(request, self._start(request, stale, joinable=False), stale)
        clock = asyncio.get_running_loop().time
        since = clock()
        while (fetch := self._fetches.unanswered(request.uri)) is not None:
            result = await self._fetches.wait(fetch)
            if not self._may_find_a_place(request, result, clock() - since):
                return await self._join(request, fetch, result, stale)
        return await self._lead(request, self._start(request, stale), stale)

    def _may_find_a_place(self, request: EdgeRequest, result: FetchResult, waited: float) -> bool:
        """Return whether a fetch found no place at the origin and another one may find one. One of the waiting requests
        starts it, and the others join it. No request waits much longer because of others, unless its own client was
        refused."""
        if not isinstance(result, Failed) or not isinstance(result.error, OriginBusy):
            return False
        refused = result.error.client
        return waited < self._options.origin_queue_timeout or (
            refused is not None and refused != request.client
        )

    async def _join(
        self, request: EdgeRequest, fetch: Fetch, result: FetchResult, stale: StoredResponse | None
    ) -> Answer:
        """Answer with the result of another request's fetch, if it is public."""
        if isinstance(result, Failed):
            return self._stand_in(result, stale, fetch.epoch, leads=False)
        if isinstance(result, Unshared) or not may_join(result.stored, request):
            return await self._lead(request, self._start(request, stale), stale)
        if result.stored.private:
            return await self._validate_for_user(request, result.stored)
        outcome = Outcome.VALIDATED if result.validated else Outcome.COLLAPSED
        return self._from_fetch(result, fetch, outcome, stale, leads=False)

    def _start(
        self,
        request: EdgeRequest,
        stale: StoredResponse | None,
        *,
        in_background: bool = False,
        joinable: bool = True,
    ) -> Fetch:
        fetch = Fetch(request.uri, self._store.ledger.epoch, in_background=in_background)
        self._fetches.start(fetch, self._fetcher.run(fetch, request, stale), joinable=joinable)
        return fetch

    async def _lead(self, request: EdgeRequest, fetch: Fetch, stale: StoredResponse | None) -> Answer:
        try:
            result = await self._fetches.wait(fetch)
        except asyncio.CancelledError:
            fetch.abandon()
            raise
        if isinstance(result, Failed):
            return self._stand_in(result, stale, fetch.epoch, leads=True)
        outcome = Outcome.MISS if stale is None else Outcome.REPLACED
        if request.directives.no_store:
            outcome = Outcome.BYPASS
        if isinstance(result, Unshared):
            return FromOrigin(result.response, outcome)
        outcome = Outcome.VALIDATED if result.validated else outcome
        return self._from_fetch(result, fetch, outcome, stale, leads=True)

    def _from_fetch(
        self, result: Storable, fetch: Fetch, outcome: Outcome, stale: StoredResponse | None, *, leads: bool
    ) -> Answer:
        """Return the answer of a fetch whose response is stored. A body that the origin broke off in the meantime is a
        failure."""
        try:
            return from_store(result.stored, outcome, is_new=leads and not result.validated)
        except BodyGoneError:
            if result.validated:
                raise
            return self._stand_in(Failed(OriginError(502, STOPPED)), stale, fetch.epoch, leads=leads)

    def _stand_in(self, failed: Failed, stale: StoredResponse | None, epoch: int, *, leads: bool) -> Answer:
        """Answer with a stale response instead of a failure, if it allows that. Otherwise raise the failure (RFC
        5861 section 4).

        No response is used that was purged since `epoch`, when the origin was asked.
        """
        allowed = self._options.stale_when_unreachable
        if (
            stale is not None
            and stale.status < 500
            and freshness.may_use_on_error(stale.policy, stale.age(self._clock()), when_unreachable=allowed)
            and not self._store.ledger.is_concerned(epoch, stale)
        ):
            if leads and failed.response is not None:
                failed.response.close()
            return from_store(stale, Outcome.STALE)
        if leads and failed.response is not None:
            return FromOrigin(failed.response, Outcome.MISS)
        raise failed.error

    async def _validate_for_user(self, request: EdgeRequest, stored: StoredResponse) -> Answer:
        """Answer with a private object only after the origin has answered 304 to this user's own token."""
        tag = stored.headers.get("ETag", "")
        if self._grants.has(request, tag):
            return from_store(stored, Outcome.HIT)
        if request.directives.only_if_cached:
            return Missing()
        epoch, requested = self._store.ledger.epoch, self._clock()
        reader = stored.body.open()
        try:
            response = await self._fetcher.ask(request, stored)
            if response.status == 304:
                response.close()
                if epoch == self._store.ledger.epoch:
                    self._grants.add(request, tag)
                new = self._fetcher.freshened(stored, response, requested, epoch)
                if differ(stored, new):
                    await self._store.update(stored, new)
                return FromStore(new, Outcome.VALIDATED_FOR_USER, reader)
        except BaseException:
            reader.close()
            raise
        reader.close()
        return await self._replace_for_user(request, response, requested, stored, epoch)

    async def _replace_for_user(
        self,
        request: EdgeRequest,
        response: OriginResponse,
        requested: float,
        stored: StoredResponse,
        epoch: int,
    ) -> Answer:
        """Answer with the origin's other response for this user: another version of the object, or a refusal."""
        if request.method == "HEAD":
            return FromOrigin(response, Outcome.REQUESTED)
        fetch = Fetch(request.uri, epoch)
        self._fetches.start(
            fetch,
            self._fetcher.receive(fetch, request, response, requested, stored),
            joinable=epoch == self._store.ledger.epoch and stored.may_be_displaced_by(response.status),
        )
        return await self._lead(request, fetch, None)

    async def _head(self, request: EdgeRequest, stale: StoredResponse | None) -> Answer:
        """Send HEAD to the origin as HEAD. Its answer can freshen a stored response (RFC 9111 section 4.3.5)."""
        epoch, requested = self._store.ledger.epoch, self._clock()
        try:
            response = await self._fetcher.ask(request, stale)
        except OriginError as error:
            return self._stand_in(Failed(error), stale, epoch, leads=True)
        if stale is None:
            return FromOrigin(response, Outcome.MISS)
        if response.status == 304:
            response.close()
            new = self._fetcher.freshened(stale, response, requested, epoch)
            await self._store.update(stale, new)
            return from_store(new, Outcome.VALIDATED)
        if response.status == 200 and response.status == stale.status:
            new = attrs.evolve(stale, stale=True)
            if selection.head_matches(stale.headers, stale.body.length, response.headers):
                new = self._fetcher.freshened(stale, response, requested, epoch)
            try:
                await self._store.update(stale, new)
            except BaseException:
                response.close()
                raise
        return FromOrigin(response, Outcome.REPLACED)

    def _obey(self, purge: Purge) -> None:
        self._fetches.obey(purge)
        self._grants.clear()
