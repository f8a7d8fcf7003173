"""Joins runners to the application."""

import asyncio
from collections.abc import AsyncIterator

from aiohttp import web

from api_server.ci.runners.requests import PENDING_JOBS, TURNS, TURNS_AT_A_TIME
from api_server.ci.runners.waiting import PendingJobs
from api_server.web.context import SETTINGS


def setup(app: web.Application) -> None:
    """What waiting runners need; they are sent home when the server shuts down."""
    app[PENDING_JOBS] = PendingJobs()
    app[TURNS] = asyncio.Semaphore(TURNS_AT_A_TIME)
    app.cleanup_ctx.append(_listening)
    app.on_shutdown.append(_send_home)


async def _listening(app: web.Application) -> AsyncIterator[None]:
    async with app[PENDING_JOBS].listening(app[SETTINGS].database_url):
        yield


async def _send_home(app: web.Application) -> None:
    app[PENDING_JOBS].close()
