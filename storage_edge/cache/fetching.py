"""Asking the origin: its responses become stored ones while they arrive, or concern one request alone."""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import attrs
from multidict import CIMultiDictProxy

from storage_edge.cache.flights import Failed, Flight, Flights, Kept, Passed
from storage_edge.cache.origin import Origin
from storage_edge.cache.origin_response import OriginError, OriginResponse
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import freshness, selection, storing, validation
from storage_edge.rules.storing import Storage
from storage_edge.settings import Settings
from storage_edge.tiers.spool import Spool, UnwantedError
from storage_edge.tiers.store import Store
from storage_edge.tiers.stored_responses import StoredResponse

if TYPE_CHECKING:
    from storage_edge.tiers.shared import SharedTier

#: Seconds for which a body goes on arriving that nobody reads: whoever asks for part after part comes again.
UNREAD_SECONDS: Final = 10.0


@attrs.frozen
class Fetcher:
    """Carries flights to the origin and what they bring into the store. `clock` gives seconds since 1970."""

    origin: Origin
    store: Store
    flights: Flights
    options: Settings
    clock: Callable[[], float]
    metrics: Metrics
    shared: "SharedTier | None" = None

    async def ask(self, request: EdgeRequest, stored: StoredResponse | None) -> OriginResponse:
        """Asks the origin in the name of a client, whether `stored` is still right where there is one; a 304 says that
        it is. Raises `OriginError`.
        """
        if stored is None:
            return await self._ask(request, {})
        response = await self._ask(request, stored.conditions)
        if response.status != 304 or validation.selects(stored.headers, response.headers):
            return response
        # It is about another version, of which nothing is known here (RFC 9111 section 4.3.4).
        response.close()
        return await self._ask(request, {})

    async def _ask(self, request: EdgeRequest, conditions: dict[str, str]) -> OriginResponse:
        return await self.origin.ask(
            request.method,
            request.uri,
            token=request.token,
            fields={**request.forwarded, **request.told()},
            conditions=conditions,
            client=request.client,
        )

    async def fly(self, flight: Flight, request: EdgeRequest, stale: StoredResponse | None) -> None:
        """Asks for an object, or whether a stale one is still right."""
        try:
            if stale is None and await self._fly_with_copy(flight, request):
                return
            requested = self.clock()
            response = await self.ask(request, stale)
        except OriginError as error:
            flight.land(Failed(error))
            return
        if response.status == 304 and stale is not None:
            response.close()
            new = self.freshened(stale, response, requested, flight.epoch)
            flight.land(Kept(new, validated=True))
            await self.store.update(stale, new)
        else:
            await self.land(flight, request, response, requested, stale)

    async def _fly_with_copy(self, flight: Flight, request: EdgeRequest) -> bool:
        """Asks whether the shared tier's copy is still right; False when there is none, or none that can be used."""
        if self.shared is None or request.directives.no_store:
            return False
        copy = await self.shared.find(request, functools.partial(self.store.spool, request.uri))
        if copy is None:
            return False
        requested = self.clock()
        response = await self.ask(request, copy.stored)
        if response.status != 304:
            await self.land(flight, request, response, requested)
            return True
        response.close()
        new = self.freshened(copy.stored, response, requested, flight.epoch)
        where = storing.decide(request.facts, new.status, new.headers, new.policy)
        if where is Storage.NONE or not await self.shared.fill(copy):
            return False
        flight.land(Kept(new, validated=True))
        try:
            await self.store.save(new, copy.spool)
        finally:
            self.flights.close_to_joiners(flight)
            copy.spool.release()
        return True

    async def land(
        self,
        flight: Flight,
        request: EdgeRequest,
        response: OriginResponse,
        requested: float,
        known: StoredResponse | None = None,
    ) -> None:
        """Keeps a response while it arrives, or hands it to the leader. `known` is what is stored already."""
        may_be_kept = known is None or known.may_be_displaced_by(response.status)
        stored, spool = self._to_keep(flight, request, response, requested) if may_be_kept else (None, None)
        if stored is None or spool is None:
            self.flights.close_to_joiners(flight)
            if response.status >= 500:
                retry_after = response.headers.get("Retry-After")
                flight.land(Failed(OriginError(response.status, "The origin failed.", retry_after), response))
            else:
                flight.land(Passed(response))
            return
        flight.land(Kept(stored))
        try:
            async for chunk in response.chunks():
                await spool.write(chunk)
            spool.finish()
            await self.store.save(stored, spool, None if self.shared is None else self.shared.offer)
        except OriginError:
            pass  # whoever reads the body learns of it
        except UnwantedError:
            pass  # the clients have gone
        finally:
            response.close()
            self.flights.close_to_joiners(flight)
            spool.release()

    def tells_of_public(self, request: EdgeRequest, response: OriginResponse) -> bool:
        """Whether it is the answer to a HEAD of what GET would keep for everybody."""
        if request.method != "HEAD":
            return False
        headers, seconds = response.headers, self.options.negative_seconds
        policy = freshness.policy(response.status, headers, self.clock(), seconds)
        return storing.decide(request.facts, response.status, headers, policy) is Storage.SHARED

    def _to_keep(
        self, flight: Flight, request: EdgeRequest, response: OriginResponse, requested: float
    ) -> tuple[StoredResponse | None, Spool | None]:
        received = self.clock()
        policy = freshness.policy(response.status, response.headers, received, self.options.negative_seconds)
        where = storing.decide(request.facts, response.status, response.headers, policy)
        if where is Storage.NONE or not response.has_known_end:
            return None, None
        unread_seconds = math.inf if flight.in_background else UNREAD_SECONDS
        spool = self.store.spool(request.uri, response.length, unread_seconds=unread_seconds)
        stored = StoredResponse(
            target=request.uri,
            status=response.status,
            reason=response.reason,
            headers=CIMultiDictProxy(storing.end_to_end(response.headers)),
            times=freshness.times(response.headers, requested, received),
            policy=policy,
            selected=selection.selection(response.headers.getall("Vary", []), request.forwarded),
            private=where is Storage.PRIVATE,
            epoch=flight.epoch,
            body=spool,
        )
        return stored, spool

    def freshened(
        self, stored: StoredResponse, response: OriginResponse, requested: float, epoch: int
    ) -> StoredResponse:
        """The stored response with the fields of a 304 or HEAD (RFC 9111 section 4.3.4)."""
        received = self.clock()
        headers = CIMultiDictProxy(storing.freshened(stored.headers, response.headers))
        policy = freshness.policy(stored.status, headers, received, self.options.negative_seconds)
        return attrs.evolve(
            stored,
            headers=headers,
            times=freshness.times(response.headers, requested, received),
            policy=policy,
            private=policy.private,
            epoch=epoch,
            stale=False,
        )
