"""Figures of the whole instance at one moment, read at most every few seconds however many ask."""

import asyncio
import datetime
from collections import Counter
from collections.abc import Mapping

import attrs
from aiohttp import web

from api_server.operations import figure_queries as queries
from api_server.operations.failing import KINDS, RUNNER_SILENCE, failing
from api_server.state.database import Database
from api_server.state.queue import QUEUE
from api_server.web.context import DATABASE, SETTINGS, App

#: Seconds for which figures are as good as new ones.
FRESH_SECONDS = 5.0
#: What is asked for a metric or a page may take so long.
PATIENCE_SECONDS = 8.0


@attrs.frozen(kw_only=True)
class Figures:
    """At the moment `at`: jobs that are not finished by status, the queue by task, and so on. `failing` counts what
    `failing()` lists, by kind, and has all kinds."""

    at: datetime.datetime
    jobs: Mapping[str, int]
    queue: list[queries.QueueOfTask]
    deliveries: queries.Deliveries
    mirrors: list[queries.Mirrors]
    runners_alive: int
    workers_alive: int
    failing: Mapping[str, int]


async def read(database: Database, tasks: list[str], worker_timeout: float) -> Figures:
    """Reads them all; `tasks` are the names of all tasks that there are, and processes that were not heard of for
    `worker_timeout` seconds do no background work. Raises `Unavailable`."""
    now = database.now
    counted = Counter(one.kind for one in await failing(database, now))
    return Figures(
        at=now,
        jobs={one.status: one.count for one in await queries.jobs(database)},
        queue=await queries.queue(database, tasks),
        deliveries=await queries.deliveries(database),
        mirrors=await queries.mirrors(database),
        runners_alive=await queries.alive_runners(database, now - RUNNER_SILENCE),
        workers_alive=await queries.alive_workers(database, now - datetime.timedelta(seconds=worker_timeout)),
        failing={kind: counted[kind] for kind in KINDS},
    )


class FreshFigures:
    """The figures of an application. All who ask at a time wait for one reading."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._read_at = -FRESH_SECONDS
        self._known: Figures | None = None
        self._reading = asyncio.Lock()

    def forget(self) -> None:
        """They are read again for whoever asks next."""
        self._known = None

    async def get(self) -> Figures:
        """Raises `Unavailable`, and TimeoutError where the database takes long."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(PATIENCE_SECONDS), self._reading:
            if self._known is None or loop.time() - self._read_at >= FRESH_SECONDS:
                self._known = await read(
                    self._app[DATABASE], self._app[QUEUE].names, self._app[SETTINGS].worker_timeout
                )
                self._read_at = loop.time()
            return self._known


FIGURES = web.AppKey("figures", FreshFigures)
