"""Background work: queued in the transaction that causes it, run by workers (procrastinate in our
PostgreSQL)."""

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
#: procrastinate logs each task at each start, and each run twice.
logging.getLogger("procrastinate").setLevel(logging.WARNING)

# A server whose background work runs in another process imports neither procrastinate nor psycopg 3.
if TYPE_CHECKING:
    from procrastinate import App
    from procrastinate.jobs import Job

    from api_server.state.queue_worker import GatedJobs, QueueConnector, TellingWorker

Task = Callable[..., Awaitable[None]]

#: Tasks that one worker runs at a time.
CONCURRENCY = 10
#: Seconds that running tasks get when a worker restarts after losing the database.
GRACE_SECONDS = 20
#: Seconds allowed for recording the tasks that a stopping worker gives up.
GIVING_BACK_SECONDS = 1.0
#: Heartbeats within the time after which a silent worker is considered dead.
HEARTBEATS = 3
#: Maximum seconds until a worker that has lost its connection to the database restarts.
RESTART_SECONDS = 1.0
#: The names of the background tasks.
WORKER, WATCH = "queue worker", "queue watch"
#: Seconds between two searches for work without a notification: retries and tasks that have become due.
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
    """Queue `task(**arguments)`, to run after the transaction has committed and not before `at`.

    Of the tasks with the same `lock`, one runs at a time, in order. If a waiting task already has the
    `queueing_lock`, nothing is queued.
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
    """Tasks have not ended in time; the arguments are their names."""


class Queue:
    """The tasks of this application and the worker that runs them."""

    def __init__(
        self,
        database_url: str,
        dead_after: float = 30.0,
        *,
        listening_url: str = "",
        clock: Clock = system_clock,
        search_path: str = "",
    ) -> None:
        """Create a queue. Workers that have been silent for `dead_after` seconds are considered dead, and
        others take over their work.

        `listening_url` is the URL of PostgreSQL itself if `database_url` is that of a pooler. The queue's
        clock is PostgreSQL's `now()`; `clock` has to agree with it, and `search_path` may lead to another
        function of that name.
        """
        self._addresses = (database_url, search_path, listening_url)
        #: By name: the function and its number of attempts. For periodic tasks: the schedule, the function,
        #: and whether this process starts it.
        self._tasks: dict[str, tuple[Task, int]] = {}
        self._periodic: dict[str, tuple[str, Task, bool]] = {}
        self._clock = clock
        self._dead_after = dead_after
        self._worker: TellingWorker | None = None
        #: Records failures, once there is a database.
        self.failures: Failures | None = None
        self._is_stopping = False
        #: Jobs that the database assigned to this worker at the last check although it was not running them.
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
        """procrastinate's application, with all tasks that were added before it is first used."""
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
        """The `cron` schedules of the periodic tasks that this process starts, by name."""
        return {name: cron for name, (cron, _, begun_here) in self._periodic.items() if begun_here}

    def add(self, name: str, task: Task, *, attempts: int = 1) -> None:
        """Register the function that runs for `name`. It is tried up to `attempts` times with growing pauses
        while it raises an error, and without limit while it raises `Unavailable`.

        A task may still run twice, because a worker can be killed between doing the work and recording it.
        """
        self._tasks[name] = (task, attempts)

    def add_periodic(
        self, name: str, cron: str, task: Callable[[], Awaitable[None]], *, begun_here: bool = True
    ) -> None:
        """Run `task()` at the times of `cron` (minute hour day month weekday, or with seconds last). When it
        succeeds, its earlier failed runs are removed. A task that the settings of this process do not start
        (`begun_here`) is still run for processes with other settings."""

        async def at_moment(timestamp: int) -> None:  # noqa: ARG001
            await task()
            if self.failures is not None:
                await self.failures.settle_tasks(name)

        self._periodic[name] = (cron, at_moment, begun_here)

    @asynccontextmanager
    async def working(self, background: BackgroundTasks, shutdown: Shutdown) -> AsyncIterator[None]:
        """Run a worker for the duration of the block. When the shutdown begins, the worker takes no new
        tasks; running tasks may take as long as the whole shutdown. Another worker repeats those that are
        given up."""

        def stop() -> None:
            self._is_stopping = True
            background.let_end(WORKER)
            if self._worker is not None:
                self._worker.shutdown_graceful_timeout = shutdown.seconds_left
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
                await background.finish(WORKER, shutdown.seconds_left + GIVING_BACK_SECONDS)
                await background.finish(WATCH, 0)

    @asynccontextmanager
    async def paused(self, seconds: float, *, cut: bool) -> AsyncIterator[None]:
        """Run no tasks and write nothing for the queue during the block; first wait for the running tasks.
        After `seconds`, with `cut`, abort those that still run, which are repeated later; without it, raise
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
        """Look for work that has become due without a notification."""
        if self._worker is not None:
            self._worker._new_job_event.set()

    async def defer_periodic(self, since: datetime.datetime, until: datetime.datetime) -> None:
        """Queue each periodic task once that is due after `since` and not after `until`."""
        from croniter import croniter
        from procrastinate.exceptions import AlreadyEnqueued

        for periodic in list(self._app.periodic_registry.periodic_tasks.values()):
            moment = croniter(periodic.cron, since).get_next(datetime.datetime)
            if moment <= until:
                with contextlib.suppress(AlreadyEnqueued):
                    await periodic.task.defer_async(timestamp=int(moment.timestamp()))

    async def _run_worker(self) -> None:
        """Run the worker until it is stopped or loses its connection to the database."""
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
            running = self._running()
            for job in [
                *(each for each in stalled if each.id not in running),
                *await self._left_undone(),
            ]:
                await self._free(job)

    async def _free(self, job: "Job") -> None:
        from procrastinate.exceptions import UniqueViolation
        from procrastinate.jobs import Status

        log.warning("the task of a dead worker is run again", task=job.task_name)
        try:
            await self._app.job_manager.retry_job(job)
        except UniqueViolation:  # the same work is already waiting under the same queueing lock
            await self._app.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)

    def _running(self) -> set[int | None]:
        """Return the jobs that this process is running. It may be alive although it could not send
        heartbeats."""
        if self._worker is None:
            return set()
        return {context.job.id for context in self._worker._running_jobs.values()}

    async def _left_undone(self) -> "list[Job]":
        """Return jobs that the database assigns to this worker although it does not run them, because an
        answer or a report was lost. Jobs seen for the first time are left out: the worker may just have
        received them."""
        owner = self._worker.worker_id if self._worker is not None else None
        jobs = await self._app.job_manager.list_jobs_async(status="doing") if owner is not None else []
        undone = {
            job.id: job for job in jobs if job.id and job.worker_id == owner and job.id not in self._running()
        }
        before, self._forgotten = self._forgotten, set(undone)
        return [job for id_, job in undone.items() if id_ in before]
