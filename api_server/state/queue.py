"""Background work: queued in the transaction of what caused it, run by workers (procrastinate in our PostgreSQL)."""

import asyncio
import contextlib
import datetime
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import orjson
import structlog

from api_server.state.database import Clock, Transaction, system_clock
from api_server.state.failures import Failures
from common.lifecycle import BackgroundTasks, Shutdown

log = structlog.get_logger(__name__)
#: It names each task at each start, and each run twice.
logging.getLogger("procrastinate").setLevel(logging.WARNING)

if (
    TYPE_CHECKING
):  # a server whose background work another process does imports neither procrastinate nor psycopg 3
    from procrastinate import App
    from procrastinate.jobs import Job

    from api_server.state.queue_worker import GatedJobs, QueueConnector, TellingWorker

Task = Callable[..., Awaitable[None]]

#: Tasks at a time in one worker.
CONCURRENCY = 10
#: A worker that begins again, since it has lost the database, leaves what it has begun this long.
GRACE_SECONDS = 20
#: How long it may take to write down what is given up.
GIVING_BACK_SECONDS = 1.0
#: Signs of life in the time after which a worker is taken for dead without one.
HEARTBEATS = 3
#: A worker that has lost its connection to the database begins again after this long, at most.
RESTART_SECONDS = 1.0
#: What runs in the background.
WORKER, WATCH = "queue worker", "queue watch"
#: A worker looks so often for work that it was not told of: what is done again, and what has become due.
POLL_SECONDS = 5.0

HOLD_QUEUEING_LOCK = """
    SELECT pg_advisory_xact_lock(hashtextextended(%(queueing_lock)s, 0))
"""

ENQUEUE = """
    SELECT unnest(procrastinate_defer_jobs_v1(ARRAY[
        ROW('default', %(task)s, 0, %(lock)s, %(queueing_lock)s, %(arguments)s::jsonb, %(at)s)
    ]::procrastinate_job_to_defer_v1[]))
    WHERE %(queueing_lock)s::text IS NULL OR NOT EXISTS (
        SELECT FROM procrastinate_jobs WHERE queueing_lock = %(queueing_lock)s AND status = 'todo'
    )
"""


async def enqueue(
    transaction: Transaction,
    task: str,
    *,
    lock: str | None = None,
    queueing_lock: str | None = None,
    at: datetime.datetime | None = None,
    **arguments: Any,
) -> None:
    """Queues `task(**arguments)` for when the transaction has committed, not before `at`.

    Of the tasks with one `lock`, one runs at a time, in order. With a `queueing_lock` that a waiting task already
    has, nothing is queued: that one will do.
    """
    if queueing_lock is not None:
        await transaction.run(HOLD_QUEUEING_LOCK, queueing_lock=queueing_lock)
    await transaction.run(
        ENQUEUE,
        task=task,
        lock=lock,
        queueing_lock=queueing_lock,
        arguments=orjson.dumps(arguments).decode(),
        at=at,
    )


class StillAtWork(Exception):
    """Tasks, whose names these are, have not come to an end in time."""


