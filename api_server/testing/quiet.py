"""A moment in which nothing goes on: no request, no task of the queue, no delivery."""

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web

from api_server.ci.runners.job_handlers import PENDING_JOBS
from api_server.operations import watch
from api_server.state.queue import QUEUE, StillAtWork
from api_server.status_checks.dispatcher import DELIVERIES, DISPATCHER
from api_server.testing.settling import settled
from api_server.testing.steering import refused
from api_server.testing.turnstile import TURNSTILE
from common.lifecycle import BACKGROUND

#: Seconds that requests get to come to their end before they are cut off, and that tasks do, for which nobody waits.
BEFORE_CUT, TASKS_BEFORE_CUT = 0.25, 0.01
#: Seconds that everything gets before one gives up.
BEFORE_REFUSAL = 10.0


@contextlib.asynccontextmanager
async def quiet(app: web.Application, *, cut: bool) -> AsyncIterator[None]:
    """Nothing goes on for the length of the block. With `cut`, what takes long is ended, and nothing comes of it any
    more; without, raises 409 where something takes longer than that. Runners that wait for a job are sent home.
    """
    seconds = BEFORE_CUT if cut else BEFORE_REFUSAL
    turnstile, dispatcher = app[TURNSTILE], app[DISPATCHER]
    if not cut:
        # with an open door: mirrors, and receivers of deliveries, may have to ask us before they are done
        await settled(app, seconds)
    async with turnstile.closed(), dispatcher.paused(), app[BACKGROUND].paused(watch.NAME):
        with app[PENDING_JOBS].emptied():
            if not await turnstile.empty(seconds):
                if not cut:
                    raise _busy(*turnstile.inside)
                await turnstile.cut()
        try:
            async with app[QUEUE].paused(TASKS_BEFORE_CUT if cut else seconds, cut=cut):
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
