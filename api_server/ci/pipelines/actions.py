"""What people do to jobs and pipelines: cancel, retry, play, erase, remove; each in the caller's transaction.

Whether they may is decided before (`access`); here it is decided, under the pipeline's lock, whether it can be. All of
them raise NotFound where the job has gone.
"""

from collections.abc import Mapping

from api_server.ci.pipelines import job_queries, queries, transitions
from api_server.ci.pipelines.job_data import delete_job_data
from api_server.ci.pipelines.job_queries import Job
from api_server.ci.pipelines.states import COMPLETE, RETRYABLE
from api_server.state.database import Database, Transaction
from api_server.state.errors import NotFound


async def cancel(transaction: Transaction, job_id: int, *, force: bool = False) -> None:
    """Cancels the job, at once or (a runner that knows how) after its `after_script`. Does nothing to a finished one;
    `force` ends the waiting for `after_script`."""
    job = await job_queries.lock_job(transaction, job_id)
    if force:
        await transitions.transit(transaction, [job_id], "force_cancel")
    elif job.status == "running" and job.cancels_gracefully:
        await transitions.transit(transaction, [job_id], "cancel_gracefully")
    else:
        await transitions.transit(transaction, [job_id], "cancel")
    await transitions.refresh(transaction, job.pipeline_id)


async def retry(
    transaction: Transaction, job_id: int, user_id: int, variables: Mapping[str, bytes] | None = None
) -> Job | None:
    """The new job that takes this one's place, on its way already; None where the job cannot be retried."""
    job = await job_queries.lock_job(transaction, job_id)
    if job.retried or job.status not in RETRYABLE:
        return None
    again = await job_queries.clone_job(transaction, job.id, user_id=user_id)
    if variables is not None:
        await job_queries.set_job_variables(transaction, again.id, variables)
    await transitions.put_on_its_way(transaction, again)
    await transitions.refresh(transaction, job.pipeline_id)
    return again


async def play(
    transaction: Transaction, job_id: int, user_id: int, variables: Mapping[str, bytes]
) -> int | None:
    """Starts a job that waits for a person or for its moment; one of those kinds that has run is run again, as a new
    job. The id of the job that is on its way, None where the job cannot be played. `variables` are encrypted."""
    job = await job_queries.lock_job(transaction, job_id)
    if job.status in RETRYABLE and job.when_run in ("manual", "delayed") and job.kind == "build":
        again = await retry(transaction, job_id, user_id, variables or None)
        return None if again is None else again.id
    if job.status not in ("manual", "scheduled"):
        return None
    if job.kind == "bridge" and (job.status, job.when_run) != (
        "manual",
        "manual",
    ):  # others mirror a pipeline
        return None
    await job_queries.set_job_variables(transaction, job_id, variables)
    await transitions.put_on_its_way(transaction, job, user_id=user_id)
    await transitions.refresh(transaction, job.pipeline_id)
    return job_id


async def erase(transaction: Transaction, job_id: int, user_id: int) -> bool:
    """Removes the job's log and artifacts; False where it has none or has not finished."""
    job = await job_queries.lock_job(transaction, job_id)
    if job.status not in COMPLETE or not await job_queries.has_data(transaction, job_id):
        return False
    await delete_job_data(transaction, job_id)
    await job_queries.mark_erased(transaction, job_id, user_id)
    return True


async def cancel_pipeline(transaction: Transaction, pipeline_id: int) -> None:
    """Cancels all jobs that have not finished, those of child pipelines by queued work."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    await transitions.cancel_all(transaction, await job_queries.latest_jobs(transaction, pipeline_id))
    await transitions.refresh(transaction, pipeline_id)


async def cancel_interruptible(transaction: Transaction, pipeline_id: int) -> None:
    """As `cancel_pipeline`, of the jobs that say that they may be ended."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    jobs = await job_queries.latest_jobs(transaction, pipeline_id)
    ids = await queries.interruptible_jobs(transaction, pipeline_id)
    await transitions.cancel_all(transaction, [job for job in jobs if job.id in ids])
    await transitions.refresh(transaction, pipeline_id)


async def retry_pipeline(transaction: Transaction, pipeline_id: int, user_id: int) -> None:
    """Runs again what failed or was canceled, and gives what was skipped its turn again."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        return
    for job in await job_queries.latest_jobs(transaction, pipeline_id):
        if job.kind == "external":  # for those who said so to say otherwise
            continue
        if job.status in ("failed", "canceled"):
            await job_queries.clone_job(transaction, job.id, user_id=user_id)
        elif job.status == "skipped":
            await transitions.transit(transaction, [job.id], "process", user_id=user_id)
    await transitions.refresh(transaction, pipeline_id)


async def cancel_superseded(database: Database, pipeline_id: int, head: str | None) -> None:
    """Cancels what the pipeline of a newer commit has made superfluous, each in a transaction of its own; nothing of
    `head`, where the branch or merge request stands by now: its pipeline may have been made first."""
    for older in await queries.superseded(database, pipeline_id, head):
        async with database.transaction() as transaction:
            await (cancel_interruptible if older.partly else cancel_pipeline)(transaction, older.id)


async def delete_pipeline(transaction: Transaction, pipeline_id: int) -> None:
    """Removes the pipeline, its jobs, their logs and artifacts. Raises NotFound."""
    if not await queries.lock_pipeline(transaction, pipeline_id):
        raise NotFound
    await delete_job_data(transaction, *await job_queries.jobs_with_data(transaction, pipeline_id))
    for job in await job_queries.latest_jobs(transaction, pipeline_id):
        await transitions.release_resource(transaction, job)
    await queries.delete_pipeline(transaction, pipeline_id)
