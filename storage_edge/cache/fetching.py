"""Requests to the origin, whose responses are stored while they arrive or serve one request alone.

There is one request for each target URI, which all who ask meanwhile join (RFC 9111 section 4).
"""

import asyncio
import functools
import math
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

import attrs
import structlog
from multidict import CIMultiDictProxy

from common.concurrency import end
from storage_edge.cache.origin import Origin, OriginError, OriginResponse
from storage_edge.metrics import Metrics
from storage_edge.request_rules import EdgeRequest
from storage_edge.rules import freshness, selection, storing
from storage_edge.rules.storing import Storage
from storage_edge.settings import Settings
from storage_edge.storage.purges import Purge
from storage_edge.storage.spool import Spool, UnwantedError
from storage_edge.storage.store import Store
from storage_edge.storage.stored_responses import StoredResponse

log = structlog.get_logger(__name__)


@attrs.frozen
class Kept:
    """The response may be stored, and its body can be read while it arrives. `validated` is set after a 304."""

    stored: StoredResponse
    validated: bool = False


@attrs.frozen
class Passed:
    """The response is only for the request that started the fetch. Others have to ask for themselves."""

    response: OriginResponse


@attrs.frozen
class Failed:
    """The origin gave no usable answer. `response` is its 5xx, for the request that started the fetch."""

    error: OriginError
    response: OriginResponse | None = None


Landing = Kept | Passed | Failed


class Flight:
    """One running request to the origin. `landing` is set when the head of the response has arrived."""

    def __init__(self, uri: str, epoch: int, *, in_background: bool = False) -> None:
        """A fetch `in_background` goes on without anybody waiting, because it validates a stored response."""
        self.uri = uri
        self.epoch = epoch
        self.landing: asyncio.Future[Landing] = asyncio.get_running_loop().create_future()
        self.led = not in_background
        self.in_background = in_background
        self.task: asyncio.Task[None]
        self._waiting = 0

    def land(self, landing: Landing) -> None:
        """Give the result to all who wait. A response for a request that has gone is given up."""
        self.landing.set_result(landing)
        if not self.led:
            self._give_up(landing)

    def abandon(self) -> None:
        """The request that started the fetch has gone. A response that is only for that request is given up."""
        self.led = False
        if self.landing.done():
            self._give_up(self.landing.result())

    @property
    def is_wanted(self) -> bool:
        """Return whether somebody waits for the head of the response, or nobody has to."""
        return self.in_background or self._waiting > 0

    async def landed(self) -> Landing:
        """Wait for the head of the response. A cancellation affects only the caller."""
        self._waiting += 1
        try:
            return await asyncio.shield(self.landing)
        finally:
            self._waiting -= 1

    @staticmethod
    def _give_up(landing: Landing) -> None:
        if not isinstance(landing, Kept) and landing.response is not None:
            landing.response.close()


