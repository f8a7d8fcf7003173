"""Nobody comes in while the state is another one: requests wait outside, those inside come to their end first."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import attrs
from aiohttp import web
from aiohttp.typedefs import Handler

from api_server.testing import CONTROLS
from api_server.testing.steering import refused
from api_server.web.answers import json_value
from common import operations

#: What a request is answered that was ended because the state was reset under it.
CUT_OFF = {"message": "The state was reset while this request was under way."}
#: How often it is told to a request that it ends, and seconds between: the first time, git gets some to end by itself.
TRIES, BETWEEN = 100, 0.1


@attrs.define
class Turnstile:
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

    async def passed(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """The request's answer; it is asked for when the turnstile is open."""
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
    return await request.app[TURNSTILE].passed(request, handler)


TURNSTILE = web.AppKey("turnstile", Turnstile)
