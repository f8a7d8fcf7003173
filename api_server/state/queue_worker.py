"""procrastinate's worker, which tells of each task that has failed in one line, and keeps why it has."""

import datetime
import logging
from collections.abc import Iterable
from typing import Any

import attrs
import structlog
from procrastinate import BaseRetryStrategy
from procrastinate.job_context import JobContext, JobResult
from procrastinate.jobs import Job, Status
from procrastinate.manager import JobManager
from procrastinate.retry import RetryDecision
from procrastinate.worker import Worker

from api_server.state.database import Clock
from api_server.state.errors import Unavailable
from api_server.state.failures import TASK_FAILURES, Failures, reason_of
from api_server.state.queue_connector import QueueConnector
from common.concurrency import Gate
from common.lifecycle import Passing

log = structlog.get_logger(__name__)
logging.getLogger("procrastinate.worker.worker").addFilter(
    lambda record: getattr(record, "action", None) != "task_not_found"  # told below
)


#: What could not be done because a part does not answer is tried again after this long.
AGAIN_SECONDS = 10


@attrs.frozen
class Retries(BaseRetryStrategy):
    """After 2, 4, 8 ... seconds, up to so many times. What was kept from its work by a part that does not answer has
    not been tried."""

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
    """Hands out no job while its gate is closed."""

    def __init__(self, connector: QueueConnector) -> None:
        super().__init__(connector)
        self.gate = Gate()

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        async with self.gate.passing():
            return await super().fetch_job(queues, worker_id)


class TellingWorker(Worker):
    """What a part that does not answer has kept from its work has not failed, nor what was cut off by a stop."""

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
