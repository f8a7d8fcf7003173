"""All changes of a job's state, in the caller's transaction: events with their consequences, and the actions
of users.

Locks are taken in one order: the pipeline's row, then its jobs. Consequences for other pipelines (for the
bridge that waits for this one, or the next job of a resource group) are queued and run in separate
transactions.

The rights of users to cancel, retry, play, erase and remove are checked before (`access`); whether the action
is possible is decided here, under the pipeline's lock. These functions raise NotFound if the job no longer
exists.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from api_server.ci.pipelines import job_queries, queries
from api_server.ci.pipelines.job_queries import Bridge, Job, plan_of
from api_server.ci.pipelines.states import (
    COMPLETE,
    RETRYABLE,
    Event,
    OrderedJob,
    composite_status,
    dependents,
    enqueuing,
    next_events,
)
from api_server.state.database import Database, Transaction
from api_server.state.errors import NotFound
from api_server.state.queue import enqueue

#: The task that deletes objects.
DELETE_OBJECTS = "delete_objects"


async def delete_job_data(transaction: Transaction, *job_ids: int) -> None:
    """Remove the logs and the artifacts of jobs: the rows now, the bytes in a task after the commit."""
    await delete_objects(transaction, await job_queries.delete_job_data(transaction, job_ids))


async def delete_objects(transaction: Transaction, keys: Sequence[str]) -> None:
    """Delete the objects of rows that this transaction has deleted, after the commit."""
    if keys:
        await enqueue(transaction, DELETE_OBJECTS, keys=list(keys))


#: Names of the tasks that follow a change of a job's state. They are run by `tasks`; for logs by `ci/jobs`,
#: and for pipelines that a merge request waits for by `merge_requests`.
START_DOWNSTREAM = "start_downstream_pipeline"
FOLLOW_DOWNSTREAM = "follow_downstream_pipeline"
FOLLOW_MIRRORED = "follow_mirrored_pipeline"
FOLLOW_AWAITED = "follow_awaited_pipeline"
CANCEL_DOWNSTREAM = "cancel_downstream_pipeline"
START_DELAYED = "start_delayed_job"
ASSIGN_RESOURCE = "assign_resource"
SEAL_LOG = "seal_job_log"


async def advance(transaction: Transaction, job_id: int, event: Event, **values: Any) -> Job | None:
    """Apply `event` to the job; `values` are those of `job_queries.transit` (failure_reason, exit_code, ...).

    Return the job's new row after moving the following jobs on and updating the pipeline's status. Return
    None, having changed nothing, if the job's status does not allow the event or there is no such job. A
    failed job is retried if its file says so.
    """
    await job_queries.lock_pipeline_of(transaction, job_id)
    moved = await transit(transaction, [job_id], event, **values)
    if not moved:
        return None
    if moved[0].status == "failed":
        await _retry_by_itself(transaction, moved[0])
        if await queries.cancels_on_failure(transaction, job_id):
            await cancel_all(transaction, await job_queries.latest_jobs(transaction, moved[0].pipeline_id))
    await refresh(transaction, moved[0].pipeline_id)
    return moved[0]


async def start_job(
    transaction: Transaction,
    job_id: int,
    *,
    runner_id: int,
    runner_manager_id: int | None,
    token_digest: bytes,
    cancels_gracefully: bool,
) -> Job | None:
    """Hand a pending build out to a runner. Return its new row, or None if another caller was faster.

    The pipeline is not locked, so a caller may already hold the job's row by FOR UPDATE SKIP LOCKED. It has
    to commit, and then to call `refresh` for `row.pipeline_id` in a separate transaction.
    """
    moved = await job_queries.transit(
        transaction,
        [job_id],
        "run",
        runner_id=runner_id,
        runner_manager_id=runner_manager_id,
        token_digest=token_digest,
        cancels_gracefully=cancels_gracefully,
    )
    return moved[0] if moved else None


async def refresh(transaction: Transaction, pipeline_id: int, *, retried: bool = False) -> None:
    """Move the pipeline's jobs on as far as possible, and update its status and times.

    `retried`: somebody runs it again, so that its bridge waits for it again even if that was canceled.
    """
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    jobs = await job_queries.latest_jobs(transaction, pipeline_id)
    if not jobs:  # a skipped pipeline, or one with a refused configuration, keeps its status
        return
    events = next_events(jobs)
    for event in dict.fromkeys(event for _, event in events):
        await transit(transaction, [job_id for job_id, other in events if other == event], event)
    if events:
        jobs = await job_queries.latest_jobs(transaction, pipeline_id)
    pipeline = await queries.set_pipeline_status(
        transaction, pipeline_id, composite_status(jobs) or "created"
    )
    if pipeline is not None and pipeline.source_job_id is not None:
        await enqueue(transaction, FOLLOW_DOWNSTREAM, job_id=pipeline.source_job_id, retried=retried)
    if pipeline is not None and pipeline.is_mirrored:
        await enqueue(transaction, FOLLOW_MIRRORED, pipeline_id=pipeline_id)
    if pipeline is not None and pipeline.is_awaited:
        await enqueue(transaction, FOLLOW_AWAITED, pipeline_id=pipeline_id)


async def transit(transaction: Transaction, job_ids: Iterable[int], event: Event, **values: Any) -> list[Job]:
    """Call `job_queries.transit` and queue its consequences outside of the pipeline.

    The caller has locked the pipeline, and calls `refresh` afterwards.
    """
    moved = await job_queries.transit(transaction, list(job_ids), event, **values)
    if any(row.status == "pending" and row.kind == "build" for row in moved):
        await job_queries.notify_runners(transaction, moved[0].project_id)
    for row in moved:
        await _set_off(transaction, row)
    return moved


async def cancel_all(transaction: Transaction, jobs: Collection[OrderedJob]) -> None:
    """Cancel those of the jobs that have not finished, at once, or after their `after_script` if the runner
    supports it.

    The caller has locked the pipeline, and calls `refresh` afterwards.
    """
    graceful = {job.id for job in jobs if job.status == "running" and job.cancels_gracefully}
    await transit(transaction, graceful, "cancel_gracefully")
    await transit(transaction, {job.id for job in jobs} - graceful, "cancel")


async def _set_off(transaction: Transaction, job: Job) -> None:
    if job.kind == "bridge" and job.status == "pending":
        await enqueue(transaction, START_DOWNSTREAM, job_id=job.id)
    if job.kind == "bridge" and job.status == "canceled":
        await enqueue(transaction, CANCEL_DOWNSTREAM, job_id=job.id)
    if job.status == "scheduled":
        await enqueue(transaction, START_DELAYED, at=job.scheduled_at, job_id=job.id)
    if job.status == "waiting_for_resource" or job.status in COMPLETE:
        await release_resource(transaction, job)
    if job.kind == "build" and job.status in COMPLETE and job.started_at is not None:
        await enqueue(transaction, SEAL_LOG, job_id=job.id)


async def release_resource(transaction: Transaction, job: OrderedJob) -> None:
    """Queue the task that gives the resource group of a job, if it has one, to the next waiting job."""
    if job.resource_group is not None:
        await enqueue(
            transaction,
            ASSIGN_RESOURCE,
            project_id=job.project_id,
            resource_group=job.resource_group,
        )


async def assign_resource(transaction: Transaction, project_id: int, resource_group: str) -> None:
    """Give the resource, if it is free, to the oldest job that waits for it.

    Of a project's jobs in one resource group, at most one is pending or running.
    """
    job_id = await job_queries.next_for_resource(transaction, project_id, resource_group)
    if job_id is not None:
        await advance(transaction, job_id, "enqueue_waiting_for_resource")


async def start_when_due(transaction: Transaction, job_id: int) -> None:
    """Start a delayed job that is due, unless it was played or canceled meanwhile."""
    job = await job_queries.find_job(transaction, job_id)
    if job is not None and job.status == "scheduled":
        event: Event = "enqueue_scheduled" if job.resource_group is None else "wait_for_resource"
        await advance(transaction, job_id, event)


async def put_on_its_way(transaction: Transaction, job: Job, **values: Any) -> None:
    """Enqueue a job at once, without waiting for earlier jobs, and reset those that were skipped because of
    it.

    The caller has locked the pipeline, and calls `refresh` afterwards. Do nothing if the job's status does
    not allow it.
    """
    moved = await transit(transaction, [job.id], enqueuing(job), **values)
    if moved:
        await _reset_dependents(transaction, moved[0])


async def reopen(transaction: Transaction, bridge: Bridge) -> bool:
    """Let a bridge run again whose pipeline runs again, and reset the jobs that were skipped because of it.
    Return False if its status does not allow that."""
    moved = await transit(transaction, [bridge.id], "reopen")
    if moved:
        await _reset_dependents(transaction, moved[0])
        await refresh(transaction, bridge.pipeline_id, retried=bridge.status == "canceled")
    return bool(moved)


async def _reset_dependents(transaction: Transaction, job: Job) -> None:
    latest = await job_queries.latest_jobs(transaction, job.pipeline_id)
    after = dependents(latest, [job.name])
    skipped = [
        other.id
        for other in latest
        if other.name in after and other.status == "skipped" and other.kind != "external"
    ]
    if skipped:
        await transit(transaction, skipped, "process", user_id=job.user_id)


async def _retry_by_itself(transaction: Transaction, job: Job) -> None:
    retry = plan_of(job).retry
    failed = job.failure_reason or "unknown_failure"
    if not job.retried and job.attempt < retry.max and retry.wants(failed, job.exit_code):
        again = await job_queries.clone_job(transaction, job.id, user_id=job.user_id, attempt=job.attempt + 1)
        await put_on_its_way(transaction, again)


async def cancel_job(transaction: Transaction, job_id: int, *, force: bool = False) -> None:
    """Cancel the job, at once, or after its `after_script` if the runner supports it; `force` does not wait
    for `after_script`.

    Do nothing to a finished job.
    """
    job = await job_queries.lock_job(transaction, job_id)
    if force:
        await transit(transaction, [job_id], "force_cancel")
    elif job.status == "running" and job.cancels_gracefully:
        await transit(transaction, [job_id], "cancel_gracefully")
    else:
        await transit(transaction, [job_id], "cancel")
    await refresh(transaction, job.pipeline_id)


async def retry_job(
    transaction: Transaction, job_id: int, user_id: int, variables: Mapping[str, bytes] | None = None
) -> Job | None:
    """Return the new job that replaces this one, already enqueued, or None if the job cannot be retried."""
    job = await job_queries.lock_job(transaction, job_id)
    if job.retried or job.status not in RETRYABLE:
        return None
    again = await job_queries.clone_job(transaction, job.id, user_id=user_id)
    if variables is not None:
        await job_queries.set_job_variables(transaction, again.id, variables)
    await put_on_its_way(transaction, again)
    await refresh(transaction, job.pipeline_id, retried=True)
    return again


async def play_job(
    transaction: Transaction, job_id: int, user_id: int, variables: Mapping[str, bytes]
) -> int | None:
    """Start a manual or delayed job; run one that has already run again, as a new job. `variables` are
    encrypted.

    Return the id of the started job, or None if the job cannot be played.
    """
    job = await job_queries.lock_job(transaction, job_id)
    if job.status in RETRYABLE and job.when_run in ("manual", "delayed") and job.kind == "build":
        again = await retry_job(transaction, job_id, user_id, variables or None)
        return None if again is None else again.id
    if job.status not in ("manual", "scheduled"):
        return None
    # Other bridges mirror a pipeline.
    if job.kind == "bridge" and (job.status, job.when_run) != ("manual", "manual"):
        return None
    await job_queries.set_job_variables(transaction, job_id, variables)
    await put_on_its_way(transaction, job, user_id=user_id)
    await refresh(transaction, job.pipeline_id)
    return job_id


async def erase_job(transaction: Transaction, job_id: int, user_id: int) -> bool:
    """Remove the job's log and artifacts. Return False if it has none or has not finished."""
    job = await job_queries.lock_job(transaction, job_id)
    if job.status not in COMPLETE or not await job_queries.has_data(transaction, job_id):
        return False
    await delete_job_data(transaction, job_id)
    await job_queries.mark_erased(transaction, job_id, user_id)
    return True


