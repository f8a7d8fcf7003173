"""Whether the API server can do its work: the checks behind `/-/readiness`.

Without the database nothing can be answered: it fails. Without the others some things can, and it is degraded.
"""

import asyncio
import datetime
import functools

from aiohttp import web

from api_server.ci.runners.pending_jobs import LISTENER
from api_server.operations import figure_queries
from api_server.operations.watch import problem_of_disk
from api_server.outbound.edges import EDGES
from api_server.state.errors import Unavailable
from api_server.state.objects import OBJECTS
from api_server.state.secrets import UnusableKey, open_vault
from api_server.web.context import DATABASE, SETTINGS, VAULT
from common.lifecycle import BACKGROUND, Check, Degraded


def checks(app: web.Application) -> dict[str, Check]:
    """By the names under which they are shown."""
    own = {
        "database": _database,
        "disk": _disk,
        "key": _key,
        "queue": _queue,
        "listener": _listener,
        "edges": _edges,
    }
    return {
        **{name: functools.partial(check, app) for name, check in own.items()},
        "background": app[BACKGROUND].check,
        "object_store": app[OBJECTS].check,
    }


async def _database(app: web.Application) -> None:
    await app[DATABASE].ping()


async def _disk(app: web.Application) -> None:
    settings = app[SETTINGS]
    problem = await asyncio.to_thread(problem_of_disk, settings.data_dir, settings.disk_reserve)
    if problem is not None:
        raise Degraded(f"{settings.data_dir}: {problem}")


async def _key(app: web.Application) -> None:
    """The process has it in memory; the next start would need the file."""
    try:
        kept = await asyncio.to_thread(open_vault, app[SETTINGS].data_dir)
    except UnusableKey as problem:
        raise Degraded(str(problem)) from None
    if kept.check_value() != app[VAULT].check_value():
        raise Degraded("The secret key is not the one that this process has begun with")


async def _queue(app: web.Application) -> None:
    now, patience = app[DATABASE].now, datetime.timedelta(seconds=app[SETTINGS].worker_timeout)
    try:
        alive = await figure_queries.alive_workers(app[DATABASE], now - patience)
    except Unavailable:
        return  # which is told of under its own name
    if not alive:
        raise Degraded("No process does background work")


async def _listener(app: web.Application) -> None:
    if LISTENER in app[BACKGROUND].down:
        raise Degraded("Runners that wait are not woken by new jobs: they ask every few seconds")


async def _edges(app: web.Application) -> None:
    await app[EDGES].check()
