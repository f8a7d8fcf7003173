"""procrastinate's side of the queue: running its statements on our connections, and its worker."""

import contextlib
import datetime
import logging
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import attrs
import orjson
import psycopg2
import structlog
from procrastinate import BaseRetryStrategy, exceptions
from procrastinate.connector import BaseAsyncConnector, BaseConnector, Notify
from procrastinate.job_context import JobContext, JobResult
from procrastinate.jobs import Job, Status
from procrastinate.manager import QUEUEING_LOCK_CONSTRAINT, JobManager
from procrastinate.retry import RetryDecision
from procrastinate.worker import Worker
from psycopg2.extras import Json

from api_server.state import database, driver
from api_server.state.connections import Connections
from api_server.state.database import Clock
from api_server.state.driver import Connection, Result, listening_connection
from api_server.state.errors import Conflict, ConnectionLost, Unavailable
from api_server.state.failures import TASK_FAILURES, Failures, reason_of
from common.concurrency import Gate
from common.lifecycle import Passing
from common.logs import ThrottledLog

often = ThrottledLog(structlog.get_logger(__name__))

MAX_CONNECTIONS = 4
STATEMENT_SECONDS = 15.0
CONNECT_SECONDS = 5.0


class QueueConnector(BaseAsyncConnector):
    """A connector on our own connections. It raises procrastinate's errors: `UniqueViolation`, and
    `ConnectorException` if the database is down."""

    def __init__(self, url: str, search_path: str = "", listening_url: str = "") -> None:
        """Create a connector. `search_path` overrides PostgreSQL's; `listening_url` is needed if `url` is
        that of a pooler."""
        self._url = url
        self._listening_url = listening_url or url
        self._session: dict[str, object] = {
            "timezone": "UTC",
            "statement_timeout": int(STATEMENT_SECONDS * 1000),
        }
        if search_path:
            self._session["search_path"] = search_path
        #: Every statement passes this gate.
        self.gate = Gate()
        self._connections = Connections(self._connect, MAX_CONNECTIONS, STATEMENT_SECONDS)
        for name in ("procrastinate.worker", "procrastinate.worker.worker", "procrastinate.utils"):
            logging.getLogger(name).addFilter(_log_briefly)

    def get_sync_connector(self) -> BaseConnector:
        return self

    async def open_async(self, pool: Any = None) -> None:
        """Do nothing: connections are opened when they are needed."""

    async def close_async(self) -> None:
        self._connections.close()

    async def execute_query_async(self, query: str, **arguments: Any) -> None:
        await self._run(query, arguments)

    async def execute_query_one_async(self, query: str, **arguments: Any) -> dict[str, Any]:
        rows = await self.execute_query_all_async(query, **arguments)
        return rows[0] if rows else {}

    async def execute_query_all_async(self, query: str, **arguments: Any) -> list[dict[str, Any]]:
        result = await self._run(query, arguments)
        return [
            {name: _read(name, value) for name, value in zip(result.columns, row, strict=True)}
            for row in result.rows
        ]

    async def listen_notify(self, on_notification: Notify, channels: Iterable[str]) -> None:
        with _as_procrastinates_errors():
            async with listening_connection(self._listening_url, *channels) as connection:
                while True:
                    notification = await connection.notification()
                    await on_notification(channel=notification.channel, payload=notification.payload)

    async def _run(self, query: str, arguments: dict[str, Any]) -> Result:
        parameters = {name: _adapted(value) for name, value in arguments.items()}
        async with self.gate.passing():
            return await self._run_now(query, parameters)

    async def _run_now(self, query: str, parameters: dict[str, Any]) -> Result:
        with _as_procrastinates_errors():
            try:
                async with self._connection() as connection:
                    return await connection.run(query, parameters)
            except ConnectionLost:
                self._connections.close_free()
            async with self._connection() as connection:
                return await connection.run(query, parameters)

    @contextlib.asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        connection = await self._connections.acquire()
        try:
            yield connection
        finally:
            self._connections.release(connection)

    async def _connect(self) -> Connection:
        return await driver.open_connection(
            self._url,
            self._session,
            connect_timeout=CONNECT_SECONDS,
            answer_timeout=STATEMENT_SECONDS + database.TIMEOUT,
            prepares=False,
        )


