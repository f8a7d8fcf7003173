"""A moment in which nothing goes on: requests wait outside; those inside, queued tasks and deliveries end first."""

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

#: What a request is answered that was ended because the state was reset under it.
CUT_OFF = {"message": "The state was reset while this request was under way."}
#: How often it is told to a request that it ends, and seconds between: the first time, git gets some to end by itself.
TRIES, BETWEEN = 100, 0.1


@attrs.define
class RequestGate:
    """Counts the requests that are under way."""

    _open: asyncio.Event = attrs.field(init=False, factory=asyncio.Event)
    _inside: "dict[asyncio.Task[None], web.Request]" = attrs.field(init=False, factory=dict)
    _cut: "set[asyncio.Task[None]]" = attrs.field(init=False, factory=set)

    def __attrs_post_init__(self) -> None:
        self._open.set()

    @property
    def inside(self) -> list[str]:
        """The requests that are under way, by method and path."""
        return sorted(f"{request.method} {request.path}" for request in self._inside.values())

    async def admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The request's answer; it is asked for when the gate is open."""
        await self._open.wait()
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a request is answered in no task")
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
        """Nobody comes in for the length of the block."""
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    async def empty(self, seconds: float) -> bool:
        """Waits until nobody is inside: False where that takes longer."""
        if self._inside:
            await asyncio.wait(self._inside, timeout=seconds)
        return not self._inside

    async def cut(self) -> None:
        """Ends the requests that are inside; their clients hear of it, or see the connection break."""
        self._cut.update(self._inside)
        for _ in range(TRIES):  # one that comes together with what is waited for can be lost
            for task in self._inside:
                task.cancel()
            if await self.empty(BETWEEN):
                return
        raise refused(
            f"These requests do not come to an end: {', '.join(self.inside)}", web.HTTPServiceUnavailable
        )


def _cut_off(request: web.Request) -> web.Response:
    if request.writer.output_size and request.transport is not None:
        request.transport.abort()
    return json_value(CUT_OFF, status=503, headers={"Retry-After": "0"})


@web.middleware
async def one_state_at_a_time(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Requests are of the state before or of that afterwards; those to the controls, and after the server's health, of
    none."""
    if request.path.startswith(CONTROLS) or request.path in operations.ROUTES:
        return await handler(request)
    return await context.services(request)[REQUEST_GATE].admitted(request, handler)


REQUEST_GATE = Key[RequestGate]("request_gate")


#: Seconds that is waited for what is due.
TIMEOUT = 10.0
_PAUSE = 0.02


async def settled(services: Services, seconds: float = TIMEOUT) -> list[str]:
    """Waits until no work is due or under way, and gives the names of what still is after a while. For who has the turn
    of `Snapshots`."""
    if not services.settings.work:
        return await queries.due(services.database)
    left: list[str] = []
    dispatcher = services[DISPATCHER]
    async with dispatcher.paused():
        try:
            async with asyncio.timeout(seconds):
                while True:
                    before = await queries.due(services.database)
                    left = [*before, DELIVERIES]
                    await dispatcher.deliver_due()
                    services.queue.look_now()
                    left = await queries.due(services.database)
                    if not (before or left):  # nor can either of them have made work for the other
                        return []
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            return left


#: Seconds that requests get to come to their end before they are cut off, and that tasks do, for which nobody waits.
BEFORE_CUT, TASKS_BEFORE_CUT = 0.25, 0.01
#: Seconds that everything gets before one gives up.
BEFORE_REFUSAL = 10.0


@contextlib.asynccontextmanager
async def quiet(services: Services, *, cut: bool) -> AsyncIterator[None]:
    """Nothing goes on for the length of the block. With `cut`, what takes long is ended, and nothing comes of it any
    more; without, raises 409 where something takes longer than that. Runners that wait for a job are sent home.
    """
    seconds = BEFORE_CUT if cut else BEFORE_REFUSAL
    gate, dispatcher = services[REQUEST_GATE], services[DISPATCHER]
    if not cut:
        # with an open door: mirrors, and receivers of deliveries, may have to ask us before they are done
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
