"""Pausing the server: new requests wait; running requests, queued tasks and deliveries end first."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.operations import watch
from api_server.services import Key, Services
from api_server.state.queue import StillAtWork
from api_server.status_checks.dispatcher import DELIVERIES, DISPATCHER
from api_server.testing import CONTROLS, queries
from api_server.testing.steering import refused
from api_server.web import context
from api_server.web.answers import json_value
from common import operations

#: The answer to a request that was cancelled because the state was reset.
CUT_OFF = {"message": "The state was reset while this request was under way."}
#: Maximum number of attempts to cancel a request, and seconds between them: after the first, git processes
#: get time to end.
TRIES, BETWEEN = 100, 0.1


@attrs.define
class RequestGate:
    """Counts the running requests."""

    _open: asyncio.Event = attrs.field(init=False, factory=asyncio.Event)
    _inside: "dict[asyncio.Task[None], web.Request]" = attrs.field(init=False, factory=dict)
    _cut: "set[asyncio.Task[None]]" = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        self._open.set()

    @property
    def inside(self) -> list[str]:
        """The running requests, by method and path."""
        return sorted(f"{request.method} {request.path}" for request in self._inside.values())

    async def admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Wait until the gate is open, then answer the request."""
        await self._open.wait()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is not answered in a task")
        self._inside[task] = request
        try:
            return await handler(request)
        except asyncio.CancelledError:
            if task not in self._cut:
                raise
            task.uncancel()
            return _cut_off(request)
        finally:
            del self._inside[task]
            self._cut.discard(task)

    @contextlib.asynccontextmanager
    async def closed(self) -> AsyncIterator[None]:
        """Admit no requests for the duration of the block."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def empty(self, seconds: float) -> bool:
        """Wait until no request is running. Return False if that takes longer than `seconds`."""
        if self._inside:
            await asyncio.wait(self._inside, timeout=seconds)
        return not self._inside

    async def cut(self) -> None:
        """Cancel the running requests; their clients get an answer, or the connection is closed."""
        self._cut.update(self._inside)
        for _ in range(TRIES):  # a cancellation that arrives together with an awaited result can be lost
            for task in self._inside:
                task.cancel()
            if await self.empty(BETWEEN):
                return
        raise refused(f"These requests do not end: {', '.join(self.inside)}", web.HTTPServiceUnavailable)


def _cut_off(request: web.Request) -> web.Response:
    if request.writer.output_size and request.transport is not None:
        request.transport.abort()
    return json_value(CUT_OFF, status=503, headers={"Retry-After": "0"})


@web.middleware
async def one_state_at_a_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Hold requests while the state is replaced, except those to the controls and about the server's
    health."""
    if request.path.startswith(CONTROLS) or request.path in operations.ROUTES:
        return await handler(request)
    return await context.services(request)[REQUEST_GATE].admitted(request, handler)


REQUEST_GATE = Key[RequestGate]("request_gate")


#: Seconds to wait for work that is due.
TIMEOUT = 10.0
_PAUSE = 0.02


async def settled(services: Services, seconds: float = TIMEOUT) -> list[str]:
    """Wait until no work is due or running, and return the names of unfinished work after `seconds`. The
    caller must hold the turn of `Snapshots`."""
    if not services.settings.work:
        return await queries.due(services.database)
    pending: list[str] = []
    dispatcher = services[DISPATCHER]
    async with dispatcher.paused():
        try:
            async with asyncio.timeout(seconds):
                while True:
                    before = await queries.due(services.database)
                    pending = [*before, DELIVERIES]
                    await dispatcher.deliver_due()
                    services.queue.look_now()
                    pending = await queries.due(services.database)
                    if not (before or pending):  # so neither has created work for the other
                        return []
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            return pending


#: Seconds until requests are cancelled, and until tasks are, for which no client waits.
BEFORE_CUT, TASKS_BEFORE_CUT = 0.25, 0.01
#: Seconds until the pause is refused.
BEFORE_REFUSAL = 10.0


@contextlib.asynccontextmanager
async def quiet(services: Services, *, cut: bool) -> AsyncIterator[None]:
    """Stop all activity for the duration of the block. With `cut`, cancel what takes long, without any later
    effect; without it, raise 409 if something takes too long. Runners that wait for a job are sent away."""
    seconds = BEFORE_CUT if cut else BEFORE_REFUSAL
    gate, dispatcher = services[REQUEST_GATE], services[DISPATCHER]
    if not cut:
        # while requests are still admitted: mirrors and receivers of deliveries may have to send some before
        # they are done
        await settled(services, seconds)
    async with gate.closed(), dispatcher.paused(), services.background.paused(watch.NAME):
        with services[PENDING_JOBS].emptied():
            if not await gate.empty(seconds):
                if not cut:
                    raise _busy(*gate.inside)
                await gate.cut()
        try:
            async with services.queue.paused(TASKS_BEFORE_CUT if cut else seconds, cut=cut):
                if cut:
                    await dispatcher.drop()
                elif not await dispatcher.ended(seconds):
                    raise _busy(DELIVERIES)
                yield
        except StillAtWork as tasks:
            raise _busy(*map(str, tasks.args)) from None


def _busy(*names: str) -> web.HTTPError:
    return refused(
        f"This is still under way, try again when it has ended: {', '.join(names)}", web.HTTPConflict
    )