class Queue:
    """The tasks of this application, and the worker that runs them."""

    def __init__(
        self,
        database_url: str,
        dead_after: float = 30.0,
        *,
        listening_url: str = "",
        clock: Clock = system_clock,
        search_path: str = "",
    ) -> None:
        """Workers that have not been heard of for `dead_after` seconds are dead, and their work is given to others.

        `listening_url` is PostgreSQL's own, where `database_url` is a pooler's. The queue's clock is PostgreSQL's
        `now()`; `clock` has to say the same, and `search_path` may lead to another function of that name.
        """
        self._addresses = (database_url, search_path, listening_url)
        #: By name what runs, and how often it is tried; by name when it runs, and whether that begins here.
        self._tasks: dict[str, tuple[Task, int]] = {}
        self._periodic: dict[str, tuple[str, Task, bool]] = {}
        self._clock = clock
        self._dead_after = dead_after
        self._worker: TellingWorker | None = None
        #: Where it is kept what fails, from when there is a database on.
        self.failures: Failures | None = None
        self._is_stopping = False
        #: Jobs that this worker had at the last look, and was not at.
        self._forgotten: set[int] = set()

    @functools.cached_property
    def _connector(self) -> "QueueConnector":
        from api_server.state.queue_worker import QueueConnector

        return QueueConnector(*self._addresses)

    @functools.cached_property
    def _jobs(self) -> "GatedJobs":
        from api_server.state.queue_worker import GatedJobs

        return GatedJobs(self._connector)

    @functools.cached_property
    def _app(self) -> "App":
        """procrastinate's side of it, with all tasks that have been added until it is first used."""
        from procrastinate import App

        from api_server.state.queue_worker import Retries

        app = App(connector=self._connector)
        app.job_manager = self._jobs
        for name, (task, attempts) in self._tasks.items():
            app.task(name=name, retry=Retries(attempts, self._clock))(task)
        for name, (cron, task, begun_here) in self._periodic.items():
            registered = app.task(name=name, queueing_lock=name, lock=name)(task)
            if begun_here:
                app.periodic(cron=cron)(registered)
        return app

    @property
    def names(self) -> list[str]:
        """The names of all tasks."""
        return sorted([*self._tasks, *self._periodic])

    @property
    def periodic(self) -> dict[str, str]:
        """When tasks that come again and again do so: their names with their `cron`."""
        return {name: cron for name, (cron, _, begun_here) in self._periodic.items() if begun_here}

    def add(self, name: str, task: Task, *, attempts: int = 1) -> None:
        """Registers what runs for `name`, up to `attempts` times with growing waits while it raises; and as often as it
        takes where it raises `Unavailable`.

        A task may run twice even so (a worker can be killed between doing and marking).
        """
        self._tasks[name] = (task, attempts)

    def add_periodic(
        self, name: str, cron: str, task: Callable[[], Awaitable[None]], *, begun_here: bool = True
    ) -> None:
        """Runs `task()` at the moments of `cron` (minute hour day month weekday, or with seconds last). What is not
        `begun_here`, by the settings of this process, is still done for one that has other settings."""

        async def at_moment(timestamp: int) -> None:  # noqa: ARG001
            await task()

        self._periodic[name] = (cron, at_moment, begun_here)

    @asynccontextmanager
    async def working(self, background: BackgroundTasks, shutdown: Shutdown) -> AsyncIterator[None]:
        """A worker runs for the length of the block. It takes nothing new from the beginning of the shutdown on, and
        what it has begun may take as long as everything else; what it gives up then, another worker does again."""

        def stop() -> None:
            self._is_stopping = True
            background.let_end(WORKER)
            if self._worker is not None:
                self._worker.shutdown_graceful_timeout = shutdown.left
                self._worker.stop()  # type: ignore[no-untyped-call]

        self._is_stopping = False
        shutdown.at_begin(stop)
        app = await asyncio.to_thread(getattr, self, "_app")  # its import takes a tenth of a second
        async with app.open_async():
            background.start(WORKER, self._run_worker, longest_pause=RESTART_SECONDS)
            background.start(WATCH, self._free_stalled, longest_pause=RESTART_SECONDS)
            try:
                yield
            finally:
                stop()
                await background.finish(WORKER, shutdown.left + GIVING_BACK_SECONDS)
                await background.finish(WATCH, 0)

    @asynccontextmanager
    async def paused(self, seconds: float, *, cut: bool) -> AsyncIterator[None]:
        """Nothing is run here for the length of the block, and nothing written for it: what is under way comes to its
        end first. What takes longer than `seconds` is cut off with `cut`, and done again; without, raises
        `StillAtWork`."""
        with self._jobs.gate.closed():
            await self._jobs.gate.empty()
            running = self._worker._running_jobs if self._worker is not None else {}
            if running:
                await asyncio.wait(list(running), timeout=seconds)
            if running and not cut:
                raise StillAtWork(*sorted(context.job.task_name for context in running.values()))
            if running and self._worker is not None:
                await self._worker._abort_running_jobs()  # type: ignore[no-untyped-call]
            self._forgotten = set()
            with self._connector.gate.closed():
                await self._connector.gate.empty()
                yield
        self.look_now()

    def look_now(self) -> None:
        """Something has become due that nobody was told of."""
        if self._worker is not None:
            self._worker._new_job_event.set()

    async def defer_periodic(self, since: datetime.datetime, until: datetime.datetime) -> None:
        """Queues each periodic task once that has a moment after `since` and not after `until`."""
        from croniter import croniter
        from procrastinate.exceptions import AlreadyEnqueued

        for periodic in list(self._app.periodic_registry.periodic_tasks.values()):
            moment = croniter(periodic.cron, since).get_next(datetime.datetime)
            if moment <= until:
                with contextlib.suppress(AlreadyEnqueued):
                    await periodic.task.defer_async(timestamp=int(moment.timestamp()))

    async def _run_worker(self) -> None:
        """Until it is stopped, or loses its connection to the database."""
        from api_server.state.queue_worker import TellingWorker, without_procrastinates_errors

        if self._is_stopping:
            return
        self._worker = TellingWorker(
            self._app,
            concurrency=CONCURRENCY,
            wait=True,
            install_signal_handlers=False,
            shutdown_graceful_timeout=GRACE_SECONDS,
            delete_jobs="successful",
            fetch_job_polling_interval=POLL_SECONDS,
            update_heartbeat_interval=self._dead_after / HEARTBEATS,
            stalled_worker_timeout=self._dead_after,
        )
        self._worker.failures = self.failures
        with without_procrastinates_errors():
            await self._worker.run()  # type: ignore[no-untyped-call]

    async def _free_stalled(self) -> None:
        while True:
            async with self._jobs.gate.passing():
                await self._free_stalled_now()
            await asyncio.sleep(self._dead_after)

    async def _free_stalled_now(self) -> None:
        from api_server.state.queue_worker import without_procrastinates_errors

        with without_procrastinates_errors():
            stalled = await self._app.job_manager.get_stalled_jobs(seconds_since_heartbeat=self._dead_after)
            at_work = self._at_work()
            for job in [
                *(each for each in stalled if each.id not in at_work),
                *await self._left_undone(),
            ]:
                await self._free(job)

    async def _free(self, job: "Job") -> None:
        from procrastinate.exceptions import UniqueViolation
        from procrastinate.jobs import Status

        log.warning("work of a dead worker is done again", task=job.task_name)
        try:
            await self._app.job_manager.retry_job(job)
        except UniqueViolation:  # the same work waits already, under the same queueing lock
            await self._app.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)

    def _at_work(self) -> set[int | None]:
        """The jobs that this process has under way. It may live without having been able to say so."""
        if self._worker is None:
            return set()
        return {context.job.id for context in self._worker._running_jobs.values()}

    async def _left_undone(self) -> "list[Job]":
        """Jobs that this worker has taken or finished while the answer, or its own word, was lost; those that are seen
        for the first time it may just have got."""
        mine = self._worker.worker_id if self._worker is not None else None
        doing = await self._app.job_manager.list_jobs_async(status="doing") if mine is not None else []
        undone = {
            job.id: job for job in doing if job.id and job.worker_id == mine and job.id not in self._at_work()
        }
        before, self._forgotten = self._forgotten, set(undone)
        return [job for id_, job in undone.items() if id_ in before]
