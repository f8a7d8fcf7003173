"""The cache itself: how a request gets its answer from what is stored, from a flight, or from the origin."""

import asyncio
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING

import attrs
import cachetools

from storage_edge.cache.fetching import CacheOptions, Fetcher
from storage_edge.cache.flights import Failed, Flight, Flights, Kept, Passed
from storage_edge.cache.origin import Origin, OriginBusy, OriginError, OriginResponse
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import cache_status, reuse, selection, validation
from storage_edge.rules.cache_status import Outcome
from storage_edge.rules.reuse import Reuse
from storage_edge.tiers.bodies import BodyGoneError, FileBody, MemoryBody, Reader
from storage_edge.tiers.purges import Purge
from storage_edge.tiers.spool import Spool
from storage_edge.tiers.store import Store
from storage_edge.tiers.stored_responses import StoredResponse

if TYPE_CHECKING:
    from storage_edge.tiers.shared import SharedTier


@attrs.frozen
class FromStore:
    """Answer with a stored response, or one that is being stored; `reader` is open and has to be closed."""

    stored: StoredResponse
    outcome: Outcome
    reader: Reader
    is_new: bool = False

    def age_and_status(self, now: float) -> tuple[str, str]:
        """Values of Age and Cache-Status; `now` is seconds since 1970."""
        age = self.stored.age(now)
        ttl = None if self.is_new or self.stored.private else self.stored.policy.lifetime - age
        return str(int(age)), cache_status.value(self.outcome, stored=self.is_new, ttl=ttl)


@attrs.frozen
class FromOrigin:
    """Pass on a response of the origin that is not kept; it has to be read or closed."""

    response: OriginResponse
    outcome: Outcome


@attrs.frozen
class Missing:
    """`only-if-cached`, and nothing is (RFC 9111 section 5.2.1.7)."""

    outcome: Outcome = Outcome.ONLY_IF_CACHED


Answer = FromStore | FromOrigin | Missing


