"""Requests to the origin, whose responses are stored while they arrive or serve one request alone.

There is one request at a time for each target URI; other clients that ask for it join this one (RFC 9111 section 4).
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
class Storable:
    """A response that may be stored, and whose body can be read while it arrives. `validated` is set after a 304."""

    stored: StoredResponse
    validated: bool = False


@attrs.frozen
class Unshared:
    """A response that is only for the request that started the fetch. Others have to ask the origin themselves."""

    response: OriginResponse


@attrs.frozen
class Failed:
    """The lack of a usable answer. `response` is the origin's 5xx, for the request that started the fetch."""

    error: OriginError
    response: OriginResponse | None = None


FetchResult = Storable | Unshared | Failed


class Fetch:
    """One running request to the origin. `answered` is done when the head of the response has arrived."""

    def __init__(self, uri: str, epoch: int, *, in_background: bool = False) -> None:
        """Create a fetch. One `in_background`, which validates a stored response, continues even if nobody waits."""
        self.uri = uri
        self.epoch = epoch
        self.answered: asyncio.Future[FetchResult] = asyncio.get_running_loop().create_future()
        self.led = not in_background
        self.in_background = in_background
        self.task: asyncio.Task[None]
        self._waiting = 0

    def finish(self, result: FetchResult) -> None:
        """Give the result to all who wait. Close a response that is only for a request that has ended."""
        self.answered.set_result(result)
        if not self.led:
            self._give_up(result)

    def abandon(self) -> None:
        """Note that the request that started the fetch has ended. Close a response that is only for that request."""
        self.led = False
        if self.answered.done():
            self._give_up(self.answered.result())

    @property
    def is_wanted(self) -> bool:
        """Whether a request waits for the head of the response, or the fetch runs in the background."""
        return self.in_background or self._waiting > 0

    async def wait(self) -> FetchResult:
        """Wait for the head of the response. A cancellation affects only the caller."""
        self._waiting += 1
        try:
            return await asyncio.shield(self.answered)
        finally:
            self._waiting -= 1

    @staticmethod
    def _give_up(result: FetchResult) -> None:
        if not isinstance(result, Storable) and result.response is not None:
            result.response.close()


