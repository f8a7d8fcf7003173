"""Waiting for what goes on by itself: tasks of the queue, deliveries, and what they bring about."""

import asyncio

from aiohttp import web

from api_server.state.queue import QUEUE
from api_server.status_checks.dispatcher import DELIVERIES, DISPATCHER
from api_server.testing import time_queries
from api_server.web.context import DATABASE, SETTINGS

#: Seconds that is waited for what is due.
PATIENCE = 10.0
_PAUSE = 0.02


async def settled(app: web.Application, seconds: float = PATIENCE) -> list[str]:
    """Waits until no work is due or under way, and gives the names of what still is after a while. For who has the turn
    of `Snapshots`."""
    if not app[SETTINGS].work:
        return await time_queries.due(app[DATABASE])
    left: list[str] = []
    dispatcher = app[DISPATCHER]
    async with dispatcher.paused():
        try:
            async with asyncio.timeout(seconds):
                while True:
                    before = await time_queries.due(app[DATABASE])
                    left = [*before, DELIVERIES]
                    await dispatcher.deliver_due()
                    app[QUEUE].look_now()
                    left = await time_queries.due(app[DATABASE])
                    if not (before or left):  # nor can either of them have made work for the other
                        return []
                    await asyncio.sleep(_PAUSE)
        except TimeoutError:
            return left