class Flights:
    """The running fetches that may be joined, by target URI."""

    def __init__(self) -> None:
        self._joinable: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, uri: str) -> Flight | None:
        """Return the running fetch for a target URI."""
        return self._joinable.get(uri)

    def asking(self, uri: str) -> Flight | None:
        """Return the fetch for a target URI that has no answer yet."""
        flight = self._joinable.get(uri)
        return None if flight is None or flight.landing.done() else flight

    def start(self, flight: Flight, work: Coroutine[Any, Any, None], *, joinable: bool = True) -> None:
        """Run `work`, to its end once the head of the response has arrived. Others may join the newest fetch."""
        if joinable:
            self._joinable[flight.uri] = flight
        task = flight.task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(flight, done))

    async def landed(self, flight: Flight) -> Landing:
        """Wait for the head of the response. A fetch ends when the last client stops waiting for it."""
        try:
            return await flight.landed()
        finally:
            if not flight.is_wanted and not flight.landing.done():
                self.close_to_joiners(flight)
                flight.task.cancel()

    def close_to_joiners(self, flight: Flight) -> None:
        """Let nobody else join."""
        if self._joinable.get(flight.uri) is flight:
            del self._joinable[flight.uri]

    def obey(self, purge: Purge) -> None:
        """Apply a purge: whoever asks after it may not join a fetch that began before."""
        for flight in list(self._joinable.values()):
            if not flight.landing.done() or _is_concerned(flight, purge):
                self.close_to_joiners(flight)

    async def settled(self) -> None:
        """Wait until running fetches have stored their responses."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End all fetches."""
        await end(*self._tasks)

    def _ended(self, flight: Flight, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.close_to_joiners(flight)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            log.error("a flight failed", target=flight.uri, exc_info=problem)
            # Its frames hold the body, and the loop's frame that called them holds the task, which holds the error.
            problem.__traceback__ = None
        if not flight.landing.done():
            status = 503 if task.cancelled() else 500
            flight.land(Failed(OriginError(status, "The edge could not finish the request.")))


def _is_concerned(flight: Flight, purge: Purge) -> bool:
    landing = flight.landing.result()
    return not isinstance(landing, Kept) or purge.concerns(landing.stored)


if TYPE_CHECKING:
    from storage_edge.storage.shared import SharedTier

#: Seconds for which a body goes on arriving although nobody reads it: clients that ask for part after part come
#: again.
UNREAD_SECONDS: Final = 10.0


@attrs.frozen
class Fetcher:
    """Sends requests to the origin and stores what they bring. `clock` returns seconds since 1970."""

    origin: Origin
    store: Store
    flights: Flights
    options: Settings
    clock: Callable[[], float]
    metrics: Metrics
    shared: "SharedTier | None" = None

    async def ask(self, request: EdgeRequest, stored: StoredResponse | None) -> OriginResponse:
        """Ask the origin on behalf of a client. With `stored`, ask whether that is still right, which a 304
        confirms. Raise `OriginError`."""
        if stored is None:
            return await self._ask(request, {})
        response = await self._ask(request, stored.conditions)
        if response.status != 304 or selection.is_about(stored.headers, response.headers):
            return response
        # It is about a version that is not stored here (RFC 9111 section 4.3.4).
        response.close()
        return await self._ask(request, {})

    async def _ask(self, request: EdgeRequest, conditions: dict[str, str]) -> OriginResponse:
        return await self.origin.ask(
            request.method,
            request.uri,
            token=request.token,
            fields={**request.forwarded, **request.caller_fields()},
            conditions=conditions,
            client=request.client,
        )

    async def fly(self, flight: Flight, request: EdgeRequest, stale: StoredResponse | None) -> None:
        """Fetch an object, or ask whether a stale one is still right."""
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
        """Ask whether the shared store's copy is still right. Return False if there is none that can be used."""
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
        where = storing.decide_storage(request.facts, new.status, new.headers, new.policy)
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
        """Store a response while it arrives, or give it to the request that started the fetch. `known` is what is
        stored already."""
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
            pass  # whoever reads the body gets the error
        except UnwantedError:
            pass  # the clients have gone
        finally:
            response.close()
            self.flights.close_to_joiners(flight)
            spool.release()

    def tells_of_public(self, request: EdgeRequest, response: OriginResponse) -> bool:
        """Return whether this is an answer to HEAD about a response to GET that would be stored for everybody."""
        if request.method != "HEAD":
            return False
        headers, seconds = response.headers, self.options.negative_seconds
        policy = freshness.policy(response.status, headers, self.clock(), seconds)
        return storing.decide_storage(request.facts, response.status, headers, policy) is Storage.SHARED

    def _to_keep(
        self, flight: Flight, request: EdgeRequest, response: OriginResponse, requested: float
    ) -> tuple[StoredResponse | None, Spool | None]:
        received = self.clock()
        policy = freshness.policy(response.status, response.headers, received, self.options.negative_seconds)
        where = storing.decide_storage(request.facts, response.status, response.headers, policy)
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
        """Return the stored response with the fields of a 304 or HEAD (RFC 9111 section 4.3.4)."""
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
