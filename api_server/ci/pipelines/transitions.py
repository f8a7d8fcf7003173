"""Everything that moves a job: one event, then what follows from it, in the caller's transaction.

Locks are taken in one order: the pipeline's row, then its jobs. What concerns another pipeline (the bridge that waits
for this one, the next job of a resource group) is queued and runs in a transaction of its own.
"""

from collections.abc import Iterable
from typing import Any

from api_server.ci.config.plan import Retry
from api_server.ci.pipelines import queries, task_names
from api_server.ci.pipelines.composite import composite
from api_server.ci.pipelines.order import Job, dependents, enqueuing, next_events
from api_server.ci.pipelines.states import COMPLETE, Event
from api_server.state.database import Row, Transaction
from api_server.state.queue import enqueue


async def advance(transaction: Transaction, job_id: int, event: Event, **values: Any) -> Row | None:
    """`event` happens to the job; `values` are those of `queries.transit` (failure_reason, exit_code, ...).

    Gives the job's new row, after the jobs that this lets go on have gone on and the pipeline's status is true again;
    None where the event does not apply to the job's status (or there is no such job), and then nothing changed.
    A failed job that its file wants to be tried again is.
    """
    await queries.lock_job(transaction, job_id)
    moved = await transit(transaction, [job_id], event, **values)
    if not moved:
        return None
    if moved[0].status == "failed":
        await _retry_by_itself(transaction, moved[0])
    await refresh(transaction, moved[0].pipeline_id)
    return moved[0]


async def start(
    transaction: Transaction,
    job_id: int,
    *,
    runner_id: int,
    runner_manager_id: int | None,
    token_digest: bytes,
    cancels_gracefully: bool,
) -> Row | None:
    """Hands a pending build out to a runner: its new row, or None where somebody else has been faster.

    Does not touch the pipeline, so that a caller may hold the job's row by FOR UPDATE SKIP LOCKED already: commit,
    and then call `refresh` for `row.pipeline_id` in a transaction of its own.
    """
    moved = await queries.transit(
        transaction,
        [job_id],
        "run",
        runner_id=runner_id,
        runner_manager_id=runner_manager_id,
        token_digest=token_digest,
        cancels_gracefully=cancels_gracefully,
    )
    return moved[0] if moved else None


async def refresh(transaction: Transaction, pipeline_id: int) -> None:
    """Lets the pipeline's jobs go on as far as they can, and brings its status and times up to date."""
    if await queries.lock_pipeline(transaction, pipeline_id) is None:
        return
    rows = await queries.latest_jobs(transaction, pipeline_id)
    if not rows:  # a skipped one, or one whose configuration was refused, stays what it is
        return
    events = next_events(as_ordered(row) for row in rows)
    for event in dict.fromkeys(event for _, event in events):
        await transit(transaction, [job_id for job_id, other in events if other == event], event)
    if events:
        rows = await queries.latest_jobs(transaction, pipeline_id)
    changed = await queries.set_pipeline_status(transaction, pipeline_id, composite(rows) or "created")
    if changed is not None and changed.source_job_id is not None:
        await enqueue(transaction, task_names.FOLLOW_DOWNSTREAM, job_id=changed.source_job_id)


async def transit(transaction: Transaction, job_ids: Iterable[int], event: Event, **values: Any) -> list[Row]:
    """`queries.transit` with what it sets off outside of the pipeline. The pipeline is locked, and
    `refresh`ed after."""
    moved = await queries.transit(transaction, list(job_ids), event, **values)
    if any(row.status == "pending" and row.kind == "build" for row in moved):
        await queries.notify_runners(transaction, moved[0].project_id)
    for row in moved:
        await _set_off(transaction, row)
    return moved


async def _set_off(transaction: Transaction, row: Row) -> None:
    if row.kind == "bridge" and row.status == "pending":
        await enqueue(transaction, task_names.START_DOWNSTREAM, job_id=row.id)
    if row.kind == "bridge" and row.status == "canceled":
        await enqueue(transaction, task_names.CANCEL_DOWNSTREAM, job_id=row.id)
    if row.status == "scheduled":
        await enqueue(transaction, task_names.START_DELAYED, at=row.scheduled_at, job_id=row.id)
    if row.status == "waiting_for_resource" or row.status in COMPLETE:
        await release_resource(transaction, row)
    if row.status in COMPLETE and row.started_at is not None:
        await enqueue(transaction, task_names.SEAL_LOG, job_id=row.id)


async def release_resource(transaction: Transaction, row: Row) -> None:
    """Has the resource group of a job, if it is in one, given to who waits for it."""
    if row.resource_group is not None:
        await enqueue(
            transaction,
            task_names.ASSIGN_RESOURCE,
            project_id=row.project_id,
            resource_group=row.resource_group,
        )


async def run_again(transaction: Transaction, row: Row, *, user_id: int | None, attempt: int = 0) -> Row:
    """A new job in the place of `row`, in status `created`; the pipeline is locked."""
    return await queries.clone_job(transaction, row.id, user_id=user_id, attempt=attempt)


async def put_on_its_way(transaction: Transaction, row: Row, **values: Any) -> Row | None:
    """Enqueues a job at once, whatever comes before it, and gives those that were skipped because of it their turn
    again; the pipeline is locked, and `refresh`ed after. None where the job's status does not allow it."""
    moved = await transit(transaction, [row.id], enqueuing(as_ordered(row)), **values)
    if not moved:
        return None
    ordered = [as_ordered(other) for other in await queries.latest_jobs(transaction, row.pipeline_id)]
    after = dependents(ordered, [row.name])
    skipped = [job.id for job in ordered if job.name in after and job.status == "skipped"]
    if skipped:
        await transit(transaction, skipped, "process", user_id=moved[0].user_id)
    return moved[0]


def as_ordered(row: Row) -> Job:
    """A job's row as the rules of `order` look at it."""
    return Job(
        id=row.id,
        name=row.name,
        stage_index=row.stage_index,
        status=row.status,
        when=row.when_run,
        allow_failure=row.allow_failure,
        needs=None if row.needs is None else frozenset(row.needs),
        has_resource_group=row.resource_group is not None,
    )


async def _retry_by_itself(transaction: Transaction, row: Row) -> None:
    retry = queries.plan_of(row).retry
    if not row.retried and row.attempt < retry.max and _is_wanted(retry, row.failure_reason):
        again = await run_again(transaction, row, user_id=row.user_id, attempt=row.attempt + 1)
        await put_on_its_way(transaction, again)


def _is_wanted(retry: Retry, failure_reason: str | None) -> bool:
    return "always" in retry.when or (failure_reason or "unknown_failure") in retry.when