class Cache:
    """Answers GET and HEAD for static objects. `clock` gives seconds since 1970."""

    def __init__(
        self,
        origin: Origin,
        store: Store,
        options: CacheOptions,
        clock: Callable[[], float],
        metrics: Metrics,
        shared: "SharedTier | None" = None,
    ) -> None:
        self._store = store
        self._options = options
        self._clock = clock
        self._flights = Flights()
        self._shared = shared
        self._fetcher = Fetcher(origin, store, self._flights, options, clock, metrics, shared)
        self._grants: cachetools.TTLCache[tuple[str, bytes], str] = cachetools.TTLCache(
            65_536, max(options.private_grace, 1e-9), timer=clock
        )
        store.on_purge(self._obey)

    async def settled(self) -> None:
        """Waits until everything that is being stored is stored."""
        await self._flights.settled()
        if self._shared is not None:
            await self._shared.settled()

    async def aclose(self) -> None:
        """Ends what is under way."""
        await self._flights.close()
        if self._shared is not None:
            await self._shared.close()

    async def answer(self, request: EdgeRequest) -> Answer:
        """The answer to one request; raises `OriginError` when there is none."""
        self._store.catch_up()
        stored = self._arriving(request) or self._store.find_in_memory(request.uri, request.forwarded)
        if stored is None:
            stored = await self._store.find(request.uri, request.forwarded)
            stored = self._arriving(request) or stored
        if stored is not None and not _may_select(stored, request):
            stored = None
        try:
            return await self._answer(request, stored)
        except BodyGoneError:
            if stored is not None and isinstance(stored.body, FileBody):
                await self._store.remove(stored)
            return await self._ask_alone(request, None)

    def at_hand(self, request: EdgeRequest) -> FromStore | None:
        """The answer of a request without a token, if it is in memory and nobody has to be asked."""
        self._store.catch_up()
        if self._flights.get(request.uri) is not None:
            return None
        stored = self._store.find_in_memory(request.uri, request.forwarded)
        if stored is None or stored.private or not isinstance(stored.body, MemoryBody):
            return None
        age = stored.age(self._clock())
        if reuse.decide(stored.policy, age, request.directives) is not Reuse.USE:
            return None
        return _from_store(stored, _hit(stored, age))

    def _arriving(self, request: EdgeRequest) -> StoredResponse | None:
        """What a flight has landed with is newer than what is stored."""
        flight = self._flights.get(request.uri)
        if flight is None or not flight.landing.done():
            return None
        landing = flight.landing.result()
        return landing.stored if isinstance(landing, Kept) and _may_join(landing.stored, request) else None

    async def _answer(self, request: EdgeRequest, stored: StoredResponse | None) -> Answer:
        if stored is None:
            return await self._fetch(request, None)
        if stored.private:
            return await self._validate_for_user(request, stored)
        age = stored.age(self._clock())
        match reuse.decide(stored.policy, age, request.directives):
            case Reuse.USE:
                return _from_store(stored, _hit(stored, age))
            case Reuse.USE_AND_VALIDATE:
                if not self._flights.is_asking(request.uri):
                    self._start(attrs.evolve(request, method="GET"), stored).abandon()
                return _from_store(stored, Outcome.STALE)
        return await self._fetch(request, stored)

    async def _fetch(self, request: EdgeRequest, stale: StoredResponse | None) -> Answer:
        """Leads a flight to the origin or joins the one under way."""
        if request.directives.only_if_cached:
            return Missing()
        if request.method == "HEAD":
            return await self._head(request, stale)
        flight = self._flights.get(request.uri)
        if flight is None or not self._flights.is_asking(request.uri):
            return await self._lead(request, self._start(request, stale), stale)
        landing = await flight.landed()
        if isinstance(landing, Failed) and isinstance(landing.error, OriginBusy):
            # Whoever led had no place left, which others may have.
            return await self._ask_alone(request, stale)
        if isinstance(landing, Failed):
            return self._stand_in(landing, stale, flight.epoch, leads=False)
        if isinstance(landing, Passed) or not _may_join(landing.stored, request):
            return await self._ask_alone(request, stale)
        if landing.stored.private:
            return await self._validate_for_user(request, landing.stored)
        return _from_store(landing.stored, Outcome.VALIDATED if landing.validated else Outcome.COLLAPSED)

    async def _ask_alone(self, request: EdgeRequest, stale: StoredResponse | None) -> Answer:
        """A request of one's own, because what others get is not for this user."""
        if request.method == "HEAD":
            return await self._head(request, stale)
        return await self._lead(request, self._start(request, stale), stale)

    def _start(self, request: EdgeRequest, stale: StoredResponse | None) -> Flight:
        flight = Flight(request.uri, self._store.ledger.epoch)
        self._flights.start(flight, self._fetcher.fly(flight, request, stale))
        return flight

    async def _lead(self, request: EdgeRequest, flight: Flight, stale: StoredResponse | None) -> Answer:
        try:
            landing = await flight.landed()
        except asyncio.CancelledError:
            flight.abandon()
            raise
        if isinstance(landing, Failed):
            return self._stand_in(landing, stale, flight.epoch, leads=True)
        outcome = Outcome.MISS if stale is None else Outcome.REPLACED
        if request.directives.no_store:
            outcome = Outcome.BYPASS
        if isinstance(landing, Passed):
            return FromOrigin(landing.response, outcome)
        return _from_store(
            landing.stored, Outcome.VALIDATED if landing.validated else outcome, is_new=not landing.validated
        )

    def _stand_in(self, failed: Failed, stale: StoredResponse | None, epoch: int, *, leads: bool) -> Answer:
        """A stale response instead of a failure, where it allows that; otherwise the failure (RFC 5861 section 4).

        Nothing that was purged since `epoch`, when the origin was asked, stands in.
        """
        allowance = self._options.stale_when_unreachable
        if (
            stale is not None
            and stale.status < 500
            and reuse.may_use_on_error(stale.policy, stale.age(self._clock()), when_unreachable=allowance)
            and not self._store.ledger.is_concerned(epoch, stale)
        ):
            if leads and failed.response is not None:
                failed.response.close()
            return _from_store(stale, Outcome.STALE)
        if leads and failed.response is not None:
            return FromOrigin(failed.response, Outcome.MISS)
        raise failed.error

    async def _validate_for_user(self, request: EdgeRequest, stored: StoredResponse) -> Answer:
        """A private object goes to nobody before the origin has said 304 to this user's own token."""
        grant = (request.uri, hashlib.sha256((request.token or "").encode()).digest())
        tag = stored.headers.get("ETag", "")
        if self._options.private_grace > 0 and self._grants.get(grant) == tag:
            return _from_store(stored, Outcome.HIT)
        epoch, requested = self._store.ledger.epoch, self._clock()
        reader = stored.body.open()
        try:
            response = await self._fetcher.ask(request, {"If-None-Match": tag})
        except BaseException:
            reader.close()
            raise
        if response.status != 304:
            reader.close()
            return await self._replace_for_user(request, response, requested, epoch)
        response.close()
        if self._options.private_grace > 0 and epoch == self._store.ledger.epoch:
            self._grants[grant] = tag
        new = self._fetcher.freshened(stored, response, requested, epoch)
        if _differ(stored, new):
            await self._store.update(stored, new)
        return FromStore(new, Outcome.VALIDATED_FOR_USER, reader)

    async def _replace_for_user(
        self, request: EdgeRequest, response: OriginResponse, requested: float, epoch: int
    ) -> Answer:
        """The origin has something else for this user: another version of the object, or a refusal."""
        if request.method == "HEAD":
            return FromOrigin(response, Outcome.REQUESTED)
        flight = Flight(request.uri, epoch)
        self._flights.start(
            flight,
            self._fetcher.land(flight, request, response, requested),
            joinable=epoch == self._store.ledger.epoch,
        )
        return await self._lead(request, flight, None)

    async def _head(self, request: EdgeRequest, stale: StoredResponse | None) -> Answer:
        """HEAD goes upstream as HEAD; its answer can freshen what is stored (RFC 9111 section 4.3.5)."""
        epoch, requested = self._store.ledger.epoch, self._clock()
        try:
            response = await self._fetcher.ask(request, {} if stale is None else stale.conditions)
        except OriginError as error:
            return self._stand_in(Failed(error), stale, epoch, leads=True)
        if stale is None:
            return FromOrigin(response, Outcome.MISS)
        if response.status == 304:
            response.close()
            new = self._fetcher.freshened(stale, response, requested, epoch)
            answer = _from_store(new, Outcome.VALIDATED)
            await self._store.update(stale, new)
            return answer
        if response.status == 200 and response.status == stale.status:
            if validation.head_matches(stale.headers, stale.body.length, response.headers):
                await self._store.update(stale, self._fetcher.freshened(stale, response, requested, epoch))
            else:
                await self._store.update(stale, attrs.evolve(stale, stale=True))
        return FromOrigin(response, Outcome.REPLACED)

    def _obey(self, purge: Purge) -> None:
        self._flights.obey(purge)
        self._grants.clear()


def _hit(stored: StoredResponse, age: float) -> Outcome:
    if isinstance(stored.body, Spool) and not stored.body.finished:
        return Outcome.COLLAPSED
    return Outcome.HIT if age < stored.policy.lifetime else Outcome.STALE


def _from_store(stored: StoredResponse, outcome: Outcome, *, is_new: bool = False) -> FromStore:
    return FromStore(stored, outcome, stored.body.open(), is_new)


def _differ(stored: StoredResponse, new: StoredResponse) -> bool:
    """Whether a validation changed more than the time of the answer."""
    return any(
        stored.headers.getall(name, []) != new.headers.getall(name, [])
        for name in {*stored.headers, *new.headers} - {"Date", "Age"}
    )


def _may_select(stored: StoredResponse, request: EdgeRequest) -> bool:
    """An answer other than 200 may be about who asked; whoever has a token asks for himself."""
    return request.token is None or stored.status == 200


def _may_join(stored: StoredResponse, request: EdgeRequest) -> bool:
    return _may_select(stored, request) and selection.matches(stored.selected, request.forwarded)