class Fetches:
    """The running fetches that may be joined, by target URI."""

    def __init__(self) -> None:
        self._joinable: dict[str, Fetch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def get(self, uri: str) -> Fetch | None:
        """Return the running fetch for a target URI."""
        return self._joinable.get(uri)

    def unanswered(self, uri: str) -> Fetch | None:
        """Return the fetch for a target URI that has no answer yet."""
        fetch = self._joinable.get(uri)
        return None if fetch is None or fetch.answered.done() else fetch

    def start(self, fetch: Fetch, work: Coroutine[Any, Any, None], *, joinable: bool = True) -> None:
        """Run `work`, to its end once the head of the response has arrived. Others may join the newest fetch."""
        if joinable:
            self._joinable[fetch.uri] = fetch
        task = fetch.task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(lambda ended_task: self._ended(fetch, ended_task))

    async def wait(self, fetch: Fetch) -> FetchResult:
        """Wait for the head of the response. A fetch ends when the last client stops waiting for it."""
        try:
            return await fetch.wait()
        finally:
            if not fetch.is_wanted and not fetch.answered.done():
                self.close_to_joiners(fetch)
                fetch.task.cancel()

    def close_to_joiners(self, fetch: Fetch) -> None:
        """Prevent other requests from joining the fetch."""
        if self._joinable.get(fetch.uri) is fetch:
            del self._joinable[fetch.uri]

    def obey(self, purge: Purge) -> None:
        """Apply a purge: later requests must not join a fetch that began before it."""
        for fetch in list(self._joinable.values()):
            if not fetch.answered.done() or _is_concerned(fetch, purge):
                self.close_to_joiners(fetch)

    async def settled(self) -> None:
        """Wait until running fetches have stored their responses."""
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def close(self) -> None:
        """End all fetches."""
        await end(*self._tasks)

    def _ended(self, fetch: Fetch, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self.close_to_joiners(fetch)
        problem = None if task.cancelled() else task.exception()
        if problem is not None:
            log.error("a fetch from the origin failed", target=fetch.uri, exc_info=problem)
            # The error's frames hold the body, and the loop's frame that called them holds the task, which holds the
            # error.
            problem.__traceback__ = None
        if not fetch.answered.done():
            status = 503 if task.cancelled() else 500
            fetch.finish(Failed(OriginError(status, "The edge could not finish the request.")))


def _is_concerned(fetch: Fetch, purge: Purge) -> bool:
    result = fetch.answered.result()
    return not isinstance(result, Storable) or purge.concerns(result.stored)


if TYPE_CHECKING:
    from storage_edge.storage.shared import SharedTier

#: Seconds for which a body continues to arrive although nobody reads it: clients that request part after part, or load
#: a page again, return after a round trip, and a nearly complete body arrives in the meantime.
UNREAD_SECONDS: Final = 1.0


@attrs.frozen
class Fetcher:
    """A sender of requests to the origin, which stores their responses. `clock` returns seconds since 1970."""

    origin: Origin
    store: Store
    fetches: Fetches
    options: Settings
    clock: Callable[[], float]
    metrics: Metrics
    shared: "SharedTier | None" = None

    async def ask(self, request: EdgeRequest, stored: StoredResponse | None) -> OriginResponse:
        """Ask the origin on behalf of a client. With `stored`, ask whether that response is still valid, which a 304
        confirms. Raise `OriginError`."""
        if stored is None:
            return await self._ask(request, {})
        response = await self._ask(request, stored.conditions)
        if response.status != 304 or selection.is_about(stored.headers, response.headers):
            return response
        # The 304 is about a version that is not stored here (RFC 9111 section 4.3.4).
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

    async def run(self, fetch: Fetch, request: EdgeRequest, stale: StoredResponse | None) -> None:
        """Fetch an object, or ask whether a stale one is still valid."""
        try:
            if stale is None and await self._run_with_copy(fetch, request):
                return
            requested = self.clock()
            response = await self.ask(request, stale)
        except OriginError as error:
            fetch.finish(Failed(error))
            return
        if response.status == 304 and stale is not None:
            response.close()
            new = self.freshened(stale, response, requested, fetch.epoch)
            fetch.finish(Storable(new, validated=True))
            await self.store.update(stale, new)
        else:
            await self.receive(fetch, request, response, requested, stale)

    async def _run_with_copy(self, fetch: Fetch, request: EdgeRequest) -> bool:
        """Ask whether the shared store's copy is still valid. Return False if there is no usable one."""
        if self.shared is None or request.directives.no_store:
            return False
        copy = await self.shared.find(request, functools.partial(self.store.spool, request.uri))
        if copy is None:
            return False
        requested = self.clock()
        response = await self.ask(request, copy.stored)
        if response.status != 304:
            await self.receive(fetch, request, response, requested)
            return True
        response.close()
        new = self.freshened(copy.stored, response, requested, fetch.epoch)
        storage = storing.decide_storage(request.facts, new.status, new.headers, new.policy)
        if storage is Storage.NONE or not await self.shared.fill(copy):
            return False
        fetch.finish(Storable(new, validated=True))
        try:
            await self.store.save(new, copy.spool)
        finally:
            self.fetches.close_to_joiners(fetch)
            copy.spool.release()
        return True

    async def receive(
        self,
        fetch: Fetch,
        request: EdgeRequest,
        response: OriginResponse,
        requested: float,
        old: StoredResponse | None = None,
    ) -> None:
        """Store a response while it arrives, or give it to the request that started the fetch. `old` is the response
        that is stored already."""
        may_be_kept = old is None or old.may_be_displaced_by(response.status)
        stored, spool = self._storable(fetch, request, response, requested) if may_be_kept else (None, None)
        if stored is None or spool is None:
            self.fetches.close_to_joiners(fetch)
            if response.status >= 500:
                retry_after = response.headers.get("Retry-After")
                fetch.finish(
                    Failed(OriginError(response.status, "The origin failed.", retry_after), response)
                )
            else:
                fetch.finish(Unshared(response))
            return
        fetch.finish(Storable(stored))
        try:
            async with spool.arriving():
                async for chunk in response.chunks():
                    await spool.write(chunk)
            spool.finish()
            await self.store.save(stored, spool, None if self.shared is None else self.shared.offer)
        except OriginError:
            pass  # the readers of the body get the error
        except UnwantedError:
            pass  # the clients have disconnected
        finally:
            response.close()
            self.fetches.close_to_joiners(fetch)
            spool.release()

    def tells_of_public(self, request: EdgeRequest, response: OriginResponse) -> bool:
        """Return whether this is an answer to HEAD about a response to GET that would be stored for everybody."""
        if request.method != "HEAD":
            return False
        headers, seconds = response.headers, self.options.negative_seconds
        policy = freshness.policy(response.status, headers, self.clock(), seconds)
        return storing.decide_storage(request.facts, response.status, headers, policy) is Storage.SHARED

    def _storable(
        self, fetch: Fetch, request: EdgeRequest, response: OriginResponse, requested: float
    ) -> tuple[StoredResponse | None, Spool | None]:
        received = self.clock()
        policy = freshness.policy(response.status, response.headers, received, self.options.negative_seconds)
        storage = storing.decide_storage(request.facts, response.status, response.headers, policy)
        if storage is Storage.NONE or not response.has_known_end:
            return None, None
        unread_seconds = math.inf if fetch.in_background else UNREAD_SECONDS
        spool = self.store.spool(request.uri, response.length, unread_seconds=unread_seconds)
        stored = StoredResponse(
            target=request.uri,
            status=response.status,
            reason=response.reason,
            headers=CIMultiDictProxy(storing.end_to_end(response.headers)),
            times=freshness.times(response.headers, requested, received),
            policy=policy,
            selected=selection.selection(response.headers.getall("Vary", []), request.forwarded),
            private=storage is Storage.PRIVATE,
            epoch=fetch.epoch,
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
