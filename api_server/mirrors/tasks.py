"""What mirrors do in the background: runs after pushes, and care for runs that were cut off."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from aiohttp import web

from api_server.code.refs import REF_LISTENERS
from api_server.git.received_push import RefUpdate
from api_server.git.ref_names import BRANCHES, TAGS
from api_server.mirrors import runs, schedule
from api_server.state.database import Row, Transaction
from api_server.state.queue import QUEUE

#: Runs at a time in one process, so that slow targets do not take the whole worker.
AT_ONCE = 5
#: How long a run waits before it looks for room again.
NO_ROOM_SECONDS = 15


def setup(app: web.Application) -> None:
    """Registers the run of a mirror, and what sets it off."""
    room = asyncio.Semaphore(AT_ONCE)

    async def run_mirror(mirror_id: int) -> None:
        if room.locked():
            await runs.postpone(app, mirror_id, NO_ROOM_SECONDS)
            return
        async with room:
            await runs.run(app, mirror_id)

    async def attend_mirrors() -> None:
        await runs.attend(app)

    app[QUEUE].add(schedule.TASK, run_mirror)
    app[QUEUE].add_periodic("attend_remote_mirrors", "* * * * *", attend_mirrors)
    app[REF_LISTENERS].append(schedule_mirrors)
    app.cleanup_ctx.append(_attend_at_start)


async def schedule_mirrors(
    transaction: Transaction, project: Row, _user_id: int | None, updates: Sequence[RefUpdate]
) -> None:
    """After branches or tags have moved, the project's mirrors run."""
    if any(update.ref.startswith((BRANCHES, TAGS)) for update in updates):
        await schedule.run_all_soon(transaction, project.id)


async def _attend_at_start(app: web.Application) -> AsyncIterator[None]:
    """At the start: what a killed process has left."""
    await runs.attend(app)
    yield