def _adapted(value: Any) -> Any:
    if isinstance(value, dict):
        return Json(value, dumps=lambda values: orjson.dumps(values).decode())
    if isinstance(value, list):
        return [_adapted(item) for item in value]
    return tuple(map(_adapted, value)) if isinstance(value, tuple) else value


def _read(column: str, value: Any) -> Any:
    return orjson.loads(value) if column == "args" and isinstance(value, str) else value


@contextlib.contextmanager
def without_procrastinates_errors() -> Iterator[None]:
    """Raise `Unavailable` again for procrastinate's error when a worker ends because the database is down."""
    try:
        yield
    except exceptions.ConnectorException as problem:
        if isinstance(problem.__cause__, Unavailable):
            raise problem.__cause__ from None
        raise


@contextlib.contextmanager
def _as_procrastinates_errors() -> Iterator[None]:
    try:
        yield
    except Conflict as problem:
        lock = "" if problem.constraint == QUEUEING_LOCK_CONSTRAINT else None
        raise exceptions.UniqueViolation(constraint_name=problem.constraint, queueing_lock=lock) from problem
    except Unavailable as problem:
        raise exceptions.ConnectorException(f"{problem}: {problem.cause}") from problem
    except psycopg2.Error as problem:
        raise exceptions.ConnectorException(str(problem)) from problem


def _log_briefly(record: logging.LogRecord) -> bool:
    """Log one short warning instead of the traceback that procrastinate logs for everything that fails while
    the database is down."""
    problem = record.exc_info[1] if record.exc_info else None
    if isinstance(problem, exceptions.ConnectorException):
        problem = problem.__cause__
    if not isinstance(problem, Unavailable):
        return True
    often.warning("queued work waits", about=str(problem), cause=f"{problem}: {problem.cause}")
    return False


log = structlog.get_logger(__name__)
logging.getLogger("procrastinate.worker.worker").addFilter(
    lambda record: getattr(record, "action", None) != "task_not_found"  # logged below
)


#: Seconds until a task is repeated that failed because a part did not answer.
AGAIN_SECONDS = 10


@attrs.frozen
class Retries(BaseRetryStrategy):
    """Retries after 2, 4, 8 ... seconds, up to a number of attempts. An attempt that failed because a part
    did not answer does not count."""

    _attempts: int
    _clock: Clock

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        wait = 2 ** (job.attempts + 1)
        if isinstance(exception, Unavailable):
            wait = AGAIN_SECONDS
        elif job.attempts >= self._attempts:
            return None
        return RetryDecision(retry_at=self._clock() + datetime.timedelta(seconds=wait))


class GatedJobs(JobManager):
    """A job manager that hands out no job while its gate is closed."""

    def __init__(self, connector: QueueConnector) -> None:
        super().__init__(connector)
        self.gate = Gate()

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        async with self.gate.passing():
            return await super().fetch_job(queues, worker_id)


class TellingWorker(Worker):
    """A worker that does not count a task as failed if a part did not answer or a stop cut the task off."""

    failures: Failures | None = None

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._reasons: dict[int | None, str] = {}

    def _log_job_outcome(
        self,
        status: Status,
        context: JobContext,
        job_result: JobResult | None,  # noqa: ARG002
        job_retry: Any,
        exc_info: bool | BaseException = False,
    ) -> None:
        job, problem = context.job, exc_info
        if status != Status.FAILED or not isinstance(problem, Exception) or isinstance(problem, Unavailable):
            return
        reason = self._reasons[job.id] = reason_of(problem)
        is_unforeseen = job_retry is None and not isinstance(problem, Passing)
        log.warning(
            "a task failed",
            task=job.task_name,
            id=job.id,
            attempt=job.attempts + 1,
            again=job_retry is not None,
            reason=reason,
            exc_info=problem if is_unforeseen else None,
        )

    async def _persist_job_status(
        self,
        job: Job,
        status: Status,
        retry_decision: RetryDecision | None,
        context: JobContext,
        job_result: JobResult | None,
    ) -> None:
        reason = self._reasons.pop(job.id, None)
        if self.failures is not None and reason is not None:
            await self.failures.note(TASK_FAILURES, str(job.id), reason)
        elif self.failures is not None and job.attempts:
            await self.failures.settle(TASK_FAILURES, str(job.id))
        await super()._persist_job_status(job, status, retry_decision, context, job_result)