async def cancel_pipeline(transaction: Transaction, pipeline_id: int) -> None:
    """Cancel all jobs that have not finished, and those of child pipelines in a task."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    await cancel_all(transaction, await job_queries.latest_jobs(transaction, pipeline_id))
    await refresh(transaction, pipeline_id)


async def drop_pipeline(transaction: Transaction, pipeline_id: int, failure_reason: str) -> None:
    """Let all jobs fail that have not finished, and retry none of them. Those that are being canceled may end
    by themselves."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    latest = await job_queries.latest_jobs(transaction, pipeline_id)
    unfinished = [job.id for job in latest if job.status != "canceling"]
    await transit(transaction, unfinished, "drop", failure_reason=failure_reason)
    await refresh(transaction, pipeline_id)


async def cancel_interruptible(transaction: Transaction, pipeline_id: int) -> None:
    """Cancel the interruptible jobs, like `cancel_pipeline`."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    jobs = await job_queries.latest_jobs(transaction, pipeline_id)
    ids = await queries.interruptible_jobs(transaction, pipeline_id)
    await cancel_all(transaction, [job for job in jobs if job.id in ids])
    await refresh(transaction, pipeline_id)


async def retry_pipeline(transaction: Transaction, pipeline_id: int, user_id: int) -> None:
    """Run failed and canceled jobs again, and reset skipped ones."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    for job in await job_queries.latest_jobs(transaction, pipeline_id):
        if job.kind == "external":  # the system that reported it can report again
            continue
        if job.status in ("failed", "canceled"):
            await job_queries.clone_job(transaction, job.id, user_id=user_id)
        elif job.status == "skipped":
            await transit(transaction, [job.id], "process", user_id=user_id)
    await refresh(transaction, pipeline_id, retried=True)


async def cancel_superseded(database: Database, pipeline_id: int, head: str | None) -> None:
    """Cancel everything that the pipeline of a newer commit supersedes, each pipeline in a separate
    transaction.

    Pipelines of `head`, the present commit of the branch or merge request, are not canceled: they may have
    been created first.
    """
    for older in await queries.superseded(database, pipeline_id, head):
        async with database.transaction() as transaction:
            await (cancel_interruptible if older.partly else cancel_pipeline)(transaction, older.id)


async def delete_pipeline(transaction: Transaction, pipeline_id: int) -> None:
    """Remove the pipeline, its jobs, their logs and artifacts. Raise NotFound."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        raise NotFound
    await delete_job_data(transaction, *await job_queries.jobs_with_data(transaction, pipeline_id))
    for job in await job_queries.latest_jobs(transaction, pipeline_id):
        await release_resource(transaction, job)
    await queries.delete_pipeline(transaction, pipeline_id)
