"""Collapsing: one origin request per target URI, joined by all who ask meanwhile (RFC 9111 section 4)."""

import asyncio
from collections.abc import Coroutine
from typing import Any

import attrs
import structlog

from common.concurrency import end
from storage_edge.cache.origin_response import OriginError, OriginResponse
from storage_edge.tiers.purges import Purge
from storage_edge.tiers.stored_responses import StoredResponse

log = structlog.get_logger(__name__)


@attrs.frozen
class Kept:
    """The response may be kept; its body can be read while it arrives. `validated` after a 304."""

    stored: StoredResponse
    validated: bool = False


@attrs.frozen
class Passed:
    """The response concerns only the request that led; the others have to ask for themselves."""

    response: OriginResponse


@attrs.frozen
class Failed:
    """The origin gave no usable answer. `response` is its 5xx, for the request that led."""

    error: OriginError
    response: OriginResponse | None = None


Landing = Kept | Passed | Failed


class Flight:
    """One request to the origin under way. `landing` is known with the head of the response."""

    def __init__(self, uri: str, epoch: int, *, in_background: bool = False) -> None:
        """A flight `in_background` goes on although nobody waits for it: it validates what is stored."""
        self.uri = uri
        self.epoch = epoch
        self.landing: asyncio.Future[Landing] = asyncio.get_running_loop().create_future()
        self.led = not in_background
        self.in_background = in_background
        self.task: asyncio.Task[None]
        self._waiting = 0

    def land(self, landing: Landing) -> None:
        """Tells all who wait. A response for a leader who has gone is given up."""
        self.landing.set_result(landing)
        if not self.led:
            self._give_up(landing)

    def abandon(self) -> None:
        """The leader has gone; what concerned only it is needed by nobody."""
        self.led = False
        if self.landing.done():
            self._give_up(self.landing.result())

    @property
    def is_wanted(self) -> bool:
        """Whether somebody waits for the head of the response, or nobody needs to."""
        return self.in_background or self._waiting > 0

    async def landed(self) -> Landing:
        """Wait for the head of the response. Being cancelled concerns only the caller."""
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
    """The flights that may be joined, by target URI."""

    def __init__(self) -> None:
        self._joinable: dict[str, Flight] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, uri: str) -> Flight | None:
        """The flight under way for a target URI."""
        return self._joinable.get(uri)

    def asking(self, uri: str) -> Flight | None:
        """The flight that has asked the origin for a target URI and has no answer yet."""
        flight = self._joinable.get(uri)
        return None if flight is None or flight.landing.done() else flight

    def start(self, flight: Flight, work: Coroutine[Any, Any, None], *, joinable: bool = True) -> None:
        """Run `work`, to its end once the head of the response has come. Others may join the newest flight."""
        if joinable:
            self._joinable[flight.uri] = flight
        task = flight.task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(flight, done))

    async def landed(self, flight: Flight) -> Landing:
        """Wait for the head of the response. A flight for which the last client stops waiting ends."""
        try:
            return await flight.landed()
        finally:
            if not flight.is_wanted and not flight.landing.done():
                self.close_to_joiners(flight)
                flight.task.cancel()

    def close_to_joiners(self, flight: Flight) -> None:
        """Nobody may join any more."""
        if self._joinable.get(flight.uri) is flight:
            del self._joinable[flight.uri]

    def obey(self, purge: Purge) -> None:
        """Whoever asks after a purge may not join what began before it."""
        for flight in list(self._joinable.values()):
            if not flight.landing.done() or _is_concerned(flight, purge):
                self.close_to_joiners(flight)

    async def settled(self) -> None:
        """Waits until what is under way has landed and is stored."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """Ends all flights."""
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
